"""A connection from one broker to another for keys that no client is told of: plain bytes out, plain bytes back.

Such a key is in no table of APIs and there is no talk about versions. Answers come back in the order of the
requests. Must not know: who the controller is, what the bytes mean, retries. Invariants: an answer that nobody
waits for any more is read and dropped; after an error every open request fails with ConnectionLost and the
connection is of no more use.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import cast

from penstock.client.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut

MAX_FRAME_BYTES = 128 << 20
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">ihhih")  # size, key, version, correlation id, length of the client id
_CORRELATION_ID = struct.Struct(">i")


class DirectConnection(asyncio.Protocol):
    def __init__(self, client_id: str) -> None:
        self._name = client_id.encode()
        self._transport: asyncio.Transport | None = None
        self._open: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._buffer = bytearray()
        self._next_id = 0
        self._failure: str | None = None

    @classmethod
    async def open(cls, host: str, port: int, client_id: str, timeout_s: float) -> DirectConnection:
        loop = asyncio.get_running_loop()
        place = f"{host}:{port}"
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(lambda: cls(client_id), host, port)
        except TimeoutError as error:
            raise BrokerUnreachable(f"{place} did not answer within {timeout_s:g} s") from error
        except OSError as error:
            raise BrokerUnreachable(f"cannot connect to {place}: {error.strerror or error}") from error
        return connection

    @property
    def is_usable(self) -> bool:
        return self._failure is None

    async def call(self, key: int, payload: bytes, timeout_s: float) -> bytes:
        """Send and wait for the answer's payload. Raises ConnectionLost or RequestTimedOut."""
        if self._failure is not None:
            raise ConnectionLost(self._failure)
        assert self._transport is not None
        correlation_id = self._next_id
        self._next_id = (correlation_id + 1) & 0x7FFFFFFF
        size = _HEADER.size - _SIZE.size + len(self._name) + len(payload)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open.append((correlation_id, future))
        self._transport.write(_HEADER.pack(size, key, 0, correlation_id, len(self._name)) + self._name + payload)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise RequestTimedOut(f"no answer to a request of key {key:#x} within {timeout_s:g} s") from error

    def close(self) -> None:
        self._fail("the connection was closed")

    # -- asyncio.Protocol ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._buffer, at)
            if not _CORRELATION_ID.size <= size <= MAX_FRAME_BYTES:
                self._fail(f"the broker's answer is not Kafka's protocol: frame of {size} bytes")
                break
            if len(self._buffer) - at - _SIZE.size < size:
                break
            at += _SIZE.size + size
            if not self._answer(bytes(self._buffer[at - size : at])):
                break
        del self._buffer[:at]

    def _answer(self, frame: bytes) -> bool:
        (got,) = _CORRELATION_ID.unpack_from(frame)
        if not self._open or self._open[0][0] != got:
            self._fail(f"the broker answered request {got}, which was not next")
            return False
        _, future = self._open.popleft()
        if not future.done():
            future.set_result(frame[_CORRELATION_ID.size :])
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the broker closed the connection{f': {error}' if error else ''}")

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
