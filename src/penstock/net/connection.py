"""One client connection: it cuts bytes into frames, sends replies in the order of requests, and bounds both sides.

It knows frames and slots, not the meaning of requests. Every request gets the next slot number. Replies may arrive in
any order and are sent in slot order.

Two-stage handling: requests of `pipelined` APIs (produce, fetch) are passed to the handler while earlier ones still
wait for a flush or for data. Any other request is a barrier, as on a Kafka broker: it waits for the answers
to all earlier requests, and all later requests wait for its own answer.

Bounds: frame size by API, requests in flight, queued reply bytes, and memory for requests of all connections together
(`net.request_memory`). Beyond a bound the connection stops reading until the bound is met again. The receive buffer
grows only as bytes really arrive, so that announcing a large frame costs the announcer, not the broker.

Fairness: in one turn of the loop a connection passes on requests worth at most TURN_BUDGET or TURN_S, and it reads at
most MAX_READ_BYTES at a time, or COLD_READ_BYTES into memory that it uses for the first time. Connections with more to
do wait in one line, and one of them is served in each turn (`net.waiting_line`). So a client that sends now and then
waits for at most one budget, however many others send without a pause. Nodes of the cluster have their own turns.

Invariant: the frame that the handler gets is a view of the receive buffer and valid only during the call. A handler
that needs it longer copies it or calls `keep_frame`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import TypeAlias

from penstock.model.errors import ProtocolError, Stranger
from penstock.net.channel import HIGH_WATER_BYTES
from penstock.net.request_memory import RequestMemory
from penstock.net.waiting_line import WaitingLine
from penstock.ports.channel import Channel, Part
from penstock.ports.disk import FileSlice
from penstock.wire.introduction import MAX_FRAME_BYTES as MAX_STRANGER_FRAME_BYTES
from penstock.wire.introduction import PRIVATE_KEYS_FROM

_SIZE_AND_KEY = Struct(">ih")
_SIZE = Struct(">i")
MIN_FRAME_BYTES = 8  # api key, version, correlation id

OTHER_FRAME_BYTES = MAX_STRANGER_FRAME_BYTES  # for keys that are not served: enough to distinguish a frame from garbage

INITIAL_BUFFER_BYTES = 16 << 10
STEADY_BUFFER_BYTES = 1 << 20
MAPPED_BUFFER_BYTES = 128 << 10
SPARE_BYTES = 64 << 10
IDLE_BUFFER_S = 10.0  # after that a connection returns to its initial buffer
MAX_READ_BYTES = 256 << 10
COLD_READ_BYTES = 64 << 10  # into pages that the system has yet to provide: three times as expensive
TURN_BUDGET = 32
TURN_S = 0.00015  # the turn ends after the request that exceeds it; a typical request takes a tenth of it
LARGE_REPLY_BYTES = 16 << 10  # sent at once, so that the time of sending counts
OTHER_COST = 4  # the cost of a request that is not pipelined; others cost 1
MAX_CORKED_PARTS = 64  # replies gathered before they are sent

_numbers = count(1)

Handler: TypeAlias = Callable[["Connection", int, memoryview], None]
Shortcut: TypeAlias = Callable[["Connection", int, memoryview], bool]


class ConnectionLimits:
    """Bounds that the connections of a listener share."""

    __slots__ = (
        "clock",
        "frame_limits",
        "largest_frame_bytes",
        "line",
        "max_frame_bytes",
        "max_in_flight",
        "memory",
        "pipelined",
    )

    def __init__(
        self,
        max_frame_bytes: int,
        max_in_flight: int,
        pipelined: frozenset[int],
        frame_limits: Mapping[int, int] | None = None,
        memory: RequestMemory | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`frame_limits`: by API key; OTHER_FRAME_BYTES for other keys. None: the maximum for all keys.

        Nodes of the cluster may send `max_frame_bytes` for any key. `clock`: bounds the time of a turn. None: only the
        number of requests bounds a turn."""
        self.clock: Callable[[], float] = (lambda: 0.0) if clock is None else clock
        self.line = WaitingLine()
        self.largest_frame_bytes = max_frame_bytes
        self.max_frame_bytes = max_frame_bytes if frame_limits is None else min(OTHER_FRAME_BYTES, max_frame_bytes)
        self.max_in_flight = max_in_flight
        self.pipelined = pipelined
        self.memory = RequestMemory(-1, lambda: 0.0) if memory is None else memory
        self.frame_limits: Mapping[int, int] = {} if frame_limits is None else frame_limits


class Connection:
    __slots__ = (
        "__weakref__",
        "_awaited_capacity",
        "_blocked",
        "_buffer",
        "_corked",
        "_end",
        "_exclusive",
        "_flush_scheduled",
        "_handler",
        "_head_slot",
        "_is_in_line",
        "_limits",
        "_loop",
        "_max_in_flight",
        "_next_slot",
        "_on_closed",
        "_out",
        "_pipelined",
        "_queued_before",
        "_ready",
        "_refusal",
        "_start",
        "_view",
        "_warm",
        "channel",
        "id",
        "is_closed",
        "is_draining",
        "is_peer",
        "last_active",
        "listener_name",
        "number",
        "shortcut",
        "when_blocked",
        "when_closed",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: Channel,
        handler: Handler,
        limits: ConnectionLimits,
        on_closed: Callable[[Connection, Exception | None], None],
    ) -> None:
        self._loop = loop
        self.channel = channel
        self._handler = handler
        self._limits = limits
        self._pipelined = limits.pipelined
        self._max_in_flight = limits.max_in_flight
        self._on_closed = on_closed
        self._buffer: bytearray | mmap = bytearray(INITIAL_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._awaited_capacity = 0  # of the buffer that waits for memory
        self._start = self._end = 0
        self._warm = INITIAL_BUFFER_BYTES
        self._next_slot = self._head_slot = 0
        self._ready: dict[int, list[Part]] = {}
        self._out: list[Part] = []
        self._exclusive = False
        self._blocked = False
        self._is_in_line = False
        self._corked = False
        self._flush_scheduled = False
        self._queued_before = 0
        self.is_closed = False
        self.is_draining = False
        self.is_peer = False  # a node that has proved its membership in this cluster: see `api.handlers.introduction`
        self._refusal: Exception | None = None
        self.last_active = loop.time()
        self.id = ""
        self.number = next(_numbers)  # in the order of creation
        self.listener_name = ""
        self.shortcut: Shortcut | None = None  # tried first by the layer above, see `api.produce.produce_lane`
        # Called when the connection ends, to release what is parked for this client.
        self.when_closed: dict[Callable[[], None], None] = {}
        # Called with the key of a request that must wait for the one before it, whose delayed answer
        # may then be sent at once.
        self.when_blocked: Callable[[int], None] | None = None

    @property
    def in_flight(self) -> int:
        return self._next_slot - self._head_slot

    @property
    def memory(self) -> RequestMemory:
        return self._limits.memory

    @property
    def is_blocked(self) -> bool:
        """Not reading, so that the end of the connection is noticed only by an explicit check."""
        return self._blocked

    def use(self, handler: Handler) -> None:
        """Passes requests to this handler from now on."""
        self._handler = handler

    def hold(self) -> None:
        """Passes on no further requests until everything in flight is answered."""
        self._exclusive = True

    # -- bytes in -----------------------------------------------------------------------

    def receive_buffer(self) -> memoryview:
        end = self._end
        warm = self._warm - end
        return self._view[end : end + (min(warm, MAX_READ_BYTES) if warm > 0 else COLD_READ_BYTES)]

    def received(self, size: int) -> None:
        end = self._end = self._end + size
        if end > self._warm:
            self._warm = end
        self.last_active = self._loop.time()
        self._process()

    def _process(self) -> None:
        self._corked = True
        try:
            self._hand_over_frames()
        except ProtocolError as error:
            self.abort(error)
        except BaseException as error:
            # A bug in a handler: the client must not wait for ever. The loop logs the error.
            self.abort(ProtocolError(f"internal error: {error!r}"))
            raise
        finally:
            self._corked = False
        if self._out:
            self._flush()
        if not self.is_closed:
            self._make_room()

    def _hand_over_frames(self) -> None:
        view = self._view
        pipelined = self._pipelined
        budget = TURN_BUDGET
        clock, deadline = self._limits.clock, 0.0
        frame_limits, other_limit = self._limits.frame_limits, self._limits.max_frame_bytes
        largest = self._limits.largest_frame_bytes
        while not self.is_closed and not self.is_draining:
            start = self._start
            available = self._end - start
            if available < 6:
                return
            size, key = _SIZE_AND_KEY.unpack_from(view, start)
            limit = largest if self.is_peer else frame_limits.get(key, other_limit)
            if key >= PRIVATE_KEYS_FROM and not self.is_peer and MAX_STRANGER_FRAME_BYTES < size <= largest:
                raise Stranger(
                    f"a private request of {size} bytes on a connection that has not presented the cluster's secret"
                )
            if size < MIN_FRAME_BYTES or size > limit:
                raise ProtocolError(_no_frame(bytes(view[start : start + 6]), size, key, limit))
            if available < 4 + size:
                return
            is_pipelined = key in pipelined
            in_flight = self._next_slot - self._head_slot
            if in_flight and (not is_pipelined or self._exclusive or in_flight >= self._max_in_flight):
                self._block()
                if self.when_blocked is not None:
                    self.when_blocked(key)
                return
            if len(self._out) > MAX_CORKED_PARTS:
                self._flush()
            if self.channel.queued_bytes > HIGH_WATER_BYTES:
                self._block()
                return
            if budget == TURN_BUDGET:
                deadline = clock() + TURN_S
            elif budget <= 0 or (clock() > deadline and not self.is_peer):
                self._block()
                self._wait_for_turn()
                return
            budget -= 1 if is_pipelined else OTHER_COST
            self._start = start + 4 + size
            slot = self._next_slot
            self._next_slot = slot + 1
            self._exclusive = not is_pipelined
            self._handler(self, slot, view[start + 4 : start + 4 + size])
            view = self._view  # `keep_frame` may have replaced it
            if not is_pipelined and self._out and self._is_large(self._out[-1]):
                self._flush()

    @staticmethod
    def _is_large(part: Part) -> bool:
        return isinstance(part, bytes) and len(part) > LARGE_REPLY_BYTES

    def _wait_for_turn(self) -> None:
        self._is_in_line = True
        if self.is_peer:
            self._loop.call_soon(self.turn_came)
        else:
            self._limits.line.join(self._loop, self)

    def turn_came(self) -> None:
        self._is_in_line = False
        self._unblock()

    def keep_frame(self, frame: memoryview) -> memoryview:
        """Keeps the frame that is being passed on.

        A frame that fills most of the buffer keeps the buffer, and this connection gets a new one: a copy of some
        megabytes would hold the loop for a millisecond."""
        capacity, rest = len(self._buffer), self._end - self._start
        if capacity <= INITIAL_BUFFER_BYTES or len(frame) < capacity - capacity // 4 or rest > INITIAL_BUFFER_BYTES:
            return memoryview(bytes(frame))
        self._shrink_buffer(INITIAL_BUFFER_BYTES)
        return frame

    def _block(self) -> None:
        self._blocked = True
        self.channel.pause_reading()

    def _unblock(self) -> None:
        if self._blocked and not self._is_in_line and not self.is_closed:
            self._blocked = False
            self._process()
            if not self._blocked and not self.is_closed and not self.is_draining and not self._awaited_capacity:
                self.channel.resume_reading()

    def _make_room(self) -> None:
        """Makes space for the next read, after the frames were passed on."""
        start, end, capacity = self._start, self._end, len(self._buffer)
        if self._awaited_capacity:
            return
        memory = self._limits.memory
        if memory.is_short and start:
            memory.touch(self)  # a request is complete
        if self._blocked:
            return  # nothing is read before the next frame is passed on
        if start == end:
            self._start = self._end = 0
            if memory.is_short and capacity > INITIAL_BUFFER_BYTES:
                self._shrink_buffer(INITIAL_BUFFER_BYTES)
            elif end == capacity and capacity < STEADY_BUFFER_BYTES:
                if memory.try_take(self, capacity * 3):
                    self._replace_buffer(capacity * 4)
            elif capacity > STEADY_BUFFER_BYTES:
                self._shrink_buffer(STEADY_BUFFER_BYTES)
            return
        pending = end - start
        needed = pending
        if pending >= 4:
            needed = 4 + int(_SIZE.unpack_from(self._view, start)[0])
        if capacity - end >= max(min(needed - pending, SPARE_BYTES), 1):
            return
        if pending <= capacity // 2:
            self._view[:pending] = self._view[start:end]
            self._start, self._end = 0, pending
            return
        wanted = min(max(capacity * 2, STEADY_BUFFER_BYTES), max(4 + needed, capacity + SPARE_BYTES))
        if memory.take(self, wanted - capacity):
            self._replace_buffer(wanted)
        else:
            self._awaited_capacity = wanted
            self.channel.pause_reading()

    def memory_granted(self) -> None:
        """The memory that this connection waited for has been taken."""
        wanted, self._awaited_capacity = self._awaited_capacity, 0
        if not wanted:
            return  # granted at once: `_make_room` handles it
        self._replace_buffer(wanted)
        if not self._blocked and not self.is_closed and not self.is_draining:
            self.channel.resume_reading()

    def _shrink_buffer(self, capacity: int) -> None:
        freed = len(self._buffer) - capacity
        self._replace_buffer(capacity)
        self._limits.memory.release(self, freed)

    def free_idle_memory(self, now: float) -> None:
        """Called once a second, so that a burst does not leave a large buffer for the life of the connection."""
        is_empty = self._start == self._end and not self.is_closed and not self._awaited_capacity
        is_idle = now - self.last_active > IDLE_BUFFER_S or self._limits.memory.is_short
        if is_empty and is_idle and len(self._buffer) > INITIAL_BUFFER_BYTES:
            self._shrink_buffer(INITIAL_BUFFER_BYTES)

    def _replace_buffer(self, capacity: int) -> None:
        if self._was_resized(capacity):
            return
        pending = self._end - self._start
        buffer = _new_buffer(capacity)
        view = memoryview(buffer)
        view[:pending] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, view
        self._start, self._end = 0, pending
        self._warm = pending if isinstance(buffer, mmap) else capacity

    def _was_resized(self, capacity: int) -> bool:
        """Resizes the buffer in place, without a copy and with its warm pages, if that is possible."""
        buffer = self._buffer
        if self._start or not isinstance(buffer, mmap) or capacity < MAPPED_BUFFER_BYTES or capacity < self._end:
            return False
        self._view.release()
        try:
            buffer.resize(capacity)
        except (BufferError, OSError):  # a handler holds a view of an earlier frame, or there is no room
            return False
        finally:
            self._view = memoryview(buffer)
        self._warm = min(self._warm, capacity)
        return True

    # -- replies out --------------------------------------------------------------------

    def reply(self, slot: int, parts: list[Part]) -> None:
        """Answers a slot. An empty list sends nothing (acks=0)."""
        if self.is_closed:
            return
        if slot != self._head_slot:
            self._ready[slot] = parts
            return
        out = self._out
        out.extend(parts)
        head = slot + 1
        ready = self._ready
        while head in ready:
            out.extend(ready.pop(head))
            head += 1
        self._head_slot = head
        if self._corked:
            return
        # Replies released together (one flush, many requests) leave in one system call.
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        if self.is_closed:
            return
        self.last_active = self._loop.time()
        if self._out:
            self._flush()
        if self._blocked:
            self._unblock()
        if self.is_draining and not self.in_flight:
            self.channel.close(drain=True)

    def _flush(self) -> None:
        out = self._out
        self._out = []
        if len(out) > 1:
            out = join_bytes(out)
        self.channel.send(out)

    def writable(self) -> None:
        self._unblock()

    def note_progress(self) -> None:
        """Called once a second: a peer that takes its answers, however slowly, is not idle."""
        queued = self.channel.queued_bytes
        if queued != self._queued_before:
            self._queued_before = queued
            self.last_active = self._loop.time()

    # -- the end ------------------------------------------------------------------------

    def drain(self) -> None:
        """Takes no further requests, and closes when those in flight are answered."""
        if self.is_closed or self.is_draining:
            return
        self.is_draining = True
        self.channel.pause_reading()
        if not self.in_flight:
            if self._out:
                self._flush()
            self.channel.close(drain=True)

    def refuse(self, error: Exception) -> None:
        """Closes after the replies are sent; `error` is the reason."""
        self._refusal = error
        self.drain()

    def abort(self, error: Exception | None = None) -> None:
        """Closes now, without an answer."""
        if not self.is_closed:
            self._finish(error)
            self.channel.close()

    def closed(self, error: OSError | None) -> None:
        self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._ready.clear()
        self._out.clear()
        for callback in list(self.when_closed):
            callback()
        self.when_closed.clear()
        # A remaining reference to this connection must not keep its buffers.
        self.when_blocked = self.shortcut = None
        self._awaited_capacity = 0
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._limits.memory.leave(self)
        self._on_closed(self, self._refusal or error)


def _new_buffer(capacity: int) -> bytearray | mmap:
    """A mapping gets its pages as bytes arrive. A bytearray is zeroed first: 0.3 ms for a megabyte."""
    if capacity >= MAPPED_BUFFER_BYTES:
        with suppress(OSError):  # the system limits the number of mappings
            return mmap(-1, capacity, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return bytearray(capacity)


def join_bytes(parts: list[Part]) -> list[Part]:
    """Joins neighbouring bytes, to send them in one system call."""
    joined: list[Part] = []
    run: list[bytes] = []
    for part in parts:
        if isinstance(part, FileSlice):
            if run:
                joined.append(run[0] if len(run) == 1 else b"".join(run))
                run = []
            joined.append(part)
        else:
            run.append(part)
    if run:
        joined.append(run[0] if len(run) == 1 else b"".join(run))
    return joined


_HTTP = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN")
_TLS = b"\x16\x03"


def _no_frame(start: bytes, size: int, key: int, limit: int) -> str:
    if start.startswith(_HTTP):
        return "this looks like HTTP: the REST proxy has its own port (penstock.http.listener, 8082 by default)"
    if start.startswith(_TLS):
        return "this looks like TLS, which this listener does not speak"
    return f"frame of {size} bytes for API key {key} (limit {limit})"
