"""ListTransactions (key 66), versions 0-2: there are no transactions yet, so the list is empty.

States in the filter that Kafka does not have are named in the answer, as Kafka does.
"""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.api.context import RequestContext
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


class ListTransactionsHandler:
    api: ClassVar = Api.LIST_TRANSACTIONS
    min_version: ClassVar = 0
    max_version: ClassVar = 2

    def handle(self, ctx: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
        unknown = {state: None for state in request.state_filters if state not in STATES}
        return ListTransactionsResponse(unknown_state_filters=list(unknown))

    def refuse(
        self, request: ListTransactionsRequest, code: ErrorCode, message: str | None
    ) -> ListTransactionsResponse:
        return ListTransactionsResponse(error_code=code)
