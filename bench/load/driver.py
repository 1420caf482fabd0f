"""The producing load: prebuilt requests on one epoll loop in one thread, with one connection per partition.

There is only one thread: on a small machine a second one would compete with the broker for a core and with the first
one for the interpreter's lock. Almost all of its time is in send and recv. Every request has its own correlation id,
and every answer is checked for it and for its error code: a run either is clean or raises.

It knows the protocol and the clock, never the broker, its process or the use of the numbers.

Latency is open loop: request i is due at start + i / rate, whether or not earlier ones were answered, and its latency
counts from that moment. So a stall shows in every request that it delayed.
"""

from __future__ import annotations

import ctypes
import gc
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.load import wire
from bench.load.client import HOST

_CORRELATION = struct.Struct(">i")
ANSWER_HEAD = struct.Struct(">ii")  # frame length, correlation id
_ERROR = struct.Struct(">h")

STALL_S = 60.0  # without an answer for this time the run has failed
IN_FLIGHT = 5  # requests by connection, the default of stock producers

_PR_SET_TIMERSLACK = 29


class LoadFailed(RuntimeError):
    """The run is invalid: the broker hung up, stalled, answered the wrong request or returned the wrong data."""


@dataclass(frozen=True, slots=True)
class ProduceLoad:
    topic: str
    partitions: int
    record_bytes: int
    batch_bytes: int
    """Size of a batch; a batch holds at least one record."""
    request_count: int
    max_seconds: float
    """No new request after this; what is in flight is still awaited and counted."""
    in_flight: int = IN_FLIGHT

    @property
    def records_per_request(self) -> int:
        return wire.records_per_batch(self.record_bytes, self.batch_bytes)


@dataclass(frozen=True, slots=True)
class RateLoad:
    topic: str
    partitions: int
    record_bytes: int
    requests_per_s: float
    warm_seconds: float
    """Sent at the same rate before the measured part, not counted."""
    seconds: float
    drain_seconds: float = 5.0
    """How long after the last send was due answers are awaited; what is missing then counts as this late."""


@dataclass(frozen=True, slots=True)
class Throughput:
    seconds: float
    requests: int
    records: int
    value_bytes: int
    driver_cpu_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    seconds: float
    requests: int
    driver_cpu_s: float
    unanswered: int
    sorted_s: Sequence[float]
    """Latencies of the measured requests, sorted."""
    sorted_late_s: Sequence[float]
    """How late the driver itself handed a request to the socket, sorted: its own part in the latency."""


def percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def connect(port: int) -> socket.socket:
    sock = socket.create_connection((HOST, port), timeout=10.0)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """No garbage collection in the middle of a measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _ProducePipe:
    """One connection that sends one prebuilt request again and again."""

    __slots__ = ("_at", "_buffer", "_error_at", "_filled", "_frame", "_view", "answered", "fd", "sent", "sock", "wants")

    def __init__(self, port: int, topic: str, partition: int, batch: bytes) -> None:
        self.sock = connect(port)
        self.fd = self.sock.fileno()
        self._frame = wire.produce_request(topic, partition, batch)
        self._view = memoryview(self._frame)
        self._error_at = 4 + wire.produce_error_at(topic)
        self._at = 0  # bytes of the current request already sent
        self._buffer = bytearray(1 << 16)
        self._filled = 0
        self.sent = 0
        self.answered = 0
        self.wants = select.EPOLLIN

    def started(self) -> int:
        """Requests of which at least one byte has left: these must be finished."""
        return self.sent + (self._at > 0)

    def send_until(self, count: int) -> bool:
        """Send whole requests until `count` have left. False when the socket takes no more."""
        send, view, size = self.sock.send, self._view, len(self._frame)
        while self.sent < count:
            at = self._at
            if at == 0:
                _CORRELATION.pack_into(self._frame, wire.CORRELATION_AT, self.sent & 0x7FFFFFFF)
            try:
                at += send(view[at:] if at else view)
            except BlockingIOError:
                return False
            if at == size:
                self._at = 0
                self.sent += 1
            else:
                self._at = at
        return True

    def receive(self) -> int:
        """Take the answers that are there; how many."""
        buffer = self._buffer
        filled = self._filled
        try:
            count = self.sock.recv_into(memoryview(buffer)[filled:])
        except BlockingIOError:
            return 0
        if count == 0:
            raise LoadFailed("the broker closed the connection")
        filled += count
        at = answers = 0
        while filled - at >= 8:
            size, correlation = ANSWER_HEAD.unpack_from(buffer, at)
            if filled - at < 4 + size:
                break
            if correlation != (self.answered + answers) & 0x7FFFFFFF:
                raise LoadFailed(f"answer {correlation} where {self.answered + answers} was due")
            (error,) = _ERROR.unpack_from(buffer, at + self._error_at)
            if error:
                raise wire.BrokerError("produce", error)
            answers += 1
            at += 4 + size
        if at < filled:
            buffer[: filled - at] = buffer[at:filled]
        self._filled = filled - at
        self.answered += answers
        return answers


def _want(poller: select.epoll, pipe: _ProducePipe, drained: bool) -> None:
    wants = select.EPOLLIN if drained else select.EPOLLIN | select.EPOLLOUT
    if wants != pipe.wants:
        poller.modify(pipe.fd, wants)
        pipe.wants = wants


Ports = int | Sequence[int]
"""One broker's, or that of each partition's leader."""


def _connected(ports: Ports, topic: str, partitions: int, batch: bytes) -> list[_ProducePipe]:
    by_partition = [ports] * partitions if isinstance(ports, int) else ports
    return [_ProducePipe(port, topic, partition, batch) for partition, port in enumerate(by_partition)]


def produce(ports: Ports, load: ProduceLoad) -> Throughput:
    """Closed loop: every connection keeps `in_flight` requests under way until all are acknowledged."""
    records = load.records_per_request
    batch = wire.random_batch(load.record_bytes, records)
    each = max(1, load.request_count // load.partitions)
    pipes = {pipe.fd: pipe for pipe in _connected(ports, load.topic, load.partitions, batch)}
    poller = select.epoll()
    try:
        for pipe in pipes.values():
            poller.register(pipe.fd, select.EPOLLIN)
        with quiet_interpreter():
            cpu, start = time.process_time(), time.perf_counter()
            _produce_loop(poller, pipes, each, load.in_flight, start + load.max_seconds)
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    finally:
        poller.close()
        for pipe in pipes.values():
            pipe.sock.close()
    requests = sum(pipe.answered for pipe in pipes.values())
    return Throughput(seconds, requests, requests * records, requests * records * load.record_bytes, cpu)


def _produce_loop(
    poller: select.epoll, pipes: dict[int, _ProducePipe], each: int, in_flight: int, deadline: float
) -> None:
    goal = dict.fromkeys(pipes, each)
    unfinished = len(pipes)
    for pipe in pipes.values():
        _want(poller, pipe, pipe.send_until(min(each, in_flight)))
    stopping = False
    while unfinished:
        events = poller.poll(STALL_S)
        if not events:
            raise LoadFailed(f"no answer for {STALL_S:.0f} s")
        if not stopping and time.perf_counter() > deadline:
            stopping = True
            for fd, pipe in pipes.items():
                goal[fd] = min(each, pipe.started())
                # A connection between two requests has nothing more to wait for.
                unfinished -= pipe.answered < each and pipe.answered == goal[fd]
        for fd, event in events:
            pipe, last = pipes[fd], goal[fd]
            if pipe.answered >= last:
                continue
            if event & ~select.EPOLLOUT and pipe.receive() and pipe.answered >= last:
                unfinished -= 1
                continue
            limit = pipe.answered + in_flight
            _want(poller, pipe, pipe.send_until(limit if limit < last else last))


def rate(ports: Ports, load: RateLoad) -> Latency:
    """Open loop: requests leave when they are due, round robin over the partitions."""
    _fine_timers()
    batch = wire.random_batch(load.record_bytes, 1)
    pipes = _connected(ports, load.topic, load.partitions, batch)
    poller = select.epoll()
    try:
        for pipe in pipes:
            poller.register(pipe.fd, select.EPOLLIN)
        skip = int(load.requests_per_s * load.warm_seconds)
        total = skip + int(load.requests_per_s * load.seconds)
        latency, late = [-1.0] * total, [0.0] * total
        with quiet_interpreter():
            cpu, begin = time.process_time(), time.perf_counter()
            end = _rate_loop(poller, pipes, load, latency, late)
            cpu = time.process_time() - cpu
    finally:
        poller.close()
        for pipe in pipes:
            pipe.sock.close()
    unanswered = 0
    for i in range(skip, total):
        if latency[i] < 0:
            unanswered += 1
            latency[i] = end - i / load.requests_per_s
    return Latency(
        seconds=time.perf_counter() - begin,
        requests=total,
        driver_cpu_s=cpu,
        unanswered=unanswered,
        sorted_s=sorted(latency[skip:]),
        sorted_late_s=sorted(late[skip:]),
    )


def _rate_loop(
    poller: select.epoll, pipes: list[_ProducePipe], load: RateLoad, latency: list[float], late: list[float]
) -> float:
    """Fill `latency` and `late` by request; returns how long after the start the last answer was awaited."""
    clock = time.perf_counter
    total, count, interval = len(latency), len(pipes), 1 / load.requests_per_s
    index_of = {pipe.fd: index for index, pipe in enumerate(pipes)}
    due_by_pipe = [0] * count
    issued = answered = 0
    start = clock() + 0.05
    give_up = start + total * interval + load.drain_seconds
    ready = [poller.fileno()]
    while answered < total:
        now = clock()
        while issued < total and start + issued * interval <= now:
            index = issued % count
            due_by_pipe[index] += 1
            pipe = pipes[index]
            _want(poller, pipe, pipe.send_until(due_by_pipe[index]))
            late[issued] = clock() - start - issued * interval
            issued += 1
        if now > give_up:
            break
        # epoll waits in whole milliseconds; select on its descriptor waits in microseconds.
        wait = (start + issued * interval if issued < total else give_up) - clock()
        if not select.select(ready, (), (), wait if wait > 0 else 0)[0]:
            continue
        for fd, event in poller.poll(0):
            index = index_of[fd]
            pipe = pipes[index]
            if event & ~select.EPOLLOUT:
                first = pipe.answered
                got = pipe.receive()
                now = clock() - start
                for k in range(first, first + got):
                    i = k * count + index
                    latency[i] = now - i * interval
                answered += got
            _want(poller, pipe, pipe.send_until(due_by_pipe[index]))
    return clock() - start


def _fine_timers() -> None:
    """Ask the kernel to wake this thread within a microsecond rather than its default fifty."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
