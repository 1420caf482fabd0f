"""Kafka's protocol between two nodes of a cluster: after the introduction, and without ApiVersions."""

from __future__ import annotations

import asyncio

from penstock.broker_link.introduction import PeerIdentity, connect_to_peer
from penstock.model.addresses import Address
from penstock.wire.apis import Api
from penstock.wire.introduction import ANYBODY
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.aio.pipelined import reaching


async def open_to_peer(
    address: Address,
    client_id: str,
    timeout_s: float,
    identity: PeerIdentity,
    unadvertised: frozenset[Api],
    recipient: int = ANYBODY,
) -> AsyncConnection:
    """`unadvertised`: every API that is used on this connection. Nodes serve them in all versions that they know.

    Raises BrokerUnreachable.
    """
    loop = asyncio.get_running_loop()
    host, port = address
    async with reaching(host, port, timeout_s):
        return await connect_to_peer(
            loop, lambda: AsyncConnection(client_id, unadvertised), host, port, identity, recipient
        )
