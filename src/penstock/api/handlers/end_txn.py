"""EndTxn (key 26), versions 0-5: commit or abort, confirmed when the decision is on disk. Its markers follow.

From version 5 on the client uses transaction version 2: the response has the producer id and epoch of its next
transaction.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.coordination.transactions import TransactionCoordinator
from penstock.core.txn.exchange import EndRequest
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

FIRST_WITH_PRODUCER_FENCED = 2
FIRST_WITH_RISING_EPOCHS = 5


class EndTxnHandler:
    api: ClassVar = Api.END_TXN
    min_version: ClassVar = 0
    max_version: ClassVar = 5

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    async def handle(self, ctx: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
        version = 2 if ctx.version >= FIRST_WITH_RISING_EPOCHS else 0
        reply = await self._transactions.end(
            EndRequest(
                request.transactional_id, request.producer_id, request.producer_epoch, request.committed, version
            )
        )
        code = reply.code
        if code is ErrorCode.PRODUCER_FENCED and ctx.version < FIRST_WITH_PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return EndTxnResponse(error_code=code, producer_id=reply.producer_id, producer_epoch=reply.epoch)

    def refuse(self, request: EndTxnRequest, code: ErrorCode, message: str | None) -> EndTxnResponse:
        return EndTxnResponse(error_code=code, producer_id=-1, producer_epoch=-1)
