"""AddOffsetsToTxn (key 25), versions 0-4: adds the partition of a group's offsets to a transaction."""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.coordination.groups import OFFSETS_TOPIC, GroupCoordinator
from penstock.coordination.transactions import TransactionCoordinator
from penstock.core.txn.exchange import AddRequest
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.wire.apis import Api
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

FIRST_WITH_PRODUCER_FENCED = 2


class AddOffsetsToTxnHandler:
    api: ClassVar = Api.ADD_OFFSETS_TO_TXN
    min_version: ClassVar = 0
    max_version: ClassVar = 4

    def __init__(self, transactions: TransactionCoordinator, groups: GroupCoordinator) -> None:
        self._transactions = transactions
        self._groups = groups

    async def handle(self, ctx: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        try:
            await self._groups.ensure_topic()
        except (ApiError, StorageError) as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        index = self._groups.index_of(request.group_id)
        if index is None:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        places = frozenset(((OFFSETS_TOPIC, index),))
        reply = await self._transactions.add_partitions(
            AddRequest(request.transactional_id, request.producer_id, request.producer_epoch, places)
        )
        code = reply.code
        if code is ErrorCode.PRODUCER_FENCED and ctx.version < FIRST_WITH_PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return AddOffsetsToTxnResponse(error_code=code)

    def refuse(self, request: AddOffsetsToTxnRequest, code: ErrorCode, message: str | None) -> AddOffsetsToTxnResponse:
        return AddOffsetsToTxnResponse(error_code=code)
