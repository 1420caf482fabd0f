"""One request on its way through: who asked, and the way back."""

from __future__ import annotations

from struct import Struct
from typing import ClassVar

from penstock.api.request_times import RequestTimes
from penstock.net.connection import Connection
from penstock.wire.codec import encode_response
from penstock.wire.primitives import Message

_SIZE = Struct(">i")


class RequestContext:
    is_forwarded: ClassVar[bool] = False
    """Another broker took this request and sent it on: what only that one can judge, it has judged."""

    __slots__ = (
        "_started_s",
        "_times",
        "api_key",
        "client_id",
        "connection",
        "correlation_id",
        "frame",
        "slot",
        "version",
    )

    def __init__(
        self,
        connection: Connection,
        slot: int,
        frame: memoryview,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        times: RequestTimes | None = None,
    ) -> None:
        self.connection = connection
        self.slot = slot
        self.frame = frame  # valid only until the handler returns
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self._times = times
        self._started_s = 0.0 if times is None else times.now()

    def respond(self, message: Message) -> None:
        parts, _ = encode_response(self.api_key, self.version, self.correlation_id, message)
        self.connection.reply(self.slot, parts)
        if self._times is not None:
            self._times.answered(self.api_key, self._started_s)

    def respond_encoded(self, response: bytes) -> None:
        """A response frame without its size, made elsewhere for this very request."""
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
        """Of the listener that the client is connected to."""
        return self.connection.listener_name

    @property
    def peer_host(self) -> str:
        return self.connection.channel.peer[0]


class ForwardedContext(RequestContext):
    """Of a request that came by way of another broker, on a connection between the two."""

    is_forwarded: ClassVar[bool] = True

    __slots__ = ("_listener_name",)

    def __init__(
        self,
        connection: Connection,
        slot: int,
        frame: memoryview,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        listener_name: str,
    ) -> None:
        super().__init__(connection, slot, frame, api_key, version, correlation_id, client_id)
        self._listener_name = listener_name

    @property
    def listener_name(self) -> str:
        """Of the other broker's listener."""
        return self._listener_name
