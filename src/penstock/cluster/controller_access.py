"""How a broker reaches the active controller: a call if it is in this process, else a request.

Every method asks the node that leads the quorum now. A request that fails because leadership moved or a connection
broke is repeated until its deadline. A change that may have happened is safe to request twice: the metadata refuses the
second one. Must not know: what the controller decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from penstock.broker_link.introduction import PeerIdentity
from penstock.broker_link.peer_connection import open_to_peer
from penstock.cluster.controller import Controller
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.requests import HeartbeatAnswer, IsrAnswer, IsrChange, Registration, uuid_bytes
from penstock.model.addresses import Address
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.model.new_topic import NewTopic
from penstock.wire.apis import Api
from penstock.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from penstock.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from penstock.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from penstock.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from penstock.wire.messages.create_topics import CreateTopicsResponse
from penstock.wire.messages.update_raft_voter import (
    KRaftVersionFeature,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from penstock.wire.messages.update_raft_voter import Listener as VoterListener
from penstock.wire.primitives import Message
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut
from penstock.wire_client.requests.topics import create_topic_request, read_created

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)
T = TypeVar("T")

CONNECT_TIMEOUT_S = 1.0
REQUEST_TIMEOUT_S = 3.0
RETRY_PAUSE_S = 0.05
CHANGE_TIMEOUT_S = 10.0
UPDATE_TIMEOUT_S = 15.0
"""The controller tries several addresses."""
INTERNAL = frozenset(
    {
        Api.BROKER_REGISTRATION,
        Api.BROKER_HEARTBEAT,
        Api.ALTER_PARTITION,
        Api.ALLOCATE_PRODUCER_IDS,
        Api.CREATE_TOPICS,
        Api.UPDATE_RAFT_VOTER,
    }
)


class LedQuorum(Protocol):
    @property
    def leader_id(self) -> int | None: ...


class ControllerAccess:
    def __init__(
        self,
        identity: PeerIdentity,
        quorum: LedQuorum,
        controller: Controller,
        address_of: Callable[[int], Address | None],
        bootstrap: Sequence[Address] = (),
    ) -> None:
        self._node_id = identity.node_id
        self._identity = identity
        self._quorum = quorum
        self._controller = controller
        self._address_of = address_of
        self._bootstrap = list(bootstrap)
        self._connection: tuple[Address, AsyncConnection] | None = None
        self._opening = asyncio.Lock()
        self.broker_epoch = -1
        self._next_producer_id = self._producer_id_end = 0
        self._allocating = asyncio.Lock()

    @property
    def image(self) -> MetadataImage:
        return self._controller.image

    @property
    def brokers(self) -> list[int]:
        return self._controller.brokers

    def leader_changed(self) -> None:
        """Repeat pending requests with the new controller: a machine without power never closes its connections."""
        leader = self._quorum.leader_id
        if leader is not None and self._connection is not None and self._connection[0] != self._address_of(leader):
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    # # -- requests of a broker ------------------------------------------------------------

    async def create_topic(self, topic: NewTopic) -> None:
        """Raises ApiError. On return the topic is in the controller's image; this node's follows soon."""
        await self._retrying(lambda: self._create_topic(topic))

    async def _create_topic(self, topic: NewTopic) -> None:
        if self._controller.is_active:
            await _here(self._controller.topics.create_topic(topic))
            return
        request = create_topic_request(topic, int(REQUEST_TIMEOUT_S * 1000))
        read_created(await self._ask(Api.CREATE_TOPICS, request, CreateTopicsResponse))

    async def allocate_producer_id(self) -> int:
        """An id from a block that belongs to this broker alone."""
        async with self._allocating:
            if self._next_producer_id >= self._producer_id_end:
                # The ids of a block that are left after a crash are never used.
                first, length = await self._retrying(self._allocate_block)
                self._next_producer_id, self._producer_id_end = first, first + length
            producer_id = self._next_producer_id
            self._next_producer_id += 1
            return producer_id

    async def _allocate_block(self) -> tuple[int, int]:
        if self._controller.is_active:
            block = await _here(self._controller.topics.allocate_producer_ids(self._node_id, self.broker_epoch))
            return block.first, block.length
        request = AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self.broker_epoch)
        answer = await self._ask(Api.ALLOCATE_PRODUCER_IDS, request, AllocateProducerIdsResponse)
        _check(answer.error_code)
        return answer.producer_id_start, answer.producer_id_len

    async def alter_partitions(self, changes: Sequence[IsrChange]) -> list[IsrAnswer]:
        """One attempt: the caller repeats it with its current state. Raises ApiError."""
        if self._controller.is_active:
            return await _here(self._controller.partitions.alter_partitions(self._node_id, self.broker_epoch, changes))
        topics: dict[bytes, RequestTopicData] = {}
        for change in changes:
            topic = topics.setdefault(change.topic_id, RequestTopicData(topic_id=change.topic_id))
            topic.partitions.append(
                RequestPartitionData(
                    partition_index=change.index,
                    leader_epoch=change.leader_epoch,
                    partition_epoch=change.partition_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=broker, broker_epoch=epoch) for broker, epoch in change.new_isr
                    ],
                )
            )
        request = AlterPartitionRequest(
            broker_id=self._node_id, broker_epoch=self.broker_epoch, topics=list(topics.values())
        )
        answer = await self._ask(Api.ALTER_PARTITION, request, AlterPartitionResponse)
        _check(answer.error_code)
        return [
            IsrAnswer(
                topic.topic_id,
                entry.partition_index,
                ErrorCode(entry.error_code),
                entry.leader_id,
                entry.leader_epoch,
                tuple(entry.isr),
                entry.partition_epoch,
            )
            for topic in answer.topics
            for entry in topic.partitions
        ]

    async def register(self, registration: Registration) -> int:
        """One attempt; returns the broker's new epoch."""
        if self._controller.is_active:
            return await _here(self._controller.registry.register_broker(registration))
        request = BrokerRegistrationRequest(
            broker_id=registration.broker_id,
            cluster_id=registration.cluster_id,
            incarnation_id=registration.incarnation_id,
            listeners=[
                Listener(name=name, host=host, port=port) for name, (host, port) in registration.endpoints.items()
            ],
            features=[
                Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in registration.features.items()
            ],
            rack=registration.rack,
            log_dirs=[uuid_bytes(registration.directory_id)] if registration.directory_id else [],
            previous_broker_epoch=registration.previous_epoch,
        )
        answer = await self._ask(Api.BROKER_REGISTRATION, request, BrokerRegistrationResponse)
        _check(answer.error_code)
        return answer.broker_epoch

    async def heartbeat(
        self, current_metadata_offset: int, *, want_fence: bool, want_shut_down: bool
    ) -> HeartbeatAnswer:
        """One attempt."""
        if self._controller.is_active:
            return await _here(
                self._controller.registry.heartbeat(
                    self._node_id, self.broker_epoch, current_metadata_offset, want_fence, want_shut_down
                )
            )
        request = BrokerHeartbeatRequest(
            broker_id=self._node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=current_metadata_offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
        )
        answer = await self._ask(Api.BROKER_HEARTBEAT, request, BrokerHeartbeatResponse)
        _check(answer.error_code)
        return HeartbeatAnswer(answer.is_caught_up, answer.is_fenced, answer.should_shut_down)

    async def update_voter(self, directory_id: str, addresses: Sequence[Address]) -> None:
        """Report the addresses of this node, a voter. One attempt."""
        directory = uuid_bytes(directory_id)
        if self._controller.is_active:
            await _here(self._controller.voters.update_voter(self._node_id, directory, addresses))
            return
        request = UpdateRaftVoterRequest(
            cluster_id=self.image.cluster_id,
            current_leader_epoch=-1,
            voter_id=self._node_id,
            voter_directory_id=directory,
            listeners=[VoterListener(name="CONTROLLER", host=host, port=port) for host, port in addresses],
            k_raft_version_feature=KRaftVersionFeature(),
        )
        # Over its own connection: it takes long, and heartbeats would wait for it.
        try:
            connection = await self._open(self._target())
            try:
                answer = await connection.call(
                    Api.UPDATE_RAFT_VOTER, request, UpdateRaftVoterResponse, UPDATE_TIMEOUT_S
                )
            finally:
                connection.close()
        except (BrokerUnreachable, ConnectionLost, RequestTimedOut) as error:
            raise _unreachable(error) from error
        _check(answer.error_code)

    # -- the wire -----------------------------------------------------------------------

    async def _retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat until a controller answers; this node may have become the controller meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CHANGE_TIMEOUT_S
        while True:
            try:
                return await attempt()
            except ApiError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER or loop.time() >= deadline:
                    raise
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _ask(self, key: Api, request: Message, kind: type[R]) -> R:
        """Raises NOT_CONTROLLER also if no node could be reached."""
        try:
            connection = await self._connect()
            return await connection.call(key, request, kind, REQUEST_TIMEOUT_S)
        except (BrokerUnreachable, ConnectionLost, RequestTimedOut) as error:
            self.close()
            raise _unreachable(error) from error

    async def _connect(self) -> AsyncConnection:
        async with self._opening:
            address = self._target()
            if self._connection is not None:
                known, connection = self._connection
                if known == address and connection.is_usable:
                    return connection
                self.close()
            connection = await self._open(address)
            self._connection = address, connection
            return connection

    async def _open(self, address: Address) -> AsyncConnection:
        # Accepts any node: a bootstrap address does not tell the node id.
        return await open_to_peer(address, f"broker-{self._node_id}", CONNECT_TIMEOUT_S, self._identity, INTERNAL)

    def _target(self) -> Address:
        leader = self._quorum.leader_id
        address = None if leader is None or leader == self._node_id else self._address_of(leader)
        if address is not None:
            return address
        if leader != self._node_id and self._bootstrap:
            # Not a member yet, or the leader's address is unknown: any node forwards the request. Tries one after the
            # other.
            self._bootstrap.append(self._bootstrap.pop(0))
            return self._bootstrap[0]
        raise ApiError(ErrorCode.NOT_CONTROLLER, "no controller is known")


async def _here(decision: Awaitable[T]) -> T:
    """A full or failed disk of the controller is reported as it is over the wire."""
    try:
        return await decision
    except StorageError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error


def _unreachable(error: Exception) -> ApiError:
    return ApiError(ErrorCode.NOT_CONTROLLER, f"the controller cannot be reached: {error}")


def _check(code: int, message: str | None = None) -> None:
    if code:
        raise ApiError(ErrorCode(code), message)
