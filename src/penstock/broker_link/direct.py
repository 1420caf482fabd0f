"""A connection from one broker to another for private API keys: requests and answers are plain bytes.

The private keys are in no API table, and versions are not negotiated. Answers arrive in the order of the requests.
Must not know: which node is the controller, what the bytes mean, retries. Invariants: an answer after a timeout is read
and dropped. After an error every open request fails with ConnectionLost, and the connection is unusable.
"""

from __future__ import annotations

import asyncio
import struct
from typing import ClassVar

from penstock.broker_link.introduction import PeerIdentity, connect_to_peer
from penstock.wire.introduction import ANYBODY
from penstock.wire_client.aio.pipelined import PipelinedConnection, reaching
from penstock.wire_client.requests.errors import RequestTimedOut

_HEADER = struct.Struct(">ihhih")  # size, key, version, correlation id, length of the client id
_SIZE_BYTES = 4
_CORRELATION_ID = struct.Struct(">i")


class DirectConnection(PipelinedConnection[int, bytes]):
    min_frame_bytes: ClassVar = _CORRELATION_ID.size

    def __init__(self, client_id: str) -> None:
        super().__init__()
        self._name = client_id.encode()

    @classmethod
    async def open(
        cls, host: str, port: int, client_id: str, timeout_s: float, identity: PeerIdentity, recipient: int = ANYBODY
    ) -> DirectConnection:
        """Connects to a node of the cluster. Raises BrokerUnreachable."""
        loop = asyncio.get_running_loop()
        async with reaching(host, port, timeout_s):
            return await connect_to_peer(loop, lambda: cls(client_id), host, port, identity, recipient)

    async def call(self, key: int, payload: bytes, timeout_s: float) -> bytes:
        """Sends a request and returns the payload of its answer. Raises ConnectionLost or RequestTimedOut."""
        transport = self._sending()
        correlation_id = self._next_id
        size = _HEADER.size - _SIZE_BYTES + len(self._name) + len(payload)
        future = self._expect(correlation_id)
        transport.write(_HEADER.pack(size, key, 0, correlation_id, len(self._name)) + self._name + payload)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise RequestTimedOut(f"no answer to a request of key {key:#x} within {timeout_s:g} s") from error

    def _answer(self, frame: bytes) -> None:
        (got,) = _CORRELATION_ID.unpack_from(frame)
        if not self._open or self._open[0][0] != got:
            self._fail(f"the broker answered request {got} out of order")
            return
        _, future = self._open.popleft()
        if not future.done():
            future.set_result(frame[_CORRELATION_ID.size :])
