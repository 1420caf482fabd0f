"""The connection to a leader: it reconnects when lost, and passes each answer to the sender of its request.

The first retry comes after ten milliseconds. The pause doubles each time, up to the backoff, until a request is
answered: a connection alone does not reset it, since the leader may hang up at once. Must not know: what the requests
are. Invariants: answers arrive in the order of requests. When the connection is lost, every waiting request gets an
empty frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from penstock.broker_link.frames import FrameConnection
from penstock.broker_link.introduction import PeerIdentity, connect_to_peer
from penstock.model.errors import ApiError, ErrorCode, ProtocolError
from penstock.wire.apis import Api
from penstock.wire.codec import decode_response, encode_request, read_response_header
from penstock.wire.primitives import Message

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.01
CONNECT_TIMEOUT_S = 5.0
CONNECTION_LOST = "the connection to the leader was lost"

M = TypeVar("M", bound=Message)
Take: TypeAlias = Callable[[memoryview], None]


def retry_s(failures: int, backoff_s: float) -> float:
    """The pause after a failure that follows `failures` others."""
    return min(FIRST_RETRY_S * (1 << min(failures, 16)), backoff_s)


class LeaderLink:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        leader_id: int,
        client_id: str,
        identity: PeerIdentity,
        address_of: Callable[[int], tuple[str, int] | None],
        backoff_s: Callable[[], float],
        on_up: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._leader_id = leader_id
        self._client_id = client_id
        self._identity = identity
        self._address_of = address_of
        self._backoff_s = backoff_s
        self._on_up = on_up
        self._connection: FrameConnection | None = None
        self._lost: asyncio.Future[Exception | None] = loop.create_future()
        self._awaited: deque[tuple[int, Take]] = deque()  # correlation id, receiver of the answer
        self._next_id = 0
        self._failures = 0
        self.reconnects = 0
        self._connecting = loop.create_task(self._stay_connected())

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    def stop(self) -> None:
        """Disconnects at once and for good."""
        self._connecting.cancel()
        self._disconnect()

    def send(self, key: Api, version: int, request: Message, take: Take) -> None:
        """Sends a request; the link must be up. `take` gets the answer, or an empty frame if the connection is lost."""
        assert self._connection is not None
        parts, _ = encode_request(key, version, self._next_id, self._client_id, request)
        self._awaited.append((self._next_id, take))
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        self._connection.send(b"".join(part for part in parts if isinstance(part, bytes)))

    async def ask(self, key: Api, version: int, request: Message, of: type[M]) -> M:
        """Sends a request and returns the answer. Raises ApiError if there is none."""
        if not self.is_up:
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, CONNECTION_LOST)
        answer: asyncio.Future[M | None] = self._loop.create_future()

        def take(frame: memoryview) -> None:
            if answer.done():
                return
            if not frame:
                answer.set_result(None)
                return
            kept = memoryview(bytes(frame))  # the receive buffer is reused
            _, at = read_response_header(key, version, kept)
            message = decode_response(key, version, kept, at)
            assert isinstance(message, of)
            answer.set_result(message)

        self.send(key, version, request, take)
        response = await answer
        if response is None:
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, CONNECTION_LOST)
        return response

    def send_frame(self, frame: bytes) -> None:
        """Sends a frame that gets no answer. It is lost if the connection is."""
        if self._connection is not None:
            self._connection.send(frame)

    def give_up(self, reason: Exception) -> None:
        """Drops this connection and makes another one."""
        if not self._lost.done():
            self._lost.set_result(reason)

    def _received(self, frame: memoryview) -> None:
        if not self._awaited:
            raise ProtocolError("an answer without a request")
        correlation_id, take = self._awaited.popleft()
        if int.from_bytes(frame[:4], "big") != correlation_id:
            raise ProtocolError(f"an answer that does not belong to request {correlation_id}")
        if self._failures:
            log.info("broker %d answers again", self._leader_id)
            self._failures = 0
        take(frame)

    async def _stay_connected(self) -> None:
        while True:
            address = self._address_of(self._leader_id)
            reason = "its address is not known" if address is None else await self._connect(*address)
            if reason is None:
                self._on_up()
                error = await self._lost
                self._disconnect()
                reason = f"the connection was lost{f': {error}' if error else ''}"
            if self._failures == 0:
                log.warning("cannot fetch from broker %d: %s; trying again", self._leader_id, reason)
            self._failures += 1
            self.reconnects += 1
            await asyncio.sleep(retry_s(self._failures - 1, self._backoff_s()))

    async def _connect(self, host: str, port: int) -> str | None:
        """Connects. Returns the reason of a failure, or None."""
        self._lost = lost = self._loop.create_future()

        def on_lost(error: Exception | None) -> None:
            if not lost.done():
                lost.set_result(error)

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self._connection = await connect_to_peer(
                    self._loop,
                    lambda: FrameConnection(self._received, on_lost),
                    host,
                    port,
                    self._identity,
                    self._leader_id,
                )
        except TimeoutError:
            return f"{host}:{port} did not answer within {CONNECT_TIMEOUT_S:g} s"
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            reason = error.strerror if isinstance(error, OSError) else None
            return f"{host}:{port}: {reason or error}"
        return None

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        awaited, self._awaited = self._awaited, deque()
        for _, take in awaited:
            take(memoryview(b""))
