"""The asynchronous client in a cluster whose leaders and coordinators move."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic
from penstock.model.topic_partition import TopicPartition
from penstock.wire.apis import Api
from penstock.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from penstock.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.list_groups import ListedGroup, ListGroupsResponse
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from penstock.wire.primitives import Message
from penstock.wire_client.aio import fetching, groups, topics
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.errors import BrokerUnreachable
from penstock.wire_client.requests.groups import OffsetAndMetadata
from penstock.wire_client.requests.offsets import LATEST_MS
from support.scripted.broker import ScriptedBroker

TP = TopicPartition("t", 0)


class ScriptedCluster:
    """Two brokers that say the same of the cluster; `leader` leads `t`, `coordinator` has every group."""

    def __init__(self) -> None:
        self.leader, self.coordinator = 1, 1
        self.brokers = {1: ScriptedBroker(), 2: ScriptedBroker()}
        self.live = [1, 2]
        for node_id, broker in self.brokers.items():
            broker.scripts[Api.METADATA] = self._metadata
            broker.scripts[Api.FIND_COORDINATOR] = self._find
            broker.scripts[Api.OFFSET_COMMIT] = self._commit(node_id)
            broker.scripts[Api.LIST_OFFSETS] = self._offsets(node_id)
            broker.scripts[Api.FETCH] = self._fetch(node_id)

    def _metadata(self, request: Message) -> Message:
        assert isinstance(request, MetadataRequest)
        names = ["t"] if request.topics is None else [topic.name or "" for topic in request.topics]
        return MetadataResponse(
            controller_id=2,
            brokers=[
                MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=self.brokers[node_id].port)
                for node_id in self.live
            ],
            topics=[
                MetadataResponseTopic(
                    name=name,
                    topic_id=b"t" * 16,
                    partitions=[
                        MetadataResponsePartition(partition_index=0, leader_id=self.leader, replica_nodes=[1, 2]),
                        MetadataResponsePartition(partition_index=1, leader_id=2, replica_nodes=[2, 1]),
                    ],
                )
                for name in names
            ],
        )

    def _find(self, request: Message) -> Message:
        broker = self.brokers[self.coordinator]
        return FindCoordinatorResponse(
            coordinators=[Coordinator(key="g", node_id=self.coordinator, host="127.0.0.1", port=broker.port)]
        )

    def _commit(self, node_id: int) -> Callable[[Message], Message]:
        def answer(request: Message) -> Message:
            code = ErrorCode.NONE if node_id == self.coordinator else ErrorCode.NOT_COORDINATOR
            partition = OffsetCommitResponsePartition(partition_index=0, error_code=code)
            return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[partition])])

        return answer

    def _offsets(self, node_id: int) -> Callable[[Message], Message]:
        def answer(request: Message) -> Message:
            is_leader = node_id == self.leader
            partition = ListOffsetsPartitionResponse(
                partition_index=0,
                error_code=ErrorCode.NONE if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                offset=7,
            )
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[partition])])

        return answer

    def _fetch(self, node_id: int) -> Callable[[Message], Message]:
        def answer(request: Message) -> Message:
            code = ErrorCode.NONE if node_id == self.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
            data = PartitionData(partition_index=0, error_code=code, high_watermark=7)
            return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])

        return answer

    def kill(self, node_id: int) -> None:
        self.brokers[node_id].__exit__(None, None, None)
        self.live.remove(node_id)


@pytest.fixture
def scripted() -> Iterator[ScriptedCluster]:
    scripted = ScriptedCluster()
    with ExitStack() as stack:
        for broker in scripted.brokers.values():
            stack.enter_context(broker)
        yield scripted


@asynccontextmanager
async def client(scripted: ScriptedCluster, *bootstrap: int) -> AsyncIterator[AsyncCluster]:
    cluster = AsyncCluster([scripted.brokers[node_id].address for node_id in bootstrap or (1, 2)])
    try:
        yield cluster
    finally:
        cluster.close()


async def test_a_commit_follows_its_coordinator(scripted: ScriptedCluster) -> None:
    moves = iter((2, 1, 1, 1))

    def find(request: Message) -> Message:
        scripted.coordinator, told = next(moves), scripted.coordinator
        broker = scripted.brokers[told]
        return FindCoordinatorResponse(
            coordinators=[Coordinator(key="g", node_id=told, host="127.0.0.1", port=broker.port)]
        )

    for broker in scripted.brokers.values():
        broker.scripts[Api.FIND_COORDINATOR] = find
    async with client(scripted) as cluster:
        await groups.commit(cluster, "g", {TP: OffsetAndMetadata(5, "")})
    sent = [len(broker.asked(OffsetCommitRequest)) for broker in scripted.brokers.values()]
    assert sum(sent) > 1, "the first was refused, since the coordinator had moved by then"


async def test_a_commit_survives_the_death_of_its_coordinator(scripted: ScriptedCluster) -> None:
    async with client(scripted) as cluster:
        await groups.commit(cluster, "g", {TP: OffsetAndMetadata(5, "")})
        scripted.kill(1)
        scripted.coordinator = 2
        await groups.commit(cluster, "g", {TP: OffsetAndMetadata(6, "")})
    assert len(scripted.brokers[2].asked(OffsetCommitRequest)) == 1


async def test_groups_are_asked_of_every_broker(scripted: ScriptedCluster) -> None:
    is_loading = iter((True, False))

    def listed(node_id: int) -> Callable[[Message], Message]:
        def answer(request: Message) -> Message:
            if node_id == 2 and next(is_loading):
                return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            groups = [f"of-{node_id}", "moving"]
            return ListGroupsResponse(groups=[ListedGroup(group_id=name, group_state="Empty") for name in groups])

        return answer

    for node_id, broker in scripted.brokers.items():
        broker.scripts[Api.LIST_GROUPS] = listed(node_id)
    async with client(scripted) as cluster:
        found = await groups.list_groups(cluster)
    assert [(one.group_id, one.coordinator_id) for one in found] == [("moving", 2), ("of-1", 1), ("of-2", 2)]


async def test_offsets_are_asked_of_the_new_leader(scripted: ScriptedCluster) -> None:
    async with client(scripted) as cluster:
        assert (await fetching.list_offsets(cluster, {TP: LATEST_MS}))[TP].offset == 7
        scripted.leader = 2
        assert (await fetching.list_offsets(cluster, {TP: LATEST_MS}))[TP].offset == 7
        assert len(scripted.brokers[1].asked(ListOffsetsRequest)) == 2
        scripted.leader = 1
        scripted.kill(1)
        scripted.leader = 2
        assert (await fetching.list_offsets(cluster, {TP: LATEST_MS}))[TP].offset == 7


async def test_a_fetch_finds_the_new_leader_by_itself(scripted: ScriptedCluster) -> None:
    async with client(scripted) as cluster:
        assert await fetching.fetch(cluster, {TP: 7}, max_wait_ms=1) == {}
        scripted.kill(1)
        scripted.leader = 2
        assert await fetching.fetch(cluster, {TP: 7}, max_wait_ms=1) == {}, "nothing now, and no failure"
        assert await fetching.fetch(cluster, {TP: 7}, max_wait_ms=1) == {}
    assert len(scripted.brokers[2].asked(FetchRequest)) == 1


async def test_with_no_broker_left_a_fetch_fails(scripted: ScriptedCluster) -> None:
    async with client(scripted) as cluster:
        assert await fetching.fetch(cluster, {TP: 7}, max_wait_ms=1) == {}
        scripted.kill(1)
        scripted.kill(2)
        with pytest.raises(BrokerUnreachable):
            await fetching.fetch(cluster, {TP: 7}, max_wait_ms=1)


async def test_a_partition_without_a_leader_does_not_stand_in_the_way_of_others(scripted: ScriptedCluster) -> None:
    scripted.leader = -1
    async with client(scripted) as cluster:
        assert await cluster.leader("t", 1) == 2
        asked = 0

        def elect(request: Message) -> Message:
            nonlocal asked
            asked += 1
            if asked == 3:
                scripted.leader = 1
            return scripted._metadata(request)

        for broker in scripted.brokers.values():
            broker.scripts[Api.METADATA] = elect
        assert await cluster.leader("t", 0) == 1


async def test_changes_go_to_any_broker_that_is_up(scripted: ScriptedCluster) -> None:
    answers = iter((ErrorCode.NOT_CONTROLLER, ErrorCode.NONE))

    def create(request: Message) -> Message:
        code = next(answers)
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="n", error_code=code, num_partitions=3)])

    scripted.brokers[2].scripts[Api.CREATE_TOPICS] = create
    scripted.kill(1)
    async with client(scripted) as cluster:
        assert await topics.create_topic(cluster, NewTopic("n")) == 3


async def test_the_last_broker_standing_is_not_taken_for_the_one_that_was_named(scripted: ScriptedCluster) -> None:
    async with client(scripted, 1) as cluster:
        assert len((await cluster.describe()).brokers) == 2
        scripted.live.remove(1)
        await cluster.describe()
        assert await cluster.address(2) == scripted.brokers[2].address


async def test_a_coordinator_that_stays_away_is_told_of(
    scripted: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "RETRY_FOR_S", 0.0)
    for broker in scripted.brokers.values():
        broker.scripts[Api.FIND_COORDINATOR] = lambda request: FindCoordinatorResponse(
            coordinators=[Coordinator(key="g", node_id=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)]
        )
    async with client(scripted) as cluster:
        with pytest.raises(ApiError) as refused:
            await groups.committed(cluster, "g")
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scripted.brokers[1].asked(FindCoordinatorRequest)


async def test_a_broker_that_says_nothing_is_asked_last_from_then_on(
    scripted: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.wire_client.aio.cluster.ANY_TIMEOUT_S", 0.05)
    released = threading.Event()

    def silent(request: Message) -> None:
        released.wait(10)

    scripted.brokers[1].scripts[Api.METADATA] = silent
    async with client(scripted) as cluster:
        for _ in range(3):
            assert len((await cluster.describe()).brokers) == 2
    assert len(scripted.brokers[1].asked(MetadataRequest)) == 1
    assert len(scripted.brokers[2].asked(MetadataRequest)) == 3
    released.set()


def test_blocking_too(scripted: ScriptedCluster) -> None:
    released = threading.Event()

    def silent(request: Message) -> None:
        released.wait(10)

    scripted.brokers[1].scripts[Api.METADATA] = silent
    cluster = BlockingCluster([broker.address for broker in scripted.brokers.values()], timeout_s=0.4)
    for _ in range(3):
        assert len(cluster.brokers()) == 2
    assert len(scripted.brokers[1].asked(MetadataRequest)) == 1
    released.set()
    cluster.close()
