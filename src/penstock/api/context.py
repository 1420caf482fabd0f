"""One request on its way through: who asked, and the way back."""

from __future__ import annotations

from penstock.net.connection import Connection
from penstock.wire.codec import encode_response
from penstock.wire.primitives import Message


class RequestContext:
    __slots__ = ("api_key", "client_id", "connection", "correlation_id", "frame", "slot", "version")

    def __init__(
        self,
        connection: Connection,
        slot: int,
        frame: memoryview,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
    ) -> None:
        self.connection = connection
        self.slot = slot
        self.frame = frame  # valid only until the handler returns
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def respond(self, message: Message) -> None:
        parts, _ = encode_response(self.api_key, self.version, self.correlation_id, message)
        self.connection.reply(self.slot, parts)

    def respond_nothing(self) -> None:
        """acks=0: the slot is done and the client expects no bytes."""
        self.connection.reply(self.slot, [])

    @property
    def peer_host(self) -> str:
        return self.connection.channel.peer[0]
