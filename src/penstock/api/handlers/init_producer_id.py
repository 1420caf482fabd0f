"""InitProducerId (key 22), versions 0-6.

- Without a transactional id: a producer id from a block that the controller reserved for this broker, so an id is never
  given twice, not even across a crash.
- With one: its transaction coordinator raises the epoch, which fences the previous producer. An open transaction is
  aborted, and the error is CONCURRENT_TRANSACTIONS until its markers are written.
- Version 6 is two-phase commit (KIP-939): with Enable2Pc the transactions of the producer have no timeout.
  KeepPreparedTxn is refused with UNSUPPORTED_VERSION, as in Kafka 4.3.
- Kafka marks version 6 as unstable and does not offer it. Here it is served if `transaction.two.phase.commit.enable` is
  true, as it is by default; otherwise versions 0-5 are.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.coordination.transactions import ProducerIds, TransactionCoordinator
from penstock.core.txn.exchange import InitRequest
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

FIRST_WITH_PRODUCER_FENCED = 4


class InitProducerIdHandler:
    api: ClassVar = Api.INIT_PRODUCER_ID
    min_version: ClassVar = 0
    max_version: ClassVar = 6

    def __init__(self, producer_ids: ProducerIds, transactions: TransactionCoordinator) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions

    async def handle(self, ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if (request.producer_id >= 0) != (request.producer_epoch >= 0):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if request.transactional_id is not None:
            return await self._begin_transactions(ctx.version, request.transactional_id, request)
        try:
            producer_id = await self._producer_ids.allocate_producer_id()
        except ApiError as error:
            # A temporary failure, whatever the controller's answer; all clients treat this code as one.
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    async def _begin_transactions(
        self, version: int, transactional_id: str, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        reply = await self._transactions.init_producer_id(
            InitRequest(
                transactional_id,
                request.transaction_timeout_ms,
                request.producer_id,
                request.producer_epoch,
                is_decided_outside=request.enable2_pc,
                keeps_prepared=request.keep_prepared_txn,
            )
        )
        code = reply.code
        if code is ErrorCode.PRODUCER_FENCED and version < FIRST_WITH_PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return InitProducerIdResponse(error_code=code, producer_id=reply.producer_id, producer_epoch=reply.epoch)

    def refuse(self, request: InitProducerIdRequest, code: ErrorCode, message: str | None) -> InitProducerIdResponse:
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)


class WithoutTwoPhaseCommitHandler(InitProducerIdHandler):
    """For brokers with transaction.two.phase.commit.enable=false."""

    max_version: ClassVar = 5
