"""Forwards requests that only the active controller can answer; its answer goes back to the client unchanged.

A client may send a request to any broker. A broker that is not the controller forwards its bytes unchanged, under a key
of its own. Then it waits until it has applied everything that the controller had applied at the time of the answer: the
change is visible on this broker at once. A node that is not the controller does not forward a forwarded request again;
the sender looks for the controller once more. While there is no controller, requests wait.

If a connection breaks after the request was sent, its outcome is unknown. The request is then repeated, as in Kafka:
a change that was made by the first request gets TOPIC_ALREADY_EXISTS or a similar error. A request whose repetition
could undo later decisions (voters) is not repeated. If there is no answer in the end, the error says that the change
may have been made.

    request   listener name: int16 length, UTF-8 | principal, likewise | the client's request, header and body
    answer    error code int16 | index int64 up to which the controller had applied | the response, header and body

Must not know: the meaning of any request, connections of clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple, Protocol, cast

from penstock.api.context import RequestContext
from penstock.broker_link.direct import DirectConnection
from penstock.broker_link.introduction import PeerIdentity
from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode, OutcomeUnknown, ProtocolError
from penstock.wire.codec import decode_response, encode_request, read_response_header
from penstock.wire.primitives import Message
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut

FORWARD_KEY: Final = 0x7002
ANONYMOUS: Final = "User:ANONYMOUS"  # without authentication there is no other principal

CONNECT_TIMEOUT_S = 1.0
LOOK_INTERVAL_S = 0.25
"""How often a request under way checks whether its target still leads."""
RETRY_PAUSE_S = 0.02
APPLY_TIMEOUT_S = 1.0
DEFAULT_TIMEOUT_S = 5.0
MAX_TIMEOUT_S = 30.0

_SIZE_BYTES = 4
_LENGTH = Struct(">h")
_ANSWER = Struct(">hq")


class IsActive(Protocol):
    @property
    def is_active(self) -> bool: ...


class FollowedQuorum(Protocol):
    @property
    def leader_id(self) -> int | None: ...

    @property
    def applied_index(self) -> int: ...

    async def wait_applied(self, index: int, timeout_s: float) -> bool: ...


class ForwardedRequest(NamedTuple):
    listener_name: str
    principal: str
    frame: bytes

    def encode(self) -> bytes:
        names = (name.encode() for name in (self.listener_name, self.principal))
        return b"".join(_LENGTH.pack(len(name)) + name for name in names) + self.frame

    @staticmethod
    def decode(payload: bytes) -> ForwardedRequest:
        names, at = [], 0
        try:
            for _ in range(2):
                (length,) = _LENGTH.unpack_from(payload, at)
                at += _LENGTH.size
                if not 0 <= length <= len(payload) - at:
                    raise ProtocolError("a forwarded request is incomplete")
                names.append(payload[at : at + length].decode())
                at += length
        except (StructError, UnicodeDecodeError) as error:
            raise ProtocolError(f"invalid forwarded request: {error}") from error
        return ForwardedRequest(names[0], names[1], payload[at:])


class ForwardedAnswer(NamedTuple):
    code: ErrorCode
    applied_index: int
    response: bytes  # empty with an error code

    def encode(self) -> bytes:
        return _ANSWER.pack(self.code, self.applied_index) + self.response

    @staticmethod
    def decode(payload: bytes) -> ForwardedAnswer:
        code, index = _ANSWER.unpack_from(payload)
        return ForwardedAnswer(ErrorCode(code), index, payload[_ANSWER.size :])


class Forwarding:
    def __init__(
        self,
        identity: PeerIdentity,
        controller: IsActive,
        quorum: FollowedQuorum,
        address_of: Callable[[int], Address | None],
        voters: Callable[[], Mapping[int, Address]] = dict,
    ) -> None:
        """`voters`: the candidates for controller, for an error message."""
        self._node_id = identity.node_id
        self._identity = identity
        self._controller = controller
        self._quorum = quorum
        self._address_of = address_of
        self._voters = voters
        self._connection: tuple[Address, DirectConnection] | None = None
        self._opening = asyncio.Lock()
        self.sent = 0
        self.failed = 0

    @property
    def is_active(self) -> bool:
        """Whether the controller is in this process."""
        return self._controller.is_active

    @property
    def applied_index(self) -> int:
        return self._quorum.applied_index

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def answer(
        self,
        decide: Callable[[], Awaitable[Message]],
        frame: bytes,
        listener_name: str,
        timeout_s: float,
        *,
        is_repeatable: bool = True,
    ) -> Message | bytes:
        """The answer of `decide` if the controller is here, else the bytes of its answer.

        `timeout_s` is how long to look for a controller; each one found gets the request in any case. Raises the errors
        of `decide`, ApiError(NOT_CONTROLLER) if no controller was found, and OutcomeUnknown if a controller got the
        request and its answer is lost.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        payload = ForwardedRequest(listener_name, ANONYMOUS, frame).encode()
        lost: OutcomeUnknown | None = None
        while True:
            if self._controller.is_active:
                try:
                    return await decide()
                except ApiError as error:
                    if error.code is not ErrorCode.NOT_CONTROLLER:
                        raise
            else:
                try:
                    response = await self._send_on(payload, max(deadline - loop.time(), DEFAULT_TIMEOUT_S))
                except OutcomeUnknown as error:
                    response, lost = None, error
                    if not is_repeatable:
                        raise
                if response is not None:
                    return response
            if loop.time() + RETRY_PAUSE_S > deadline:
                raise lost or ApiError(ErrorCode.NOT_CONTROLLER, self._no_controller())
            await asyncio.sleep(RETRY_PAUSE_S)

    def _no_controller(self) -> str:
        voters = ", ".join(f"{node} at {host}:{port}" for node, (host, port) in sorted(self._voters().items()))
        return "No controller answers: no majority of the voters is up and connected" + (
            f" (voters: {voters})" if voters else ""
        )

    async def ask(self, ctx: RequestContext, request: Message, decide: Callable[[], Awaitable[Message]]) -> Message:
        """Like `answer`, for a request that a handler derived from the client's: in the same version, decoded for the
        handler.
        """
        parts, _ = encode_request(ctx.api_key, ctx.version, ctx.correlation_id, ctx.client_id, request)
        # Requests carry bytes only; only answers have file slices.
        frame = b"".join(cast("list[bytes]", parts))[_SIZE_BYTES:]
        response = await self.answer(decide, frame, ctx.listener_name, timeout_of(request))
        if isinstance(response, Message):
            return response
        _, at = read_response_header(ctx.api_key, ctx.version, response)
        return decode_response(ctx.api_key, ctx.version, response, at)

    async def _send_on(self, payload: bytes, timeout_s: float) -> bytes | None:
        """None: no node got the request, or the one that got it is not the controller. Raises OutcomeUnknown."""
        leader = self._quorum.leader_id
        address = None if leader is None or leader == self._node_id else self._address_of(leader)
        if leader is None or address is None:
            return None
        self.sent += 1
        try:
            connection = await self._connect(leader, address)
            answer = await self._while_leading(leader, connection, payload, timeout_s)
        except BrokerUnreachable:
            self.failed += 1
            return None
        except (ConnectionLost, RequestTimedOut) as error:
            self.failed += 1
            raise outcome_unknown(f"node {leader} at {address[0]}:{address[1]}: {error}") from error
        if answer.code is ErrorCode.NOT_CONTROLLER:
            self.failed += 1
            return None
        if answer.code is not ErrorCode.NONE:
            raise ApiError(answer.code)
        await self._quorum.wait_applied(answer.applied_index, APPLY_TIMEOUT_S)
        return answer.response

    async def _while_leading(
        self, leader: int, connection: DirectConnection, payload: bytes, timeout_s: float
    ) -> ForwardedAnswer:
        """A node that hangs keeps its connections open. So the request is abandoned when another node leads."""
        call = asyncio.ensure_future(connection.call(FORWARD_KEY, payload, timeout_s))
        try:
            while True:
                try:
                    async with asyncio.timeout(LOOK_INTERVAL_S):
                        return ForwardedAnswer.decode(await asyncio.shield(call))
                except TimeoutError:
                    if self._quorum.leader_id not in (leader, None):
                        raise ConnectionLost(f"node {leader} no longer leads the metadata quorum") from None
        except RequestTimedOut:
            # The node may be dead without having closed the connection. If not: answers come in order, so all later
            # requests would wait as well.
            connection.close()
            raise
        finally:
            call.cancel()

    async def _connect(self, leader: int, address: Address) -> DirectConnection:
        async with self._opening:
            if self._connection is not None:
                known, connection = self._connection
                if known == address and connection.is_usable:
                    return connection
                self.close()
            connection = await DirectConnection.open(
                *address, f"broker-{self._node_id}", CONNECT_TIMEOUT_S, self._identity, leader
            )
            self._connection = address, connection
            return connection


def outcome_unknown(why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        ErrorCode.REQUEST_TIMED_OUT,
        f"The controller did not answer ({why}). The change may have been made: check before you repeat the request",
    )


def timeout_of(request: Message) -> float:
    """The client's own timeout, within limits."""
    timeout_ms = getattr(request, "timeout_ms", 0)
    return min(timeout_ms / 1000, MAX_TIMEOUT_S) if timeout_ms > 0 else DEFAULT_TIMEOUT_S
