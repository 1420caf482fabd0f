"""One request on its way through the broker: its header, its connection, its reply."""

from __future__ import annotations

from collections.abc import Generator
from struct import Struct
from typing import ClassVar

from penstock.api.request_times import RequestTimes
from penstock.api.turns import Pace, Turns
from penstock.model.errors import ProtocolError
from penstock.net.connection import Connection
from penstock.ports.channel import Part
from penstock.wire.apis import Api
from penstock.wire.codec import RequestHeader, encode_response, response_steps
from penstock.wire.primitives import Message

_SIZE = Struct(">i")
_NARROW = frozenset({int(Api.PRODUCE), int(Api.FETCH)})  # rarely large: encoded at once unless they took turns


class RequestContext:
    is_forwarded: ClassVar[bool] = False
    """Another broker forwarded this request: the checks that only that broker can make are done."""

    __slots__ = (
        "_pace",
        "_started_s",
        "_times",
        "api_key",
        "client_id",
        "connection",
        "correlation_id",
        "frame",
        "is_wide",
        "slot",
        "turns",
        "version",
    )

    def __init__(
        self,
        connection: Connection,
        slot: int,
        frame: memoryview,
        header: RequestHeader,
        times: RequestTimes | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.turns = turns
        self._pace: Pace | None = None
        self.connection = connection
        self.slot = slot
        self.frame = frame  # valid only until the handler returns
        self.is_wide = False  # it was read in turns of its own
        self.api_key, self.version, self.correlation_id, self.client_id, _ = header
        self._times = times
        self._started_s = 0.0 if times is None else times.now()

    def respond(self, message: Message) -> None:
        # A request that took turns of its own has a large response.
        if self.api_key in _NARROW and self._pace is None:
            parts, _ = encode_response(self.api_key, self.version, self.correlation_id, message)
            self._reply(parts)
        else:
            self._encode_on(message, response_steps(self.api_key, self.version, self.correlation_id, message))

    def _encode_on(
        self, message: Message, steps: Generator[None, None, tuple[list[Part], int]], *, is_wide: bool = False
    ) -> None:
        """Take one step; the rest runs in turns of its own."""
        try:
            if not self.connection.is_closed:
                next(steps)
        except StopIteration as done:
            self._reply(done.value[0])
        except BaseException:
            # A defect: this client must not wait for ever. The loop logs it.
            self.connection.abort(ProtocolError("internal error"))
            raise
        else:
            if not self.connection.is_closed:
                self._shared_turns().call(lambda: self._encode_on(message, steps, is_wide=True))
                return
        if is_wide:
            self._shared_turns().let_go(message)

    def _shared_turns(self) -> Turns:
        if self.turns is None:
            self.turns = Turns()
        return self.turns

    @property
    def pace(self) -> Pace:
        """For work that is too much for one turn of the loop."""
        if self._pace is None:
            self._pace = Pace(self._shared_turns())
        return self._pace

    def _reply(self, parts: list[Part]) -> None:
        self.connection.reply(self.slot, parts)
        if self._times is not None:
            self._times.answered(self.api_key, self._started_s)

    def respond_encoded(self, response: bytes) -> None:
        """Send a response frame without its size, made elsewhere for this request."""
        self.connection.reply(self.slot, [_SIZE.pack(len(response)) + response])
        if self._times is not None:
            self._times.answered(self.api_key, self._started_s)

    def respond_nothing(self) -> None:
        """acks=0: the slot is done and the client expects no bytes."""
        self.connection.reply(self.slot, [])
        if self._times is not None:
            self._times.answered(self.api_key, self._started_s)

    @property
    def listener_name(self) -> str:
        """The name of the client's listener."""
        return self.connection.listener_name

    @property
    def peer_host(self) -> str:
        return self.connection.channel.peer[0]


class ForwardedContext(RequestContext):
    """The context of a request that another broker forwarded on its connection to this one."""

    is_forwarded: ClassVar[bool] = True

    __slots__ = ("_listener_name",)

    def __init__(
        self,
        connection: Connection,
        slot: int,
        frame: memoryview,
        header: RequestHeader,
        listener_name: str,
        turns: Turns | None = None,
    ) -> None:
        super().__init__(connection, slot, frame, header, turns=turns)
        self._listener_name = listener_name

    @property
    def listener_name(self) -> str:
        """The name of the other broker's listener."""
        return self._listener_name
