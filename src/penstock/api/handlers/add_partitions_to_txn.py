"""AddPartitionsToTxn (key 24), versions 0-5: adds partitions to a transaction before they are written.

- Versions 0-3 are for clients, with one transaction per request. If a partition does not exist, it gets its own error
  and the others OPERATION_NOT_ATTEMPTED.
- Versions 4 and 5 are for brokers, with many transactions per request: a partition leader checks for a client whether
  the partition belongs to its transaction (`verify_only`), or adds it (transaction version 2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.coordination.transactions import TransactionCoordinator
from penstock.core.metadata.image import INTERNAL_TOPICS, MetadataImage
from penstock.core.txn.exchange import AddRequest
from penstock.core.txn.transaction import Partition as Place
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

FIRST_FOR_BROKERS = 4
FIRST_WITH_PRODUCER_FENCED = 2


class AddPartitionsToTxnHandler:
    api: ClassVar = Api.ADD_PARTITIONS_TO_TXN
    min_version: ClassVar = 0
    max_version: ClassVar = 5
    bounds: ClassVar = WIDE

    def __init__(self, transactions: TransactionCoordinator, image: MetadataImage) -> None:
        self._transactions = transactions
        self._image = image

    async def handle(self, ctx: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        if ctx.version >= FIRST_FOR_BROKERS:
            results = await asyncio.gather(*[self._of_broker(one) async for one in ctx.pace.each(request.transactions)])
            return AddPartitionsToTxnResponse(results_by_transaction=results)
        topics = request.v3_and_below_topics
        places = _places(topics)
        codes = _without(places, self._check)
        if not codes:
            code = await self._add(
                AddRequest(
                    request.v3_and_below_transactional_id,
                    request.v3_and_below_producer_id,
                    request.v3_and_below_producer_epoch,
                    frozenset(places),
                )
            )
            if code is ErrorCode.PRODUCER_FENCED and ctx.version < FIRST_WITH_PRODUCER_FENCED:
                code = ErrorCode.INVALID_PRODUCER_EPOCH
            codes = dict.fromkeys(places, code)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, codes))

    async def _of_broker(self, asked: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
        places = _places(asked.topics)
        codes: dict[Place, ErrorCode]
        request = AddRequest(
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            frozenset(places),
            0 if asked.verify_only else 2,
            may_wait=False,  # other brokers' requests, markers among them, are behind it on the connection
        )
        if asked.verify_only:
            try:
                reply = await self._transactions.verify_partitions(request)
            except ApiError as error:
                codes = dict.fromkeys(places, error.code)
            else:
                codes = {
                    place: ErrorCode.TRANSACTION_ABORTABLE if place in reply.missing else reply.code for place in places
                }
        else:
            # If this broker did not know the partition yet, it would take it for deleted when the marker has to be
            # written.
            codes = _without(places, self._exists) or dict.fromkeys(places, await self._add(request))
        return AddPartitionsToTxnResult(
            transactional_id=asked.transactional_id, topic_results=_results(asked.topics, codes)
        )

    async def _add(self, request: AddRequest) -> ErrorCode:
        try:
            return (await self._transactions.add_partitions(request)).code
        except ApiError as error:
            return error.code

    def _exists(self, place: Place) -> ErrorCode:
        topic, index = place
        state = self._image.topics.get(topic)
        is_there = state is not None and 0 <= index < len(state.partitions)
        return ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _check(self, place: Place) -> ErrorCode:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED if place[0] in INTERNAL_TOPICS else self._exists(place)

    def refuse(
        self, request: AddPartitionsToTxnRequest, code: ErrorCode, message: str | None
    ) -> AddPartitionsToTxnResponse:
        topics = request.v3_and_below_topics
        return AddPartitionsToTxnResponse(
            error_code=code,
            results_by_topic_v3_and_below=_results(topics, dict.fromkeys(_places(topics), code)),
        )


def _without(places: Iterable[Place], check: Callable[[Place], ErrorCode]) -> dict[Place, ErrorCode]:
    """If one partition is refused, the others are not attempted. Empty: all of them may be added."""
    refused = {place: code for place in places if (code := check(place)) is not ErrorCode.NONE}
    if not refused:
        return {}
    return {place: refused.get(place, ErrorCode.OPERATION_NOT_ATTEMPTED) for place in places}


def _places(topics: Iterable[AddPartitionsToTxnTopic]) -> list[Place]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _results(
    topics: Iterable[AddPartitionsToTxnTopic], codes: dict[Place, ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=codes[topic.name, index])
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
