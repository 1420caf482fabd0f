"""The load of transactional producers: each writes a transaction's batches, commits, and begins the next one.

As in `driver`: one thread, one epoll loop, prebuilt requests, every answer checked. Each producer has a transactional
id, one connection and one partition. It commits when all batches are acknowledged, and goes on with the epoch that the
answer names. A broker that still ends the transaction before may refuse the next one for a moment. Then the producer
sends the batches again after a pause.

After the load every partition must have exactly the committed records and the markers below its last stable offset.
"""

from __future__ import annotations

import select
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.load import transaction_wire, wire
from bench.load.client import Client
from bench.load.driver import ANSWER_HEAD, IN_FLIGHT, STALL_S, LoadFailed, connect, quiet_interpreter
from bench.load.transaction_wire import Identity, ProduceFrame
from penstock.model.errors import ErrorCode

TIMEOUT_MS = 60_000
BACKOFF_S = 0.02
BEGIN_WITHIN_S = 60.0
VISIBLE_WITHIN_S = 30.0

_COMMIT = -1  # beside the numbers of batches
_CORRELATION = struct.Struct(">i")
_ERROR = struct.Struct(">h")
_OFFSET = struct.Struct(">q")

_NOT_YET = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,  # also said while the coordinator does not answer the leader
    )
)


@dataclass(frozen=True, slots=True)
class TransactionLoad:
    topic: str
    producers: int
    """One for each partition of the topic."""
    record_bytes: int
    records_each: int
    """In a transaction."""
    batch_bytes: int
    transaction_count: int
    max_seconds: float
    """No transaction begins after this; those under way are still awaited and counted."""

    @property
    def batches(self) -> int:
        """So many of one size make up a transaction."""
        count = -(-self.records_each // wire.records_per_batch(self.record_bytes, self.batch_bytes))
        while self.records_each % count:
            count += 1
        return count


@dataclass(slots=True)
class Committed:
    """The commits of a run."""

    seconds: float = 0.0
    transactions: int = 0
    records: int = 0
    value_bytes: int = 0
    refused: int = 0
    """How often a transaction had to wait for the one before."""
    driver_cpu_s: float = 0.0
    sorted_s: Sequence[float] = field(default_factory=list)
    """Of each transaction, from its first batch to its committed end."""


class _Producer:
    __slots__ = (
        "_answers",
        "_at",
        "_batches",
        "_buffer",
        "_due",
        "_error_at",
        "_filled",
        "_frame",
        "_identity",
        "_is_ending",
        "_is_refused",
        "_name",
        "_outgoing",
        "_records",
        "_sent",
        "_started_at",
        "acknowledged",
        "committed",
        "fd",
        "is_open",
        "pause_until",
        "refused",
        "seconds",
        "sock",
        "wants",
    )

    def __init__(self, port: int, name: str, identity: Identity, load: TransactionLoad, partition: int) -> None:
        self.sock = connect(port)
        self.fd = self.sock.fileno()
        self.wants = select.EPOLLIN
        self._name, self._identity = name, identity
        self._batches, self._records = load.batches, load.records_each // load.batches
        batch = wire.random_batch(load.record_bytes, self._records)
        self._frame = ProduceFrame(name, load.topic, partition, batch)
        self._error_at = wire.produce_error_at(load.topic)
        self._buffer = bytearray(1 << 16)
        self._filled = self._answers = 0
        self._outgoing: memoryview | None = None
        self._at = 0  # bytes of the outgoing request already sent
        self._due: deque[int] = deque()
        self._sent = self.acknowledged = 0  # batches of this transaction
        self._is_ending = self._is_refused = False
        self._started_at = 0.0
        self.is_open = False
        self.pause_until = 0.0
        self.committed = self.refused = 0
        self.seconds: list[float] = []

    def begin(self) -> None:
        self.is_open = True
        self._sent = self.acknowledged = 0
        self._is_ending = self._is_refused = False
        self._started_at = time.perf_counter()

    def send(self) -> bool:
        """Send what may leave. False when the socket takes no more."""
        while True:
            if self._outgoing is None and not self._choose():
                return True
            assert self._outgoing is not None
            try:
                self._at += self.sock.send(self._outgoing[self._at :])
            except BlockingIOError:
                return False
            if self._at == len(self._outgoing):
                self._outgoing, self._at = None, 0

    def _choose(self) -> bool:
        """Takes the next request. False: there is none, or its time has not come."""
        if not self.is_open or self._is_refused or self.pause_until:
            return False
        if self._sent < self._batches and self._sent - self.acknowledged < IN_FLIGHT:
            self._frame.stamp(self._identity, self._sent * self._records)
            self._begin_sending(self._frame.frame, self._sent)
            self._sent += 1
            return True
        if self.acknowledged == self._batches and not self._is_ending:
            self._is_ending = True
            self._begin_sending(transaction_wire.end_request(self._name, self._identity, is_commit=True), _COMMIT)
            return True
        return False

    def _begin_sending(self, frame: bytearray, what: int) -> None:
        _CORRELATION.pack_into(frame, wire.CORRELATION_AT, (self._answers + len(self._due)) & 0x7FFFFFFF)
        self._due.append(what)
        self._outgoing = memoryview(frame)

    def receive(self) -> bool:
        """Take the answers that are there. Returns whether the transaction is committed."""
        try:
            count = self.sock.recv_into(memoryview(self._buffer)[self._filled :])
        except BlockingIOError:
            return False
        if count == 0:
            raise LoadFailed("the broker closed the connection")
        self._filled += count
        at, was_open = 0, self.is_open
        while self._filled - at >= 8:
            size, correlation = ANSWER_HEAD.unpack_from(self._buffer, at)
            if self._filled - at < 4 + size:
                break
            if correlation != self._answers & 0x7FFFFFFF:
                raise LoadFailed(f"answer {correlation} where {self._answers} was due")
            self._answers += 1
            self._take(memoryview(self._buffer)[at + 4 : at + 4 + size], self._due.popleft())
            at += 4 + size
        self._buffer[: self._filled - at] = self._buffer[at : self._filled]
        self._filled -= at
        if self._is_refused and not self._due:
            self._is_refused, self._sent = False, self.acknowledged
            self._pause()
        return was_open and not self.is_open

    def _take(self, answer: memoryview, what: int) -> None:
        if what == _COMMIT:
            self._end(transaction_wire.read_ended(answer))
            return
        (error,) = _ERROR.unpack_from(answer, self._error_at)
        if self._is_refused:
            return  # the batches behind a refused one are refused, too
        if not error:
            self.acknowledged += 1
        elif error in _NOT_YET:
            self._is_refused = True
        else:
            raise wire.BrokerError("produce in a transaction", error)

    def _end(self, ended: transaction_wire.Ended) -> None:
        if ended.error in _NOT_YET:
            self._is_ending = False
            self._pause()
            return
        if ended.error:
            raise wire.BrokerError("commit", ended.error)
        if ended.next == self._identity:
            raise LoadFailed("the epoch has not risen: the load needs transaction.version 2")
        self._identity = ended.next
        self.is_open = False
        self.committed += 1
        self.seconds.append(time.perf_counter() - self._started_at)

    def _pause(self) -> None:
        self.refused += 1
        self.pause_until = time.perf_counter() + BACKOFF_S


def coordinator_of(client: Client, transactional_id: str) -> transaction_wire.Coordinator:
    """The first call makes the broker create the coordinator's topic."""
    return transaction_wire.read_coordinator(client.call(transaction_wire.find_coordinator_request(transactional_id)))


def begin(client: Client, transactional_id: str) -> Identity:
    """The first request of a transactional id, on its coordinator. Waits until that is served."""
    deadline = time.monotonic() + BEGIN_WITHIN_S
    while True:
        error = coordinator_of(client, transactional_id).error
        if not error:
            request = transaction_wire.init_producer_id_request(transactional_id, TIMEOUT_MS)
            error, identity = transaction_wire.read_ended(memoryview(client.call(request)))
            if not error:
                return identity
        if error not in _NOT_YET or time.monotonic() > deadline:
            raise wire.BrokerError(f"begin with transactional id {transactional_id}", error)
        time.sleep(0.01)


def run(port: int, load: TransactionLoad) -> Committed:
    """Closed loop: every producer has one transaction under way until all are committed."""
    names = [f"{load.topic}-{partition}" for partition in range(load.producers)]
    with Client(port) as client:
        identities = [begin(client, name) for name in names]
    pairs = zip(names, identities, strict=True)
    found = (_Producer(port, name, identity, load, number) for number, (name, identity) in enumerate(pairs))
    producers = {producer.fd: producer for producer in found}
    poller = select.epoll()
    try:
        for producer in producers.values():
            poller.register(producer.fd, select.EPOLLIN)
        with quiet_interpreter():
            cpu, start = time.process_time(), time.perf_counter()
            _loop(poller, producers, load.transaction_count, start + load.max_seconds)
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    finally:
        poller.close()
        for producer in producers.values():
            producer.sock.close()
    committed = [producer.committed for producer in producers.values()]
    _check_visible(port, load, committed)
    records = sum(committed) * load.records_each
    return Committed(
        seconds=seconds,
        transactions=sum(committed),
        records=records,
        value_bytes=records * load.record_bytes,
        refused=sum(producer.refused for producer in producers.values()),
        driver_cpu_s=cpu,
        sorted_s=sorted(one for producer in producers.values() for one in producer.seconds),
    )


def _loop(poller: select.epoll, producers: dict[int, _Producer], count: int, deadline: float) -> None:
    left = count - len(producers)
    working = len(producers)
    for producer in producers.values():
        producer.begin()
        _send(poller, producer)
    while working:
        paused = [producer for producer in producers.values() if producer.pause_until]
        now = time.perf_counter()
        wait_s = max(0.0, min(one.pause_until for one in paused) - now) if paused else STALL_S
        events = poller.poll(wait_s)
        if not events and not paused:
            raise LoadFailed(f"no answer for {STALL_S:.0f} s")
        now = time.perf_counter()
        for fd, event in events:
            producer = producers[fd]
            if event & ~select.EPOLLOUT and producer.receive():
                if left > 0 and now < deadline:
                    left -= 1
                    producer.begin()
                else:
                    working -= 1
            _send(poller, producer)
        for producer in paused:
            if producer.pause_until <= now:
                producer.pause_until = 0.0
                _send(poller, producer)


def _send(poller: select.epoll, producer: _Producer) -> None:
    wants = select.EPOLLIN if producer.send() else select.EPOLLIN | select.EPOLLOUT
    if wants != producer.wants:
        poller.modify(producer.fd, wants)
        producer.wants = wants


def _check_visible(port: int, load: TransactionLoad, committed: Sequence[int]) -> None:
    """Waits until readers of committed records see everything: the records and one marker for each transaction."""
    deadline = time.monotonic() + VISIBLE_WITHIN_S
    with Client(port) as client:
        for partition, count in enumerate(committed):
            end = count * (load.records_each + 1)
            request = wire.fetch_request(load.topic, partition, max_bytes=1, max_wait_ms=0, committed=True)
            _OFFSET.pack_into(request.frame, request.offset_at, end)
            while True:
                found = wire.read_fetch(memoryview(client.call(request.frame)), load.topic)
                if found.error and found.error != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise wire.BrokerError("fetch of committed records", found.error)
                if not found.error and found.last_stable_offset == found.high_watermark == end:
                    break
                if time.monotonic() > deadline:
                    raise LoadFailed(
                        f"{load.topic}-{partition} has {found.last_stable_offset} stable offsets of "
                        f"{found.high_watermark}, and {end} were committed"
                    )
                time.sleep(0.01)
