"""The group APIs as raw frames: every version advertised, and what clients rely on in each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from group_client import SUBSCRIPTION, GroupClient, Later
from wire_client import WireClient

from penstock.model.errors import ErrorCode
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.delete_groups import DeleteGroupsRequest
from penstock.wire.messages.describe_groups import DescribeGroupsRequest
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.heartbeat import HeartbeatRequest
from penstock.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.messages.list_groups import ListGroupsRequest
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from penstock.wire.messages.sync_group import SyncGroupRequest

# Heartbeats are held only where a test is about that: the others ask for one answer after the other.
SETTINGS = {
    "penstock.group.heartbeat.hold.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
}
_names = itertools.count(1)


@pytest.fixture(scope="module")
def group_broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as broker:
        yield broker


@pytest.fixture
def client(group_broker: Broker) -> Iterator[GroupClient]:
    with WireClient(group_broker.port) as wire:
        client = GroupClient(wire, f"group-{next(_names)}")
        client.find()
        yield client


@pytest.fixture
def other(group_broker: Broker, client: GroupClient) -> Iterator[GroupClient]:
    """Another connection for the same group: a connection waits while its join is parked."""
    with WireClient(group_broker.port) as wire:
        yield GroupClient(wire, client.group)


# -- FindCoordinator ----------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_here_at_the_first_question(version: int) -> None:
    with Broker(SETTINGS) as broker, WireClient(broker.port) as wire:
        client = GroupClient(wire, "g")
        response = client.find(version)
        found = response.coordinators[0] if version >= 4 else response
        assert (found.error_code, found.host, found.port) == (0, "127.0.0.1", broker.port)
        assert found.node_id == 1
        topic = wire.describe("__consumer_offsets")
        assert (len(topic.partitions), topic.is_internal) == (5, True)


def test_asking_for_the_topic_by_name_does_not_make_it() -> None:
    """It would come with the settings of any other topic, and forget offsets by retention."""
    with Broker(SETTINGS) as broker, WireClient(broker.port) as wire:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="__consumer_offsets")])
        for _ in range(3):
            assert wire.call(Api.METADATA, 12, request).topics[0].error_code == 3
        GroupClient(wire, "g").find()
        assert len(wire.describe("__consumer_offsets").partitions) == 5


def test_other_kinds_of_coordinators(client: GroupClient) -> None:
    for key_type, code in ((1, 0), (2, 15), (9, 42)):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x", "y"])
        response = client.wire.call(Api.FIND_COORDINATOR, 4, request)
        assert [(each.key, each.error_code) for each in response.coordinators] == [("x", code), ("y", code)]


# -- a member's life, in every version ----------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_join(client: GroupClient, version: int) -> None:
    first = client.join(version=version)
    if version >= 4:
        assert first.error_code == 79
        assert first.member_id
        first = client.join(first.member_id, version)
    assert (first.error_code, first.generation_id, first.protocol_name) == (0, 1, "range")
    assert first.protocol_type == ("consumer" if version >= 7 else None)
    assert first.leader == first.member_id
    assert [(member.member_id, member.metadata) for member in first.members] == [(first.member_id, SUBSCRIPTION)]
    refused = client.join("stranger", version)
    assert (refused.error_code, refused.member_id) == (25, "stranger")
    assert refused.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", range(6))
def test_sync(client: GroupClient, version: int) -> None:
    joined = client.enter()
    synced = client.sync(joined, {joined.member_id: b"mine"}, version)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    assert synced.protocol_name == ("range" if version >= 5 else None)


def test_sync_names_the_protocol(client: GroupClient) -> None:
    joined = client.enter()
    request = SyncGroupRequest(group_id=client.group, generation_id=1, member_id=joined.member_id)
    assert client.wire.call(Api.SYNC_GROUP, 5, request).error_code == 23


@pytest.mark.parametrize("version", range(5))
def test_heartbeat(client: GroupClient, version: int) -> None:
    joined = client.stable()
    assert client.heartbeat(joined.member_id, 1, version) == 0
    assert client.heartbeat(joined.member_id, 2, version) == 22
    assert client.heartbeat("stranger", 1, version) == 25


@pytest.mark.parametrize("version", range(6))
def test_leave(client: GroupClient, version: int) -> None:
    joined = client.stable()
    response = client.leave(joined.member_id, version)
    again = client.leave(joined.member_id, version)
    if version < 3:
        assert (response.error_code, again.error_code) == (0, 25)
    else:
        assert [member.error_code for member in response.members + again.members] == [0, 25]
        assert (response.error_code, again.error_code) == (0, 0)
    assert client.describe().group_state == "Empty"


def test_many_leave_at_once_by_instance_id(client: GroupClient, other: GroupClient) -> None:
    first = client.enter(group_instance_id="i1")
    second = Later(lambda: other.join(group_instance_id="i2"))
    assert second.is_waiting()
    client.join(first.member_id, group_instance_id="i1")
    assert second.result().error_code == 0
    identities = [MemberIdentity(group_instance_id=name) for name in ("i1", "i2", "i3")]
    request = LeaveGroupRequest(group_id=client.group, members=identities)
    response = client.wire.call(Api.LEAVE_GROUP, 5, request)
    assert [(member.group_instance_id, member.error_code) for member in response.members] == [
        ("i1", 0),
        ("i2", 0),
        ("i3", 25),
    ]


def test_a_rebalance_of_two(client: GroupClient, other: GroupClient) -> None:
    first = client.stable()
    joining = Later(other.enter)
    assert joining.is_waiting()
    assert client.heartbeat(first.member_id, 1) == 27
    again = client.join(first.member_id)
    second = joining.result()
    assert (again.generation_id, second.generation_id) == (2, 2)
    assert {member.member_id for member in again.members} == {first.member_id, second.member_id}
    assert second.members == []
    waiting = Later(lambda: other.sync(second))
    assert waiting.is_waiting()
    client.sync(again, {first.member_id: b"1", second.member_id: b"2"})
    assert waiting.result().assignment == b"2"
    # The second one's connection breaks without a word; the first goes on, and its leaving is noticed.
    other.wire.socket.close()
    client.leave(second.member_id)
    assert client.heartbeat(first.member_id, 2) == 27


def test_a_heartbeat_is_answered_when_a_rebalance_begins() -> None:
    settings = {**SETTINGS, "penstock.group.heartbeat.hold.ms": "3000"}
    with Broker(settings) as broker, WireClient(broker.port) as wire, WireClient(broker.port) as wire_too:
        client, other = GroupClient(wire, "g"), GroupClient(wire_too, "g")
        client.find()
        joined = client.stable()
        held = Later(lambda: client.heartbeat(joined.member_id, 1))
        assert held.is_waiting(0.5)
        joining = Later(other.enter)
        assert held.result() == 27
        client.join(joined.member_id)
        assert joining.result().error_code == 0


def test_a_held_heartbeat_is_not_in_the_way() -> None:
    settings = {**SETTINGS, "penstock.group.heartbeat.hold.ms": "3000"}
    with Broker(settings) as broker, WireClient(broker.port) as wire:
        client = GroupClient(wire, "g")
        client.find()
        joined = client.stable()
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        started = time.monotonic()
        for _ in range(10):
            wire.send(Api.HEARTBEAT, 4, request)
            wire.send(Api.LIST_GROUPS, 5, ListGroupsRequest())
            assert wire.receive(Api.HEARTBEAT, 4)[1].error_code == 0
            assert wire.receive(Api.LIST_GROUPS, 5)[1].error_code == 0
        assert time.monotonic() - started < 1


def test_leaving_does_not_wait_for_the_join_before_it(client: GroupClient, other: GroupClient) -> None:
    client.stable()
    given = other.join()
    assert given.error_code == 79
    wire = other.wire
    wire.send(Api.JOIN_GROUP, 9, other.join_request(given.member_id))
    identity = MemberIdentity(member_id=given.member_id)
    wire.send(Api.LEAVE_GROUP, 5, LeaveGroupRequest(group_id=other.group, members=[identity]))
    assert wire.receive(Api.JOIN_GROUP, 9)[1].error_code == 27
    assert [member.error_code for member in wire.receive(Api.LEAVE_GROUP, 5)[1].members] == [0]


def test_leaving_does_not_wait_for_the_sync_before_it(client: GroupClient, other: GroupClient) -> None:
    first = client.stable()
    joining = Later(other.enter)
    assert joining.is_waiting()
    client.join(first.member_id)
    second = joining.result()
    syncing = Later(lambda: other.sync(second))
    assert syncing.is_waiting()
    identity = MemberIdentity(member_id=second.member_id)
    other.wire.send(Api.LEAVE_GROUP, 5, LeaveGroupRequest(group_id=other.group, members=[identity]))
    assert syncing.result().error_code == 27
    assert [member.error_code for member in other.wire.receive(Api.LEAVE_GROUP, 5)[1].members] == [0]


def test_bad_sessions_groups_and_protocols(client: GroupClient) -> None:
    assert client.join(session_timeout_ms=5).error_code == 26
    assert client.join(group_id="").error_code == 24
    assert client.join(protocols=[]).error_code == 23


# -- offsets ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
def test_commit(client: GroupClient, version: int) -> None:
    topic = client.wire.create_topic(2)
    topic_id = client.wire.describe(topic).topic_id
    assert client.commit(topic, {0: 5, 1: 6, 2: 7}, version, topic_id=topic_id) == {0: 0, 1: 0, 2: 3}
    assert client.committed(topic, [0, 1]) == {0: (5, "note"), 1: (6, "note")}
    unknown = client.commit("no-such-topic", {0: 1}, version, topic_id=bytes([9] * 16))
    assert unknown == {0: 100 if version >= 10 else 3}


@pytest.mark.parametrize("version", range(1, 11))
def test_fetch_offsets(client: GroupClient, version: int) -> None:
    topic = client.wire.create_topic(2)
    topic_id = client.wire.describe(topic).topic_id
    client.commit(topic, {1: 6})
    assert client.committed(topic, [0, 1], version, topic_id=topic_id) == {0: (-1, ""), 1: (6, "note")}
    if version >= 2:
        assert client.committed(None, [], version) == {1: (6, "note")}


def test_fetch_offsets_of_many_groups(client: GroupClient) -> None:
    topic = client.wire.create_topic()
    client.commit(topic, {0: 3})
    asked = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group_id=name, topics=asked) for name in (client.group, "nobody")]
    response = client.wire.call(Api.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups, require_stable=True))
    assert [
        (group.group_id, group.error_code, group.topics[0].partitions[0].committed_offset) for group in response.groups
    ] == [(client.group, 0, 3), ("nobody", 0, -1)]


def test_fetch_offsets_by_an_unknown_id(client: GroupClient) -> None:
    asked = [OffsetFetchRequestTopics(topic_id=bytes([9] * 16), partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group_id=client.group, topics=asked)]
    (group,) = client.wire.call(Api.OFFSET_FETCH, 10, OffsetFetchRequest(groups=groups)).groups
    assert group.topics[0].partitions[0].error_code == 100


def test_members_and_strangers_commit(client: GroupClient) -> None:
    topic = client.wire.create_topic()
    joined = client.stable()
    member: dict[str, Any] = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
    assert client.commit(topic, {0: 1}, **member) == {0: 0}
    assert client.commit(topic, {0: 2}) == {0: 25}
    assert client.commit(topic, {0: 2}, **{**member, "generation_id_or_member_epoch": 0}) == {0: 22}
    assert client.committed(topic, [0]) == {0: (1, "note")}
    nobody = GroupClient(client.wire, "not-there")
    stranger: dict[str, Any] = {"member_id": "m", "generation_id_or_member_epoch": 1}
    assert nobody.commit(topic, {0: 1}, version=9, **stranger) == {0: 69}
    assert nobody.commit(topic, {0: 1}, version=8, **stranger) == {0: 22}


def test_a_deleted_topic_takes_its_offsets_along(client: GroupClient) -> None:
    topic = client.wire.create_topic()
    client.commit(topic, {0: 4})
    client.wire.delete_topic(topic)
    client.wire.create_topic(name=topic)
    assert client.committed(topic, [0]) == {0: (-1, "")}


def test_delete_offsets(client: GroupClient) -> None:
    topic = client.wire.create_topic(2)

    def delete(group: str, *partitions: int) -> tuple[int, list[int]]:
        asked = OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in partitions]
        )
        response = client.wire.call(Api.OFFSET_DELETE, 0, OffsetDeleteRequest(group_id=group, topics=[asked]))
        codes = [each.error_code for found in response.topics for each in found.partitions]
        return response.error_code, codes

    assert delete("nobody", 0) == (69, [])
    client.commit(topic, {0: 4, 1: 5})
    assert delete(client.group, 0, 7) == (0, [0, 3])
    assert client.committed(topic, [0, 1]) == {0: (-1, ""), 1: (5, "note")}


# -- looking and deleting -----------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_describe(client: GroupClient, version: int) -> None:
    joined = client.stable()
    group = client.describe(version)
    assert (group.error_code, group.group_state, group.protocol_type, group.protocol_data) == (
        0,
        "Stable",
        "consumer",
        "range",
    )
    (member,) = group.members
    assert (member.member_id, member.member_metadata, member.member_assignment) == (
        joined.member_id,
        SUBSCRIPTION,
        b"mine",
    )
    assert member.client_host == "/127.0.0.1"
    missing = GroupClient(client.wire, "nobody").describe(version)
    assert (missing.error_code, missing.group_state) == (69 if version >= 6 else 0, "Dead")
    request = DescribeGroupsRequest(groups=[client.group], include_authorized_operations=True)
    (with_operations,) = client.wire.call(Api.DESCRIBE_GROUPS, version, request).groups
    assert with_operations.authorized_operations == (3400 if version >= 3 else -(2**31))


@pytest.mark.parametrize("version", range(6))
def test_list(client: GroupClient, version: int) -> None:
    client.stable()
    assert client.group in client.listed(version)
    if version >= 4:
        assert client.group in client.listed(version, states_filter=["Stable"])
        assert client.group not in client.listed(version, states_filter=["Empty"])
    if version >= 5:
        assert client.group in client.listed(version, types_filter=["classic"])
        assert client.group not in client.listed(version, types_filter=["consumer"])


@pytest.mark.parametrize("version", range(3))
def test_delete(client: GroupClient, version: int) -> None:
    joined = client.stable()
    request = DeleteGroupsRequest(groups_names=[client.group, "nobody"])

    def delete() -> dict[str, int]:
        response = client.wire.call(Api.DELETE_GROUPS, version, request)
        return {result.group_id: result.error_code for result in response.results}

    assert delete() == {client.group: 68, "nobody": 69}
    client.leave(joined.member_id)
    assert delete() == {client.group: 0, "nobody": 69}
    assert client.group not in client.listed()


# -- before, during and after -------------------------------------------------------------


def test_before_anybody_has_looked_for_a_coordinator() -> None:
    with Broker(SETTINGS) as broker, WireClient(broker.port) as wire:
        client = GroupClient(wire, "g")
        assert client.listed() == []
        assert client.join().error_code == 16
        assert client.heartbeat("m", 1) == 16


def test_members_and_offsets_live_through_a_restart(tmp_path: Path) -> None:
    data = str(tmp_path)
    with Broker(SETTINGS, data=data) as broker, WireClient(broker.port) as wire:
        client = GroupClient(wire, "g")
        client.find()
        topic = wire.create_topic()
        joined = client.stable()
        member: dict[str, Any] = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
        assert client.commit(topic, {0: 41}, **member) == {0: 0}
    with Broker(SETTINGS, data=data) as broker, WireClient(broker.port) as wire:
        client = GroupClient(wire, "g")
        while client.describe().error_code == 14:
            pass
        assert client.heartbeat(joined.member_id, 1) == 0
        assert client.sync(joined).assignment == b"mine"
        assert client.committed(topic, [0]) == {0: (41, "note")}
        assert client.commit(topic, {0: 42}, **member) == {0: 0}


def test_a_stopping_broker_answers_parked_requests(tmp_path: Path) -> None:
    broker = Broker({"group.initial.rebalance.delay.ms": "60000"}).start()
    with WireClient(broker.port) as wire:
        client = GroupClient(wire, "g")
        client.find()
        joining = Later(client.enter_or_error)
        assert joining.is_waiting()
        broker.stop()
        assert joining.result().error_code == 16


def test_offsets_come_in_the_order_asked_for_and_unknown_ids_after_them(client: GroupClient) -> None:
    topics = [client.wire.create_topic(partitions=2) for _ in range(3)]
    ids = [client.wire.describe(topic).topic_id for topic in topics]
    asked = [
        OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[1, 0])
        for topic_id in (ids[2], bytes([9] * 16), ids[0], ids[1])
    ]
    groups = [OffsetFetchRequestGroup(group_id=client.group, topics=asked)]
    (group,) = client.wire.call(Api.OFFSET_FETCH, 10, OffsetFetchRequest(groups=groups)).groups
    assert [topic.topic_id for topic in group.topics] == [ids[2], ids[0], ids[1], bytes([9] * 16)]
    assert [[each.partition_index for each in topic.partitions] for topic in group.topics] == [[1, 0]] * 4


@pytest.mark.parametrize("version", [1, 7])
def test_a_topic_that_is_asked_for_twice_has_all_its_partitions(client: GroupClient, version: int) -> None:
    topic = client.wire.create_topic(partitions=2)
    twice = [OffsetFetchRequestTopic(name=topic, partition_indexes=[index]) for index in (1, 0)]
    response = client.wire.call(Api.OFFSET_FETCH, version, OffsetFetchRequest(group_id=client.group, topics=twice))
    assert [[each.partition_index for each in topic.partitions] for topic in response.topics] == [[1, 0]]


def test_a_group_with_an_error_has_no_topics() -> None:
    """On a broker where no group has a coordinator yet. Version 1 has no other place for it than the partitions."""
    code = ErrorCode.NOT_COORDINATOR
    with Broker({}) as broker, WireClient(broker.port) as wire:
        for version in range(1, 8):
            one = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
            response = wire.call(Api.OFFSET_FETCH, version, OffsetFetchRequest(group_id="g", topics=one))
            in_partitions = [each.error_code for topic in response.topics for each in topic.partitions]
            assert (response.error_code, in_partitions) == ((0, [code]) if version == 1 else (code, []))
        for version in range(8, 11):
            asked = [OffsetFetchRequestTopics(name="t", topic_id=bytes([9] * 16), partition_indexes=[0])]
            groups = [OffsetFetchRequestGroup(group_id="g", topics=asked)]
            (group,) = wire.call(Api.OFFSET_FETCH, version, OffsetFetchRequest(groups=groups)).groups
            assert (group.error_code, group.topics) == (code, [])
