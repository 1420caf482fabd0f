"""The cluster as a client sees it: brokers, topics, leaders, and connections to them.

Metadata is cached, and requested again when it is old or a broker reports that it is wrong. A connection answers in
order, so long waits must not share one: the `control` and `produce` connections of a broker are shared, while a fetch
that waits for data takes a `lease`. Must not know: records, groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.workers import RecordWorkers
from penstock.wire.apis import Api
from penstock.wire.messages.metadata import MetadataResponse
from penstock.wire.primitives import Message
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.requests.errors import BrokerUnreachable, Overloaded, WireClientError, check, error_code
from penstock.wire_client.requests.limits import REQUEST_TIMEOUT_S
from penstock.wire_client.requests.metadata import (
    METADATA_MAX_AGE_S,
    BrokerMetadata,
    ClusterMetadata,
    TopicMetadata,
    metadata_request,
    read_brokers,
    read_topic,
)
from penstock.wire_client.requests.sentences import no_leader, no_such_partition, no_such_topic, not_a_topic_name

TOPIC_TIMEOUT_S = 10.0
RETRY_S = 0.05
MAX_LEASES = 512
ANY_TIMEOUT_S = 5.0
"""The timeout for one broker while there are others to ask."""

R = TypeVar("R", bound=Message)


class AsyncCluster:
    def __init__(self, bootstrap: Sequence[Address], client_id: str = "penstock") -> None:
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._brokers: dict[int, BrokerMetadata] = {}
        self._seen: set[int] = set()
        """Every broker that this client has ever known."""
        self._topics: dict[str, tuple[float, TopicMetadata]] = {}
        self._asking: dict[tuple[str, bool], asyncio.Task[TopicMetadata]] = {}
        self._shared: dict[tuple[Address, str], AsyncConnection] = {}
        self._opening: dict[tuple[Address, str], asyncio.Lock] = {}
        self._idle: dict[Address, list[AsyncConnection]] = {}
        self._leases = 0
        self._lost_at: dict[Address, float] = {}
        self.record_workers: RecordWorkers | None = None  # decode fetched records, if the loop has other work

    # -- metadata -----------------------------------------------------------------------

    async def describe(self) -> ClusterMetadata:
        """The metadata of the whole cluster, requested now."""
        answer = await self._metadata(None, create=False)
        topics = [read_topic(entry) for entry in answer.topics if entry.error_code == ErrorCode.NONE]
        return ClusterMetadata(
            answer.cluster_id or "",
            answer.controller_id,
            tuple(sorted(self._brokers.values())),
            tuple(sorted(topics, key=lambda topic: topic.name)),
        )

    async def topic(self, name: str, *, create: bool = False, max_age_s: float = METADATA_MAX_AGE_S) -> TopicMetadata:
        """The metadata of a topic. With `create`, the cluster may create a missing topic, if its settings allow it.

        Raises ApiError: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION.
        """
        known = self._topics.get(name)
        if known is not None and asyncio.get_running_loop().time() - known[0] < max_age_s:
            return known[1]
        task = self._asking.get((name, create))
        if task is None:
            task = self._asking[name, create] = asyncio.create_task(self._ask_for_topic(name, create))
            task.add_done_callback(lambda done: self._asked(name, create, done))
        return await asyncio.shield(task)

    def _asked(self, name: str, create: bool, task: asyncio.Task[TopicMetadata]) -> None:
        del self._asking[name, create]
        if not task.cancelled():
            task.exception()  # the caller may have been cancelled

    async def _ask_for_topic(self, name: str, create: bool) -> TopicMetadata:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TOPIC_TIMEOUT_S
        while True:
            answer = await self._metadata([name], create=create)
            entry = answer.topics[0]
            if entry.error_code == ErrorCode.NONE:
                info = read_topic(entry)
                # Some partitions may have no leader; `leader` waits for it.
                if any(partition.leader_id >= 0 for partition in info.partitions):
                    self._topics[name] = (loop.time(), info)
                    return info
            elif entry.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not create:
                self.forget(name)
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, no_such_topic(name))
            elif entry.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION:
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, not_a_topic_name(name))
            elif entry.error_code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE):
                check(entry.error_code)
            if loop.time() > deadline:
                code = error_code(entry.error_code) or ErrorCode.LEADER_NOT_AVAILABLE
                if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise ApiError(code, f"{no_such_topic(name)}, and the cluster has not created it")
                raise ApiError(code, f"topic '{name}' has no leader")
            # The topic is new and its leaders are about to be elected. A cluster that does not create
            # topics automatically keeps answering that there is none.
            if entry.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                deadline = min(deadline, loop.time() + 1.0)
            await asyncio.sleep(RETRY_S)

    def forget(self, name: str) -> None:
        """Drops the metadata of a topic, after a broker reported that it is wrong."""
        self._topics.pop(name, None)

    async def _metadata(self, names: list[str] | None, *, create: bool) -> MetadataResponse:
        answer = await self.call_any(Api.METADATA, metadata_request(names, create=create), MetadataResponse)
        self._brokers = read_brokers(answer)
        self._seen |= self._brokers.keys()
        return answer

    async def call_any(self, key: Api, request: Message, kind: type[R]) -> R:
        """The answer of the first broker that answers: connected ones first, brokers that failed recently come last.
        Only for requests that may be sent twice.
        """
        failure: WireClientError = BrokerUnreachable("no broker is known")
        addresses = self._known_addresses()
        for address in addresses:
            timeout_s = REQUEST_TIMEOUT_S if address == addresses[-1] else ANY_TIMEOUT_S
            try:
                connection = await self._shared_connection(address, "control")
                answer = await connection.call(key, request, kind, timeout_s)
            except WireClientError as error:
                self._lost_at[address] = asyncio.get_running_loop().time()
                failure = error
            else:
                self._lost_at.pop(address, None)
                return answer
        raise failure

    def _known_addresses(self) -> list[Address]:
        known = dict.fromkeys((*self._bootstrap, *((b.host, b.port) for b in self._brokers.values())))
        return sorted(known, key=lambda at: (self._lost_at.get(at, 0.0), not self._is_connected(at)))

    def _is_connected(self, address: Address) -> bool:
        connection = self._shared.get((address, "control"))
        return connection is not None and connection.is_usable

    async def address(self, node_id: int) -> Address:
        if node_id not in self._brokers:
            await self._metadata([], create=False)
        broker = self._brokers.get(node_id)
        if broker is not None and len(self._seen) == len(self._bootstrap) == 1:
            # The only broker of the cluster is at the bootstrap address. The address that it advertises may be meant
            # for another network.
            return self._bootstrap[0]
        if broker is None:
            raise BrokerUnreachable(f"broker {node_id} is not known to the cluster")
        return broker.host, broker.port

    async def leader(self, topic: str, partition: int) -> int:
        """The partition's leader. Waits for an election. Raises ApiError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TOPIC_TIMEOUT_S
        while True:
            info = await self.topic(topic)
            if not 0 <= partition < len(info.partitions):
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, no_such_partition(topic, partition))
            leader_id = info.partitions[partition].leader_id
            if leader_id >= 0:
                return leader_id
            self.forget(topic)
            if loop.time() > deadline:
                raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, no_leader(topic, partition))
            await asyncio.sleep(RETRY_S)

    # -- connections --------------------------------------------------------------------

    async def control(self, node_id: int) -> AsyncConnection:
        return await self._shared_connection(await self.address(node_id), "control")

    async def controller(self) -> AsyncConnection:
        """A connection for cluster changes: to any broker, which forwards them to the controller."""
        failure: WireClientError = BrokerUnreachable("no broker is known")
        for address in self._known_addresses():
            try:
                return await self._shared_connection(address, "control")
            except WireClientError as error:
                self._lost_at[address] = asyncio.get_running_loop().time()
                failure = error
        raise failure

    async def produce(self, node_id: int) -> AsyncConnection:
        return await self._shared_connection(await self.address(node_id), "produce")

    async def _shared_connection(self, address: Address, purpose: str) -> AsyncConnection:
        key = (address, purpose)
        connection = self._shared.get(key)
        if connection is not None and connection.is_usable:
            return connection
        async with self._opening.setdefault(key, asyncio.Lock()):
            connection = self._shared.get(key)
            if connection is None or not connection.is_usable:
                connection = self._shared[key] = await AsyncConnection.open(*address, self._client_id)
        return connection

    async def dedicated(self, node_id: int, client_id: str | None = None) -> AsyncConnection:
        """A connection that the caller owns and closes, with its own client id if given."""
        return await AsyncConnection.open(*await self.address(node_id), client_id or self._client_id)

    @asynccontextmanager
    async def lease(self, node_id: int) -> AsyncIterator[AsyncConnection]:
        """A connection that no other caller uses meanwhile. An exception closes it."""
        address = await self.address(node_id)
        if self._leases >= MAX_LEASES:
            raise Overloaded(f"more than {MAX_LEASES} readers wait for data")
        self._leases += 1
        try:
            idle = self._idle.setdefault(address, [])
            connection = None
            while idle and (connection is None or not connection.is_usable):
                connection = idle.pop()
            if connection is None or not connection.is_usable:
                connection = await AsyncConnection.open(*address, self._client_id)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            idle.append(connection)
        finally:
            self._leases -= 1

    def close(self) -> None:
        for connection in self._shared.values():
            connection.close()
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._shared.clear()
        self._idle.clear()
