"""One connection to one broker: requests are sent at once, answers arrive in the same order.

Versions are negotiated when it opens (ApiVersions): a request has the newest version that both sides know, but none
above `versions.NEWEST`. Must not know: which broker leads a partition, retries. Invariants: an answer after a timeout
is read and dropped. After an error every open request fails with ConnectionLost, and the connection is never used
again.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, TypeVar, cast

from penstock.model.errors import ApiError, ErrorCode, ProtocolError
from penstock.wire.apis import Api, api
from penstock.wire.codec import decode_response, encode_request, read_response_header
from penstock.wire.messages.api_versions import ApiVersionsResponse
from penstock.wire.primitives import Message
from penstock.wire_client.aio.pipelined import PipelinedConnection, reaching
from penstock.wire_client.requests.errors import ConnectionLost, RequestTimedOut
from penstock.wire_client.requests.limits import REQUEST_TIMEOUT_S
from penstock.wire_client.requests.versions import Served, choose_version, read_versions, versions_request

R = TypeVar("R", bound=Message)


class Sent(NamedTuple):
    key: Api
    version: int
    correlation_id: int


class AsyncConnection(PipelinedConnection[Sent, Message]):
    def __init__(self, client_id: str, unadvertised: frozenset[Api] = frozenset()) -> None:
        """`unadvertised`: APIs that the other side serves but does not list in ApiVersions."""
        super().__init__()
        self._client_id = client_id
        self._unadvertised = unadvertised
        self._versions: Served = {}

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        client_id: str,
        timeout_s: float = 10.0,
    ) -> AsyncConnection:
        loop = asyncio.get_running_loop()
        async with reaching(host, port, timeout_s):
            _, connection = await loop.create_connection(lambda: cls(client_id), host, port)
            await connection._agree_on_versions()
        return connection

    async def _agree_on_versions(self) -> None:
        self._versions = {Api.API_VERSIONS: (0, 0)}
        self._versions = read_versions(await self.call(Api.API_VERSIONS, versions_request(), ApiVersionsResponse))

    async def call(
        self,
        key: Api,
        request: Message,
        kind: type[R],
        timeout_s: float = REQUEST_TIMEOUT_S,
        *,
        has_topic_ids: bool = False,
        newest: int | None = None,
    ) -> R:
        """Send and wait. Raises ConnectionLost or RequestTimedOut; error codes are the caller's to look at."""
        answer = self.send(key, request, has_topic_ids=has_topic_ids, newest=newest)
        try:
            async with asyncio.timeout(timeout_s):
                message = await answer
        except TimeoutError as error:
            raise RequestTimedOut(f"no answer to {api(key).name} within {timeout_s:g} s") from error
        assert isinstance(message, kind)
        return message

    def send(
        self, key: Api, request: Message, *, has_topic_ids: bool = False, newest: int | None = None
    ) -> asyncio.Future[Message]:
        """Send now, in the order of the calls. `newest`: the highest version to use."""
        transport = self._sending()
        version = self._version(key, has_topic_ids=has_topic_ids, newest=newest)
        parts, _ = encode_request(key, version, self._next_id, self._client_id, request)
        future = self._expect(Sent(key, version, self._next_id))
        # Requests have only bytes; file slices occur only in answers.
        transport.write(b"".join(cast("list[bytes]", parts)))
        return future

    def _version(self, key: Api, *, has_topic_ids: bool, newest: int | None) -> int:
        spec = api(key)
        served = self._versions
        if key not in served and key in self._unadvertised:
            served = {key: (spec.min_version, spec.max_version)}
        version = choose_version(key, served, spec.max_version if has_topic_ids else newest)
        if version is None:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"the broker does not serve {spec.name}")
        return version

    def _answer(self, frame: bytes) -> None:
        if not self._open:
            raise ProtocolError("an answer without a request")
        (key, version, correlation_id), future = self._open.popleft()
        try:
            got, at = read_response_header(key, version, frame)
            if got != correlation_id:
                raise ProtocolError(f"the answer has correlation id {got}, expected {correlation_id}")
            message = decode_response(key, version, frame, at)
        except ProtocolError as error:
            if not future.done():
                future.set_exception(ConnectionLost(str(error)))
            raise
        if not future.done():
            future.set_result(message)
