"""Requests to brokers over the wire with little patience: connections, leaders, coordinators.

A request without an answer in time closes its connection, because answers come in order and later ones would wait as
well. Known leaders are replaced only by newer ones (a higher leader epoch of the same topic), as in Kafka's clients.
Must not know: records, groups, histories.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode
from penstock.sim.judges.history import Place
from penstock.wire.apis import Api
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.metadata import MetadataResponse
from penstock.wire.primitives import Message
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.requests.errors import (
    BrokerUnreachable,
    ConnectionLost,
    RequestTimedOut,
    WireClientError,
    error_code,
)
from penstock.wire_client.requests.groups import TRANSACTION_KEY, coordinator_request
from penstock.wire_client.requests.metadata import metadata_request

R = TypeVar("R", bound=Message)

CONNECT_TIMEOUT_S = 1.0
# Errors a client meets while brokers come and go.
TROUBLE = (WireClientError, ApiError, OSError)


class KnownLeader(NamedTuple):
    node_id: int
    epoch: int
    topic_id: bytes


class Caller:
    def __init__(self, bootstrap: Sequence[Address], name: str, random: Random, patience_s: float = 1.5) -> None:
        self.name = name
        self.patience_s = patience_s
        self.random = random
        self.counts: Counter[str] = Counter()
        self.leaders: dict[Place, KnownLeader] = {}
        self.replicas: dict[Place, list[int]] = {}
        self.topics: dict[str, int] = {}
        """The last known number of partitions."""
        self._lives: dict[str, tuple[str, bytes]] = {}
        self._bootstrap = list(bootstrap)
        self._brokers: dict[int, Address] = {}
        self._connections: dict[tuple[Address, str], AsyncConnection] = {}

    # -- requests -----------------------------------------------------------------------

    async def connection(self, address: Address, purpose: str = "") -> AsyncConnection:
        key = (address, purpose)
        connection = self._connections.get(key)
        if connection is None or not connection.is_usable:
            connection = self._connections[key] = await AsyncConnection.open(*address, self.name, CONNECT_TIMEOUT_S)
        return connection

    async def ask(
        self,
        address: Address,
        key: Api,
        request: Message,
        kind: type[R],
        *,
        purpose: str = "",
        wait_s: float = 0.0,
        has_topic_ids: bool = False,
        newest: int | None = None,
    ) -> R:
        """`wait_s` is how long the broker itself may wait; `newest`: the highest version to use. Raises ClientError,
        ApiError(UNSUPPORTED_VERSION)."""
        connection = await self.connection(address, purpose)
        try:
            return await connection.call(
                key, request, kind, timeout_s=self.patience_s + wait_s, has_topic_ids=has_topic_ids, newest=newest
            )
        except (RequestTimedOut, ConnectionLost):
            connection.close()
            raise

    async def answer(self, connection: AsyncConnection, sent: asyncio.Future[Message], kind: type[R]) -> R:
        """The answer to a request sent before; same errors."""
        try:
            async with asyncio.timeout(self.patience_s):
                message = await sent
        except TimeoutError:
            connection.close()
            raise RequestTimedOut(f"no answer within {self.patience_s:g} s") from None
        except ConnectionLost:
            connection.close()
            raise
        assert isinstance(message, kind)
        return message

    async def pause(self, typical_s: float) -> None:
        await asyncio.sleep(typical_s * (0.5 + self.random.random()))

    def note(self, error: Exception) -> None:
        """Counted for people."""
        self.counts[error.code.name if isinstance(error, ApiError) else type(error).__name__] += 1

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- the cluster --------------------------------------------------------------------

    def know_by_id(self, topic: str, name: str, topic_id: bytes) -> None:
        """`topic` stands for one incarnation of the topic with that name: requests use its id."""
        self._lives[topic] = name, topic_id

    def id_of(self, topic: str) -> bytes | None:
        """None: requests use its name."""
        life = self._lives.get(topic)
        return None if life is None else life[1]

    def address_of(self, node_id: int) -> Address:
        if node_id not in self._brokers:
            raise BrokerUnreachable(f"unknown broker {node_id}")
        return self._brokers[node_id]

    def bootstrap(self, addresses: Iterable[Address]) -> None:
        """Ask only these for metadata and other things that any broker knows."""
        self._bootstrap = list(addresses)

    def any_address(self) -> Address:
        return self.random.choice(self._bootstrap)

    async def refresh(self, topics: Sequence[str] | None = None) -> MetadataResponse:
        """Ask a random broker for the metadata."""
        names = [self._lives.get(topic, (topic,))[0] for topic in topics or ()]
        request = metadata_request(None if topics is None else names)
        answer = await self.ask(self.any_address(), Api.METADATA, request, MetadataResponse, purpose="metadata")
        self._brokers.update({broker.node_id: (broker.host, broker.port) for broker in answer.brokers})
        for topic in answer.topics:
            if topic.error_code or topic.name is None:
                continue
            self.topics[topic.name] = len(topic.partitions)
            lives = [life for life, known in self._lives.items() if known == (topic.name, topic.topic_id)]
            for partition in topic.partitions:
                for called in (topic.name, *lives):
                    place = Place(called, partition.partition_index)
                    self.replicas[place] = list(partition.replica_nodes)
                    self._learn(place, KnownLeader(partition.leader_id, partition.leader_epoch, topic.topic_id))
        return answer

    def _learn(self, place: Place, heard: KnownLeader) -> None:
        known = self.leaders.get(place)
        if known is None or known.topic_id != heard.topic_id or heard.epoch >= known.epoch:
            self.leaders[place] = heard

    async def leader(self, place: Place) -> KnownLeader:
        """Raises ApiError(LEADER_NOT_AVAILABLE), ClientError."""
        known = self.leaders.get(place)
        if known is None or known.node_id < 0 or known.node_id not in self._brokers:
            await self.refresh([place.topic])
            known = self.leaders.get(place)
        if known is None or known.node_id < 0:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{place} has no leader")
        return known

    async def look_again(self, place: Place) -> None:
        """An error shows that this leader is wrong."""
        try:
            await self.refresh([place.topic])
        except TROUBLE as error:
            self.note(error)

    async def coordinator(self, group: str) -> Address:
        return await self._find(coordinator_request(group))

    async def transaction_coordinator(self, transactional_id: str) -> Address:
        return await self._find(coordinator_request(transactional_id, TRANSACTION_KEY))

    async def _find(self, request: FindCoordinatorRequest) -> Address:
        answer = await self.ask(
            self.any_address(), Api.FIND_COORDINATOR, request, FindCoordinatorResponse, purpose="metadata"
        )
        found = answer.coordinators[0] if answer.coordinators else answer
        if found.error_code:
            raise ApiError(error_code(found.error_code), found.error_message or "no coordinator")
        return found.host, found.port
