"""A connection that passes frames on without a copy, as views of its receive buffer.

It is meant for large volumes, as a follower's fetches. The socket's bytes go into one buffer, which is reused. Must not
know: what a frame means, which request it answers, when to reconnect.

Invariants: a frame is valid only during the call of `on_frame`. Frames arrive in order. `on_lost` is called once, and
no frame follows it. The buffer grows for a frame that does not fit, up to `max_frame_bytes`, and shrinks after a while
of small frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import TypeAlias, cast

from penstock.model.errors import ProtocolError

INITIAL_BUFFER_BYTES = 64 << 10
SHRINK_AFTER_FRAMES = 64  # consecutive frames that fit in the initial buffer
MAX_FRAME_BYTES = 256 << 20

_SIZE = Struct(">i")

OnFrame: TypeAlias = Callable[[memoryview], None]
OnLost: TypeAlias = Callable[[Exception | None], None]


class FrameConnection(asyncio.BufferedProtocol):
    def __init__(self, on_frame: OnFrame, on_lost: OnLost, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._max_frame_bytes = max_frame_bytes
        self._transport: asyncio.Transport | None = None
        self._view = memoryview(bytearray(INITIAL_BUFFER_BYTES))
        self._start = self._end = 0
        self._small_frames = 0
        self.is_lost = False

    @property
    def buffer_bytes(self) -> int:
        return len(self._view)

    def send(self, frame: bytes) -> None:
        """Sends a frame, or queues it while the peer does not read. Does nothing once the connection is lost."""
        if not self.is_lost and self._transport is not None:
            self._transport.write(frame)

    def close(self) -> None:
        """Closes for good. `on_lost` is not called."""
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.BufferedProtocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        try:
            self._cut_frames()
        except ProtocolError as error:
            self._lose(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(error)

    # -- frames ---------------------------------------------------------------------------------------------------

    def _cut_frames(self) -> None:
        view = self._view
        needed = 4
        while not self.is_lost and (pending := self._end - self._start) >= 4:
            size = int(_SIZE.unpack_from(view, self._start)[0])
            if not 0 < size <= self._max_frame_bytes:
                raise ProtocolError(f"invalid frame size: {size} bytes")
            if pending < 4 + size:
                needed = 4 + size
                break
            at = self._start + 4
            self._start = at + size
            self._small_frames = self._small_frames + 1 if size < INITIAL_BUFFER_BYTES - 4 else 0
            self._on_frame(view[at : at + size])
        self._make_room(needed)

    def _make_room(self, needed: int) -> None:
        """Moves the incomplete frame to the front of a buffer that can hold all of it."""
        start, end = self._start, self._end
        pending = end - start
        if needed > len(self._view):
            self._replace_buffer(1 << (needed - 1).bit_length())
        elif not pending and len(self._view) > INITIAL_BUFFER_BYTES and self._small_frames >= SHRINK_AFTER_FRAMES:
            self._replace_buffer(INITIAL_BUFFER_BYTES)
        elif start:
            self._view[:pending] = self._view[start:end]
        self._start, self._end = 0, pending

    def _replace_buffer(self, capacity: int) -> None:
        view = memoryview(bytearray(capacity))
        view[: self._end - self._start] = self._view[self._start : self._end]
        self._view = view
        self._small_frames = 0

    def _lose(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.close()
        self._on_lost(error)
