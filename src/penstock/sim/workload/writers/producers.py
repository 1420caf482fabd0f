"""Writers that never give up: idempotent lanes with acks=all, and a plain one with acks=1.

A lane is one producer id on one partition. It sends several batches at once. After an error it sends all
unacknowledged batches again, in order and with the same sequence numbers, to the current leader. So each of its records
is in the log exactly once and in order; otherwise the broker is at fault. Must not know: faults, checkers.

If brokers forget idle producers, a lane acts like a careful client: after half of that time it does not retry, but
starts again with another id. Then, and after a long silence, it sends one batch alone, because a broker that does not
know a lane accepts any first sequence number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf

from penstock.model.errors import ApiError, ErrorCode
from penstock.records.builder import Record, build_batch
from penstock.sim.judges.history import History, Outcome, Place, Violation, Write
from penstock.sim.workload.caller import TROUBLE, Caller
from penstock.wire.apis import Api
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.primitives import NULL_UUID, Message
from penstock.wire_client.requests.errors import error_code

ACKS_ALL, ACKS_LEADER = -1, 1
MAX_IN_FLIGHT = 5
MAX_RECORDS = 4
PADDING = b"." * 200
RETRY_S = 0.05
SLEEP_CHANCE = 0.1
SLEEPS = 2.5
"""Factor for the expiry time: brokers check for idle producers only now and then."""
LONGEST_RETRY_S = 0.4
GIVE_UP_AFTER = 40
# The broker kept nothing: a batch that is not idempotent counts as refused.
NOT_APPENDED = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
    )
)


@dataclass(slots=True)
class _Batch:
    data: bytes
    writes: list[Write]

    def acknowledge(self, history: History, base_offset: int) -> None:
        for delta, write in enumerate(self.writes):
            history.end_write(write, Outcome.ACKNOWLEDGED, base_offset + delta)


def _request(place: Place, data: bytes, acks: int, timeout_ms: int, topic_id: bytes | None = None) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=place.topic,
                topic_id=topic_id or NULL_UUID,
                partition_data=[PartitionProduceData(index=place.partition, records=data)],
            )
        ],
    )


def _result(answer: ProduceResponse) -> PartitionProduceResponse:
    return answer.responses[0].partition_responses[0]


def numbered_record(write: Write, now_ms: int) -> Record:
    return Record(None, write.value + b" " + PADDING, (), now_ms)


class IdempotentLane:
    def __init__(
        self,
        caller: Caller,
        history: History,
        place: Place,
        now_ms: Callable[[], int],
        forgotten_after_s: float | None = None,
        record_of: Callable[[Write, int], Record] = numbered_record,
    ) -> None:
        self._record_of = record_of
        self._caller = caller
        self._history = history
        self._now_ms = now_ms
        self._forgotten_after_s = forgotten_after_s
        self._lives = 1
        self._acknowledged_s = -inf
        self.place = place
        self.name = f"{caller.name}:{place}"
        self.producer_id = -1
        self.epoch = 0
        self.next_number = 0
        """Number of the next record, and its sequence number."""
        self._out_of_order = 0
        self.may_be_forgotten = False
        """Whether older batches may be recognised as repeats only by their number, because compaction removed them."""
        self.between: Callable[[], Awaitable[None]] | None = None
        """Awaited between two requests that are in flight together; None: they are sent at once."""
        self.is_gone: Callable[[], bool] = lambda: False
        """Whether its topic is gone: unacknowledged batches will never be acknowledged."""

    async def run(self, is_over: Callable[[], bool], pause_s: float) -> None:
        random = self._caller.random
        while not is_over():
            await self.introduce()
            batches = [self.batch() for _ in range(1 if self._may_be_unknown() else random.randint(1, MAX_IN_FLIGHT))]
            await self.deliver(batches)
            await self._caller.pause(pause_s)
            if self._forgotten_after_s is not None and random.random() < SLEEP_CHANCE and not is_over():
                await self._caller.pause(SLEEPS * self._forgotten_after_s)
                self._caller.counts["slept"] += 1

    def _may_be_unknown(self) -> bool:
        """Or forgotten before the next batches arrive."""
        if self._forgotten_after_s is None:
            return False
        return asyncio.get_running_loop().time() - self._acknowledged_s > self._forgotten_after_s / 4

    async def introduce(self) -> None:
        while self.producer_id < 0:
            try:
                answer = await self._caller.ask(
                    self._caller.any_address(),
                    Api.INIT_PRODUCER_ID,
                    InitProducerIdRequest(transactional_id=None),
                    InitProducerIdResponse,
                    purpose=self.name,
                )
                if answer.error_code:
                    raise ApiError(error_code(answer.error_code), "no producer id")
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            except TROUBLE as error:
                self._caller.note(error)
                await self._caller.pause(RETRY_S)

    def batch(self) -> _Batch:
        first = self.next_number
        writes = [
            self._history.begin_write(self.place, self.name, number, ACKS_ALL, is_idempotent=True)
            for number in range(first, first + self._caller.random.randint(1, MAX_RECORDS))
        ]
        self.next_number += len(writes)
        now_ms = self._now_ms()
        data = build_batch(
            [self._record_of(write, now_ms) for write in writes],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=first,
        )
        return _Batch(data, writes)

    async def deliver(self, batches: Sequence[_Batch]) -> None:
        waiting = list(batches)
        self._out_of_order = tries = 0
        time, patience_s = asyncio.get_running_loop().time, (self._forgotten_after_s or inf) / 2
        until_s = time() + patience_s
        while waiting and not self.is_gone():
            if time() > until_s:
                self._begin_anew(waiting)
                return
            if self._out_of_order >= GIVE_UP_AFTER:
                raise Violation(
                    "a repeated batch is recognised",
                    f"{self.name} repeats number {waiting[0].writes[0].number} on {self.place} and hears "
                    f"OUT_OF_ORDER_SEQUENCE_NUMBER repeatedly; the batches before were acknowledged",
                )
            try:
                waiting = await self._try(waiting)
            except TROUBLE as error:
                self._caller.note(error)
            if waiting:
                await self._caller.pause(min(RETRY_S * 2**tries, LONGEST_RETRY_S))
                await self._caller.look_again(self.place)
                tries = min(tries + 1, 10)

    def _begin_anew(self, batches: Sequence[_Batch]) -> None:
        """The outcome is unknown, and a retry could write the batches twice."""
        for write in (write for batch in batches for write in batch.writes):
            self._history.end_write(write, Outcome.UNKNOWN, -1)
        self._caller.counts["gave up"] += 1
        self._lives += 1
        self.name = f"{self._caller.name}:{self.place}#{self._lives}"
        self.producer_id, self.next_number, self._acknowledged_s = -1, 0, -inf

    async def _try(self, batches: list[_Batch]) -> list[_Batch]:
        """Return the batches that must be sent again, in order."""
        caller = self._caller
        leader = await caller.leader(self.place)
        connection = await caller.connection(caller.address_of(leader.node_id), self.name)
        timeout_ms = round(caller.patience_s * 700)
        topic_id = caller.id_of(self.place.topic)
        sent: list[asyncio.Future[Message]] = []
        for batch in batches:
            if sent and self.between is not None:
                await self.between()
            request = _request(self.place, batch.data, ACKS_ALL, timeout_ms, topic_id)
            sent.append(connection.send(Api.PRODUCE, request, has_topic_ids=topic_id is not None))
        left: list[_Batch] = []
        for batch, future in zip(batches, sent, strict=True):
            try:
                result = _result(await caller.answer(connection, future, ProduceResponse))
            except TROUBLE as error:
                caller.note(error)
                left.append(batch)
                continue
            if result.error_code:
                caller.counts[error_code(result.error_code).name] += 1
                if self.may_be_forgotten and result.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    continue  # it counts as stored, at an unknown offset
                if not left and result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    self._out_of_order += 1
                left.append(batch)
            else:
                batch.acknowledge(self._history, result.base_offset)
                self._acknowledged_s = asyncio.get_running_loop().time()
        return left


class PlainWriter:
    """acks=1, each record sent once: it may be lost, and must never appear twice or out of order."""

    acks = ACKS_LEADER

    def __init__(self, caller: Caller, history: History, place: Place, now_ms: Callable[[], int]) -> None:
        self._caller = caller
        self._history = history
        self._now_ms = now_ms
        self.place = place
        self.name = f"{caller.name}:{place}"
        self._number = 0

    async def run(self, is_over: Callable[[], bool], pause_s: float) -> None:
        while not is_over():
            await self._send()
            await self._caller.pause(pause_s)

    async def _send(self) -> None:
        caller = self._caller
        write = self._history.begin_write(self.place, self.name, self._number, self.acks, is_idempotent=False)
        self._number += 1
        outcome, offset = Outcome.REFUSED, -1
        try:
            leader = await caller.leader(self.place)
            connection = await caller.connection(caller.address_of(leader.node_id), self.name)
            outcome = Outcome.UNKNOWN
            data = build_batch([numbered_record(write, self._now_ms())])
            future = connection.send(Api.PRODUCE, _request(self.place, data, self.acks, 1000))
            result = _result(await caller.answer(connection, future, ProduceResponse))
            code = error_code(result.error_code)
            if code is ErrorCode.NONE:
                outcome, offset = Outcome.ACKNOWLEDGED, result.base_offset
            elif code in NOT_APPENDED:
                outcome = Outcome.REFUSED
                raise ApiError(code, "refused")
        except TROUBLE as error:
            caller.note(error)
            await caller.look_again(self.place)
        self._history.end_write(write, outcome, offset)
