"""DescribeTransactions (key 65), version 0: the state of transactional ids at their coordinator."""

from __future__ import annotations

from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.coordination.transactions import TransactionCoordinator
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


class DescribeTransactionsHandler:
    api: ClassVar = Api.DESCRIBE_TRANSACTIONS
    min_version: ClassVar = 0
    max_version: ClassVar = 0
    bounds: ClassVar = WIDE

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    async def handle(self, ctx: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[await self._describe(one) async for one in ctx.pace.each(request.transactional_ids)]
        )

    async def _describe(self, transactional_id: str) -> TransactionState:
        try:
            reply = await self._transactions.describe(transactional_id)
        except ApiError as error:
            return TransactionState(transactional_id=transactional_id, error_code=error.code)
        known = reply.transaction
        if known is None:
            return TransactionState(transactional_id=transactional_id, error_code=reply.code)
        topics: dict[str, list[int]] = {}
        for topic, index in known.partitions:
            topics.setdefault(topic, []).append(index)
        return TransactionState(
            transactional_id=transactional_id,
            transaction_state=known.state.title,
            transaction_timeout_ms=known.timeout_ms,
            transaction_start_time_ms=known.start_ms,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
            topics=[TopicData(topic=topic, partitions=indexes) for topic, indexes in topics.items()],
        )

    def refuse(
        self, request: DescribeTransactionsRequest, code: ErrorCode, message: str | None
    ) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[
                TransactionState(transactional_id=one, error_code=code) for one in request.transactional_ids
            ]
        )
