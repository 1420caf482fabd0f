"""ListTransactions (key 66), versions 0-2: the transactional ids that this broker coordinates.

The response lists states in the filter that Kafka does not have. The pattern of version 2 is an RE2 expression, matched
in another process.
"""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.api.context import RequestContext
from penstock.coordination.transactions import TransactionCoordinator
from penstock.core.group import topic_regex
from penstock.core.txn.exchange import DescribedTransaction, ListFilter
from penstock.core.txn.states import State
from penstock.model.errors import ErrorCode
from penstock.ports.workers import RecordWorkers
from penstock.wire.apis import Api
from penstock.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

STATES: Final = {state.title: state for state in State}


class ListTransactionsHandler:
    api: ClassVar = Api.LIST_TRANSACTIONS
    min_version: ClassVar = 0
    max_version: ClassVar = 2

    def __init__(self, transactions: TransactionCoordinator, records: RecordWorkers) -> None:
        self._transactions = transactions
        self._records = records

    async def handle(self, ctx: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
        unknown = {state: None for state in request.state_filters if state not in STATES}
        wanted = frozenset(STATES[state] for state in request.state_filters if state in STATES)
        found: list[DescribedTransaction] = []
        if wanted or not request.state_filters:
            which = ListFilter(wanted, frozenset(request.producer_id_filters), request.duration_filter)
            for reply in await self._transactions.list_transactions(which):
                found += reply.transactions
        if request.transactional_id_pattern:
            found = await self._matching(request.transactional_id_pattern, found)
        return ListTransactionsResponse(
            unknown_state_filters=list(unknown),
            transaction_states=[
                TransactionState(
                    transactional_id=one.transactional_id,
                    producer_id=one.producer_id,
                    transaction_state=one.state.title,
                )
                async for one in ctx.pace.each(found)
            ],
        )

    async def _matching(self, pattern: str, found: list[DescribedTransaction]) -> list[DescribedTransaction]:
        """Raises ApiError if the expression is invalid or takes too long."""
        names = [one.transactional_id for one in found]
        matches = await self._records.call_patiently(topic_regex.match, pattern, names)
        return [one for one, is_match in zip(found, matches, strict=True) if is_match]

    def refuse(
        self, request: ListTransactionsRequest, code: ErrorCode, message: str | None
    ) -> ListTransactionsResponse:
        return ListTransactionsResponse(error_code=code)
