"""A transactional producer over the wire, of transaction version 0 or 2, as a careful client.

- Version 0 adds partitions itself, and its epoch stays. A request of it that was not answered may arrive late, and in
  the next transaction it would count. So after such a one it asks for a higher epoch before it goes on (KIP-360).
- Version 2 leaves partitions to the broker, and each end of a transaction gives it another epoch. So late requests
  are refused, and it sends some requests twice, the second time much later.
- Under two-phase commit its transactions have no timeout. Another producer that knows its producer id and epoch ends
  them in its place (`resume`).

Three exceptions end its work: the transaction has to be aborted, this producer is over, or its process is gone. Must
not know: what is in the records, faults, checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.model.addresses import Address
from penstock.model.errors import ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import TRANSACTIONAL_BIT
from penstock.records.builder import Record, build_batch
from penstock.sim.judges.history import Place
from penstock.sim.judges.transactions import Attempt, Begun, Ending, SentRecord, TransactionHistory
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.sim.workload.transactions.calls import Temper, TransactionalCalls, unheard
from penstock.sim.workload.transactions.codes import (
    DECIDED_AGAINST,
    OVER,
    PASSING,
    MustAbort,
    NotTold,
    ProducerOver,
)
from penstock.wire.apis import Api
from penstock.wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.produce import ProduceResponse
from penstock.wire.messages.txn_offset_commit import TxnOffsetCommitResponse
from penstock.wire.primitives import Message
from penstock.wire_client.requests.errors import error_code
from penstock.wire_client.requests.groups import OffsetAndMetadata
from penstock.wire_client.requests.produce import ACKS_ALL, produce_request
from penstock.wire_client.requests.producing_transactions import (
    ADDED_BY_BROKERS,
    OpenTransaction,
    add_group_request,
    add_partitions_request,
    commit_offsets_request,
    end_request,
)

R = TypeVar("R", bound=Message)

PADDING = b"." * 40
DAWDLES_CHANCE = 0.6


class TransactionalProducer:
    def __init__(
        self,
        caller: Caller,
        history: TransactionHistory,
        transactional_id: str,
        instance: int,
        temper: Temper,
        now_ms: Callable[[], int],
    ) -> None:
        self._caller = caller
        self._history = history
        self.transactional_id = transactional_id
        self.instance = instance
        self.timeout_ms = temper.timeout_ms
        self.version = temper.version
        self.is_two_phase = temper.is_two_phase
        self._now_ms = now_ms
        self._calls = TransactionalCalls(caller, history, transactional_id, instance, temper)
        self.producer_id = self.epoch = -1
        self._sequences: dict[Place, int] = {}

    @property
    def under_way(self) -> list[asyncio.Future[None]]:
        return self._calls.under_way

    def _transaction(self) -> OpenTransaction:
        """As of now: each end may change the epoch."""
        return OpenTransaction(
            self.transactional_id, self.producer_id, self.epoch, self.version, is_two_phase=self.is_two_phase
        )

    @property
    def adds_partitions(self) -> bool:
        return self.version < ADDED_BY_BROKERS

    # -- a producer begins --------------------------------------------------------------

    async def begin(self) -> None:
        """Raises ProducerOver."""
        code = await self._calls.until_told(self._ask_to_begin)
        if code is not ErrorCode.NONE:
            raise ProducerOver(code.name)
        self._calls.is_in_doubt = False

    async def refresh(self) -> None:
        """Before the next transaction: nothing that may still arrive shall count in it."""
        if self.adds_partitions and self._calls.is_in_doubt:
            await self.begin()

    async def _ask_to_begin(self) -> ErrorCode:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            enable2_pc=self.is_two_phase,
        )
        asked_s = self._history.time()
        asked = self._history.asks_to_begin(self.transactional_id, self.instance)
        address = await self._calls.coordinator()
        answer = await self._calls.send(address, Api.INIT_PRODUCER_ID, request, InitProducerIdResponse, "begin")
        code = error_code(answer.error_code)
        if not self._calls.may_come_late(Api.INIT_PRODUCER_ID):
            asked.until_s = self._history.time()
        if code is ErrorCode.NONE:
            self._go_on_as(answer.producer_id, answer.producer_epoch)
            self._history.begins(
                Begun(
                    self.transactional_id,
                    self.instance,
                    self.producer_id,
                    self.epoch,
                    asked_s,
                    self._history.time(),
                )
            )
        return code

    def resume(self, producer_id: int, epoch: int, *, vanishes_chance: float) -> None:
        """To end the transaction that another producer has prepared; perhaps without hearing the answer."""
        self.producer_id, self.epoch = producer_id, epoch
        self._calls.vanishes_at_end_chance = vanishes_chance

    def _go_on_as(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    # -- a transaction ------------------------------------------------------------------

    async def add_partitions(self, places: list[Place]) -> None:
        request = add_partitions_request(self._transaction(), [TopicPartition(*place) for place in places])

        async def ask() -> ErrorCode:
            address = await self._calls.coordinator()
            answer = await self._calls.send(
                address, Api.ADD_PARTITIONS_TO_TXN, request, AddPartitionsToTxnResponse, "add"
            )
            codes = [
                error_code(one.partition_error_code)
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            ]
            return next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)

        await self._calls.told(ask)

    async def produce(self, sent: list[SentRecord]) -> None:
        """One batch, to the place that all of these have."""
        place = sent[0].place
        batch = self._batch(sent)
        ask = self._producing(place, batch, sent)
        code = await self._calls.until_told(ask)
        if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return  # it is there, and nobody knows where
        if code is not ErrorCode.NONE:
            self._calls.is_in_doubt = True  # nobody knows which sequence number is next
        if code in OVER:
            raise ProducerOver(code.name)
        if code is not ErrorCode.NONE:
            raise MustAbort(code.name)

    def send_carelessly(self, sent: list[SentRecord]) -> None:
        """And wait for no answer; perhaps the network keeps it for a while."""
        self._calls.is_in_doubt = True
        ask = self._producing(sent[0].place, self._batch(sent), sent)
        self._calls.leave_behind(self._dawdle(ask))

    async def _dawdle(self, ask: Callable[[], Awaitable[object]]) -> None:
        if self._caller.random.random() < DAWDLES_CHANCE:
            await asyncio.sleep(self._calls.late_s())
        await unheard(ask())

    def _batch(self, sent: list[SentRecord]) -> bytes:
        place, now_ms = sent[0].place, self._now_ms()
        first = self._sequences.get(place, 0)
        self._sequences[place] = first + len(sent)
        return build_batch(
            [Record(None, one.value + b" " + PADDING, (), now_ms) for one in sent],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=first,
            attributes=TRANSACTIONAL_BIT,
        )

    def _producing(self, place: Place, batch: bytes, sent: list[SentRecord]) -> Callable[[], Awaitable[ErrorCode]]:
        caller = self._caller
        timeout_ms = round(caller.patience_s * 700)
        request = produce_request([(TopicPartition(*place), batch)], ACKS_ALL, timeout_ms, self.transactional_id)

        async def ask() -> ErrorCode:
            address = caller.address_of((await caller.leader(place)).node_id)
            try:
                answer = await self._calls.send(address, Api.PRODUCE, request, ProduceResponse, f"produce {place}")
            except TROUBLE:
                await caller.look_again(place)
                raise
            result = answer.responses[0].partition_responses[0]
            code = error_code(result.error_code)
            if code is ErrorCode.NONE:
                for delta, one in enumerate(sent):
                    one.offset = result.base_offset + delta
            else:
                await caller.look_again(place)
            return code

        return ask

    async def commit_offset(self, group: str, source: Place, offset: int) -> None:
        if self.adds_partitions:
            await self._calls.told(lambda: self._add_offsets(group))
        committed = {TopicPartition(*source): OffsetAndMetadata(offset, "")}
        request = commit_offsets_request(self._transaction(), group, committed)

        async def ask() -> ErrorCode:
            address = await self._calls.group_coordinator(group)
            answer = await self._calls.send(address, Api.TXN_OFFSET_COMMIT, request, TxnOffsetCommitResponse, "offsets")
            return error_code(answer.topics[0].partitions[0].error_code)

        await self._calls.told(ask)

    async def _add_offsets(self, group: str) -> ErrorCode:
        request = add_group_request(self._transaction(), group)
        address = await self._calls.coordinator()
        answer = await self._calls.send(address, Api.ADD_OFFSETS_TO_TXN, request, AddOffsetsToTxnResponse, "add")
        return error_code(answer.error_code)

    # -- its end ------------------------------------------------------------------------

    async def end(self, attempt: Attempt, *, is_commit: bool) -> None:
        """Writes down what came of it. Raises ProducerOver, Vanished."""
        tries = 0 if attempt.asked_s is None else 1
        if attempt.asked_s is None:
            attempt.asked_s = self._history.time()
        attempt.ending = Ending.UNKNOWN if is_commit else Ending.ABORTED
        request = end_request(self._transaction(), is_commit=is_commit)

        async def ask() -> ErrorCode:
            nonlocal tries
            address = await self._calls.coordinator()
            tries += 1
            return await self._ask_to_end(address, request)

        code = await self._calls.until_told(ask)
        attempt.ended_s = self._history.time()
        if code is ErrorCode.NONE:
            attempt.ending = Ending.COMMITTED if is_commit else Ending.ABORTED
            return
        if is_commit and code in DECIDED_AGAINST:
            if tries == 1:
                attempt.ending = Ending.ABORTED
            else:
                attempt.refusal = code.name
        raise NotTold(code.name) if code in PASSING else ProducerOver(code.name)

    async def end_nothing(self, *, is_commit: bool) -> None:
        """End a transaction to which nothing was added; of version 2. Raises ProducerOver, Vanished.

        A coordinator aborts it, and refuses to commit it. After that the commit could arrive again, and in the next
        transaction it would count. So a producer that has asked for one begins anew.
        """
        request = end_request(self._transaction(), is_commit=is_commit)

        async def ask() -> ErrorCode:
            return await self._ask_to_end(await self._calls.coordinator(), request)

        self._history.counts["ends of nothing"] += 1
        code = await self._calls.until_told(ask)
        if is_commit and code is ErrorCode.INVALID_TXN_STATE:
            await self.begin()
        elif code is not ErrorCode.NONE:
            raise ProducerOver(code.name)

    async def _ask_to_end(self, address: Address, request: EndTxnRequest) -> ErrorCode:
        answer = await self._calls.send(address, Api.END_TXN, request, EndTxnResponse, "end")
        code = error_code(answer.error_code)
        if code is ErrorCode.NONE and not self.adds_partitions:
            self._go_on_as(answer.producer_id, answer.producer_epoch)
        return code
