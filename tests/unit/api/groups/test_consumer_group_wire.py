"""ConsumerGroupHeartbeat and ConsumerGroupDescribe as raw frames, in every version."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from wire_client import WireClient

from penstock.model.errors import ErrorCode
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedGroup
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

VERSIONS = range(2)
NOT_ASKED = -(2**31)
_names = itertools.count(1)


class HeartbeatClient:
    def __init__(self, wire: WireClient) -> None:
        self.wire = wire
        self.group = f"group-{next(_names)}"
        self.topic = f"topic-{next(_names)}"
        self.wire.call(Api.FIND_COORDINATOR, 4, FindCoordinatorRequest(coordinator_keys=[self.group]))
        topic = CreatableTopic(name=self.topic, num_partitions=2, replication_factor=1)
        made: Any = self.wire.call(Api.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        self.topic_id: bytes = made.topics[0].topic_id

    def beat(self, version: int, member: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=member, member_epoch=epoch, **fields)
        response: ConsumerGroupHeartbeatResponse = self.wire.call(Api.CONSUMER_GROUP_HEARTBEAT, version, request)
        return response

    def join(self, version: int, member: str, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        said = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [self.topic], "topic_partitions": []}
        return self.beat(version, member, 0, **{**said, **fields})

    def describe(self, version: int, group: str | None = None, **fields: Any) -> DescribedGroup:
        request = ConsumerGroupDescribeRequest(group_ids=[self.group if group is None else group], **fields)
        answer: Any = self.wire.call(Api.CONSUMER_GROUP_DESCRIBE, version, request)
        described: DescribedGroup = answer.groups[0]
        return described


@pytest.fixture(scope="module")
def group_broker() -> Iterator[Broker]:
    with Broker({"offsets.topic.num.partitions": "5"}) as broker:
        yield broker


@pytest.fixture
def client(group_broker: Broker) -> Iterator[HeartbeatClient]:
    with WireClient(group_broker.port) as wire:
        yield HeartbeatClient(wire)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_member_joins_stays_and_leaves(client: HeartbeatClient, version: int) -> None:
    joined = client.join(version, "m1")
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m1", 2)
    assert joined.assignment is not None
    given = [(held.topic_id, held.partitions) for held in joined.assignment.topic_partitions]
    assert given == [(client.topic_id, [0, 1])]
    assert 0 < joined.heartbeat_interval_ms <= 5_000
    owned = [TopicPartitions(topic_id=client.topic_id, partitions=[0, 1])]
    acknowledged = client.beat(version, "m1", 2, topic_partitions=owned)
    assert (acknowledged.error_code, acknowledged.assignment) == (0, None)
    assert client.beat(version, "m1", 2).assignment is None
    assert client.beat(version, "m1", 9).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert client.beat(version, "m2", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    left = client.beat(version, "m1", -1)
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert client.beat(version, "m1", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_only_version_0_gives_out_member_ids(client: HeartbeatClient) -> None:
    refused = client.join(1, "")
    assert (refused.error_code, refused.error_message) == (ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    joined = client.join(0, "")
    assert joined.error_code == 0
    assert joined.member_id
    assert client.beat(0, joined.member_id, joined.member_epoch).error_code == 0


def test_only_version_1_knows_expressions(client: HeartbeatClient) -> None:
    joined = client.join(1, "m1", subscribed_topic_names=None, subscribed_topic_regex=f"{client.topic}.*")
    assert joined.assignment is not None
    assert [held.topic_id for held in joined.assignment.topic_partitions] == [client.topic_id]
    assert client.describe(1).members[0].subscribed_topic_regex == f"{client.topic}.*"
    refused = client.join(1, "m2", subscribed_topic_names=None, subscribed_topic_regex="(")
    assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "`(`" in (refused.error_message or "")


def test_static_members(client: HeartbeatClient) -> None:
    joined = client.join(1, "m1", instance_id="i")
    assert client.join(1, "m2", instance_id="i").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert client.beat(1, "m1", -2, instance_id="i").member_epoch == -2
    back = client.join(1, "m2", instance_id="i")
    assert (back.error_code, back.member_epoch, back.assignment) == (0, joined.member_epoch, joined.assignment)
    assert client.beat(1, "m1", 1, instance_id="i").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert client.describe(1).members[0].instance_id == "i"


def test_an_unknown_group_and_an_unknown_assignor(client: HeartbeatClient) -> None:
    assert client.beat(1, "m1", 3).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert client.join(1, "m1", server_assignor="magic").error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert client.join(1, "m1", server_assignor="range").error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_describe(client: HeartbeatClient, version: int) -> None:
    client.join(1, "m1", rack_id="r")
    group = client.describe(version, include_authorized_operations=True)
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Stable", 2, 2)
    assert group.assignor_name == "uniform"
    assert group.authorized_operations not in (0, NOT_ASKED)
    member = group.members[0]
    assert (member.member_id, member.rack_id, member.member_epoch, member.client_host) == ("m1", "r", 2, "/127.0.0.1")
    assert member.subscribed_topic_names == [client.topic]
    assert member.member_type == (1 if version == 1 else -1)
    for assignment in (member.assignment, member.target_assignment):
        held = assignment.topic_partitions[0]
        assert (held.topic_id, held.topic_name, held.partitions) == (client.topic_id, client.topic, [0, 1])
    assert client.describe(version).authorized_operations == NOT_ASKED


@pytest.mark.parametrize("version", VERSIONS)
def test_describe_what_is_not_there(client: HeartbeatClient, version: int) -> None:
    group = client.describe(version, "nowhere")
    assert (group.error_code, group.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group nowhere not found.")
    assert client.describe(version, "").error_code == ErrorCode.INVALID_GROUP_ID


def test_a_member_that_was_fenced_rejoins_with_epoch_0(client: HeartbeatClient) -> None:
    joined = client.join(1, "m1")
    assert client.beat(1, "m1", 9).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    again = client.join(1, "m1")
    assert (again.error_code, again.member_epoch, again.assignment) == (0, joined.member_epoch, joined.assignment)


def refused_both(wire: WireClient) -> list[tuple[int, str | None]]:
    """Of requests that say nothing, to a broker where no group has a coordinator yet."""
    beat: Any = wire.call(Api.CONSUMER_GROUP_HEARTBEAT, 1, ConsumerGroupHeartbeatRequest())
    described: Any = wire.call(Api.CONSUMER_GROUP_DESCRIBE, 1, ConsumerGroupDescribeRequest(group_ids=["a", "b"]))
    return [(answer.error_code, answer.error_message) for answer in (beat, *described.groups)]


def test_the_protocol_is_off_where_the_settings_say_so() -> None:
    with Broker({"group.coordinator.rebalance.protocols": "classic"}) as broker, WireClient(broker.port) as wire:
        assert refused_both(wire) == [(ErrorCode.UNSUPPORTED_VERSION, None)] * 3


def test_the_protocol_is_off_while_its_feature_is() -> None:
    with Broker({}) as broker, WireClient(broker.port) as wire:
        client = HeartbeatClient(wire)
        assert client.join(1, "m1").error_code == 0
        for level, upgrade_type in ((0, 2), (1, 1)):
            update = FeatureUpdateKey(feature="group.version", max_version_level=level, upgrade_type=upgrade_type)
            done: UpdateFeaturesResponse = wire.call(
                Api.UPDATE_FEATURES, 2, UpdateFeaturesRequest(feature_updates=[update])
            )
            assert (done.error_code, done.error_message) == (0, None)
            if level == 0:
                assert refused_both(wire) == [(ErrorCode.UNSUPPORTED_VERSION, None)] * 3
        assert client.beat(1, "m1", 2).error_code == 0, "the group is as it was"


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_member_has_yet_to_give_up_is_described_as_its_own(client: HeartbeatClient, version: int) -> None:
    first = client.join(1, "m1")
    client.join(1, "m2")
    owned = [TopicPartitions(topic_id=client.topic_id, partitions=[0, 1])]
    deadline = time.monotonic() + 30
    told = first
    while told.assignment is None or sum(len(held.partitions) for held in told.assignment.topic_partitions) != 1:
        assert time.monotonic() < deadline
        client.beat(1, "m2", client.describe(1).members[1].member_epoch)
        told = client.beat(1, "m1", first.member_epoch, topic_partitions=owned)
    group = client.describe(version)
    (m1,) = [member for member in group.members if member.member_id == "m1"]
    assert (group.group_state, m1.member_epoch) == ("Reconciling", first.member_epoch)
    assert [held.partitions for held in m1.assignment.topic_partitions] == [[0, 1]]
    assert len(m1.target_assignment.topic_partitions[0].partitions) == 1
    assert m1.subscribed_topic_regex == ""
