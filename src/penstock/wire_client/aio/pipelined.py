"""The common part of connections on which answers arrive in the order of the requests.

Must not know: the content of a frame, except its size. Invariant: after an error every open request fails with
ConnectionLost, and the connection is never used again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import Struct
from typing import ClassVar, Generic, TypeVar, cast

from penstock.model.errors import ProtocolError
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost
from penstock.wire_client.requests.limits import MAX_FRAME_BYTES

Expected = TypeVar("Expected")  # identifies the next answer
Answer = TypeVar("Answer")

_SIZE = Struct(">i")


class PipelinedConnection(asyncio.Protocol, ABC, Generic[Expected, Answer]):
    min_frame_bytes: ClassVar[int] = 0

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._open: deque[tuple[Expected, asyncio.Future[Answer]]] = deque()
        self._buffer = bytearray()
        self._next_id = 0
        self._failure: str | None = None

    @property
    def is_usable(self) -> bool:
        return self._failure is None

    def close(self) -> None:
        self._fail("the connection was closed")

    def _sending(self) -> asyncio.Transport:
        """The transport. Raises ConnectionLost."""
        if self._failure is not None:
            raise ConnectionLost(self._failure)
        assert self._transport is not None
        return self._transport

    def _expect(self, expected: Expected) -> asyncio.Future[Answer]:
        """Registers the request with `_next_id`, which is sent next."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open.append((expected, future))
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        return future

    @abstractmethod
    def _answer(self, frame: bytes) -> None:
        """Takes the first of `_open` and resolves it. Raises ProtocolError."""

    def _fail(self, sentence: str) -> None:
        if self._failure is not None:
            return
        self._failure = sentence
        if self._transport is not None:
            self._transport.abort()
        while self._open:
            _, future = self._open.popleft()
            if not future.done():
                future.set_exception(ConnectionLost(sentence))

    # -- asyncio.Protocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        try:
            while self._failure is None and len(self._buffer) - at >= _SIZE.size:
                (size,) = _SIZE.unpack_from(self._buffer, at)
                if not self.min_frame_bytes <= size <= MAX_FRAME_BYTES:
                    raise ProtocolError(f"invalid frame size: {size} bytes")
                start, end = at + _SIZE.size, at + _SIZE.size + size
                if len(self._buffer) < end:
                    break
                self._answer(bytes(self._buffer[start:end]))
                at = end
        except ProtocolError as error:
            self._fail(f"the broker's answer is not Kafka's protocol: {error}")
        del self._buffer[:at]

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the broker closed the connection{f': {error}' if error else ''}")


@asynccontextmanager
async def reaching(host: str, port: int, timeout_s: float) -> AsyncIterator[None]:
    """Wraps a connection attempt: any error becomes BrokerUnreachable."""
    place = f"{host}:{port}"
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise BrokerUnreachable(f"{place} did not answer within {timeout_s:g} s") from error
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        reason = error.strerror if isinstance(error, OSError) else None
        raise BrokerUnreachable(f"cannot connect to {place}: {reason or error}") from error
    except ConnectionLost as error:
        raise BrokerUnreachable(f"{place} closed the connection at once") from error
