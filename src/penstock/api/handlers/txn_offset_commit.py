"""TxnOffsetCommit (key 28), versions 0-5: offsets that count when the transaction commits.

- The transaction coordinator first confirms that the partition of these offsets belongs to the open transaction. For a
  client of transaction version 2 (request version 5) it adds the partition.
- From version 3 on the member is checked as for OffsetCommit. The producer sends the request, so it does not extend the
  member's session.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.coordination.groups import OFFSETS_TOPIC, GroupCoordinator
from penstock.coordination.verification import AGAIN, LONGEST_S, Verifier
from penstock.core.group.exchange import CommitReply, CommitRequest, OffsetToCommit, TransactionalCommitRequest
from penstock.core.metadata.image import MetadataImage
from penstock.core.txn.exchange import AddRequest
from penstock.core.txn.transaction import Partition as Place
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

FIRST_WITH_ABORTABLE = 4
FIRST_WITH_RISING_EPOCHS = 5


class TxnOffsetCommitHandler:
    api: ClassVar = Api.TXN_OFFSET_COMMIT
    min_version: ClassVar = 0
    max_version: ClassVar = 5
    bounds: ClassVar = WIDE

    def __init__(self, groups: GroupCoordinator, verifier: Verifier, image: MetadataImage) -> None:
        self._groups = groups
        self._verifier = verifier
        self._image = image

    async def handle(self, ctx: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        offsets: list[OffsetToCommit] = []
        accepted: list[TxnOffsetCommitResponsePartition] = []
        topics: list[TxnOffsetCommitResponseTopic] = []
        async for given in ctx.pace.each(request.topics):
            topic = self._image.topics.get(given.name)
            answers: list[TxnOffsetCommitResponsePartition] = []
            async for asked in ctx.pace.each(given.partitions):
                answer = TxnOffsetCommitResponsePartition(partition_index=asked.partition_index)
                answers.append(answer)
                if topic is None or not 0 <= asked.partition_index < len(topic.partitions):
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                accepted.append(answer)
                offsets.append(
                    OffsetToCommit(
                        topic.name,
                        asked.partition_index,
                        asked.committed_offset,
                        asked.committed_leader_epoch,
                        asked.committed_metadata or "",
                    )
                )
            topics.append(TxnOffsetCommitResponseTopic(name=given.name, partitions=answers))
        if offsets:
            errors = await self._commit(ctx, request, tuple(offsets))
            for answer, code in zip(accepted, errors, strict=True):
                answer.error_code = code
        return TxnOffsetCommitResponse(topics=topics)

    async def _commit(
        self, ctx: RequestContext, request: TxnOffsetCommitRequest, offsets: tuple[OffsetToCommit, ...]
    ) -> tuple[ErrorCode, ...]:
        index = self._groups.index_of(request.group_id)
        if index is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        producer = self._groups.begin_verification(
            index,
            request.producer_id,
            request.producer_epoch,
            raises_epoch=ctx.version >= FIRST_WITH_RISING_EPOCHS,
        )
        if producer.guard is not None:
            code = await self._verify(ctx.version, request, (OFFSETS_TOPIC, index))
            if ctx.connection.is_closed:
                code = ErrorCode.REQUEST_TIMED_OUT  # the client has given up, and may have begun its next transaction
            if code is not ErrorCode.NONE:
                return (code,) * len(offsets)
        commit = CommitRequest(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id, offsets
        )
        asked = TransactionalCommitRequest(commit, producer)
        reply = await self._groups.call(
            request.group_id,
            CommitReply,
            lambda shard, token, now_ms: shard.commit_transactional(asked, token, now_ms),
        )
        return reply.errors if reply.error is ErrorCode.NONE else (reply.error,) * len(offsets)

    async def _verify(self, version: int, request: TxnOffsetCommitRequest, place: Place) -> ErrorCode:
        is_v2 = version >= FIRST_WITH_RISING_EPOCHS
        if not is_v2 and not self._verifier.is_on:
            return ErrorCode.NONE
        asked = AddRequest(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            frozenset((place,)),
            2 if is_v2 else 0,
        )
        # No repetition for clients of transaction version 0 or 1: they may have given up before its answer. Their late
        # request could not be distinguished from a request of their next transaction.
        patience_s = LONGEST_S if is_v2 else 0.0
        code = (await self._verifier.verify(asked, patience_s))[place]
        if code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_WITH_ABORTABLE:
            return ErrorCode.INVALID_TXN_STATE
        if code is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if code in AGAIN and not (is_v2 and code is ErrorCode.CONCURRENT_TRANSACTIONS):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE  # every client retries this
        return code

    def refuse(self, request: TxnOffsetCommitRequest, code: ErrorCode, message: str | None) -> TxnOffsetCommitResponse:
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code)
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
