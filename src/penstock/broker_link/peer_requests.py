"""Requests from this broker to other brokers, over one permanent connection to each: sent and answered in order.

Must not know: the meaning of requests, when to retry. Invariant: any failure closes the connection, so an answer never
belongs to an earlier request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from penstock.broker_link.introduction import PeerIdentity
from penstock.broker_link.peer_connection import open_to_peer
from penstock.model.addresses import Address
from penstock.wire.apis import Api
from penstock.wire.primitives import Message
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut

CONNECT_TIMEOUT_S: Final = 5.0

R = TypeVar("R", bound=Message)
AddressOf: TypeAlias = Callable[[int], Address | None]


class PeerRequests:
    def __init__(self, node_id: int, identity: PeerIdentity, address_of: AddressOf, apis: frozenset[Api]) -> None:
        """`apis`: all APIs that are used; brokers serve them to each other in all versions that they know."""
        self._client_id = f"broker-{node_id}"
        self._identity = identity
        self._address_of = address_of
        self._apis = apis
        self._connections: dict[int, tuple[Address, AsyncConnection]] = {}
        self._opening: dict[int, asyncio.Lock] = {}

    async def ask(self, broker: int, key: Api, request: Message, kind: type[R], timeout_s: float) -> R:
        """Raises BrokerUnreachable, ConnectionLost, RequestTimedOut."""
        connection = await self._connect(broker)
        try:
            return await connection.call(key, request, kind, timeout_s)
        except (ConnectionLost, RequestTimedOut):
            self._give_up(broker, connection)
            raise

    def close(self) -> None:
        for broker, (_, connection) in list(self._connections.items()):
            self._give_up(broker, connection)

    async def _connect(self, broker: int) -> AsyncConnection:
        async with self._opening.setdefault(broker, asyncio.Lock()):
            address = self._address_of(broker)
            if address is None:
                raise BrokerUnreachable(f"no address of broker {broker} is known")
            if broker in self._connections:
                known, connection = self._connections[broker]
                if known == address and connection.is_usable:
                    return connection
                self._give_up(broker, connection)
            connection = await open_to_peer(
                address, self._client_id, CONNECT_TIMEOUT_S, self._identity, self._apis, broker
            )
            self._connections[broker] = address, connection
            return connection

    def _give_up(self, broker: int, connection: AsyncConnection) -> None:
        known = self._connections.get(broker)
        if known is not None and known[1] is connection:
            del self._connections[broker]
        connection.close()
