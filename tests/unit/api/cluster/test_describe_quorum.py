"""DescribeQuorum: offsets, times and addresses of voters and observers, as the leader knows them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from controller_requests import ask

from penstock.api.cluster_view import ClusterView
from penstock.api.handlers.describe_quorum import DescribeQuorumHandler
from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.records import BrokerRegistered
from penstock.core.metadata.requests import uuid_text
from penstock.core.raft.configuration import Configuration
from penstock.core.raft.core import Replica, Status
from penstock.core.raft.states import Role
from penstock.model.errors import ErrorCode
from penstock.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    RequestPartitionData,
    RequestTopicData,
)

NOW_MS = 1_700_000_000_000
DIRECTORY = b"d" * 16
LEADING = Status(
    Role.LEADER,
    7,
    2,
    41,
    44,
    Configuration((1, 2, 3), (5,)),
    (
        Replica(2, True, 44, 5_000, 5_000),
        Replica(5, False, 30, 4_000, 1_000),
        Replica(1, True, 44, 4_990, 4_990),
        Replica(3, True, 0, 2_000, 1_500),
    ),
)


class Clock:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        raise AssertionError("the wall clock is what clients are told")


def handler(status: Status = LEADING) -> DescribeQuorumHandler:
    image = MetadataImage()
    image.replay(BrokerRegistered(2, 1, "00" * 16, {"P": ("h2", 9092)}, directory_id=uuid_text(DIRECTORY)))
    cluster = ClusterView(1, None, image, {}, voters=lambda: {1: ("h1", 9093), 2: ("h2", 9093), 4: ("h4", 9093)})
    return DescribeQuorumHandler(SimpleNamespace(status=status), cluster, Clock())


def request(topic: str = "__cluster_metadata", partition: int = 0) -> DescribeQuorumRequest:
    asked = RequestTopicData(topic_name=topic, partitions=[RequestPartitionData(partition_index=partition)])
    return DescribeQuorumRequest(topics=[asked])


def described(version: int | None = None) -> Any:
    response = ask(handler(), request(), version)
    assert response.error_code == 0
    (topic,) = response.topics
    (partition,) = topic.partitions
    return partition


@pytest.mark.parametrize("version", [0, 1, 2])
def test_ends_are_one_past_the_last_entry(version: int) -> None:
    partition = described(version)
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 2, 7)
    assert partition.high_watermark == 42
    assert [(each.replica_id, each.log_end_offset) for each in partition.current_voters] == [(1, 45), (2, 45), (3, 1)]
    assert [(each.replica_id, each.log_end_offset) for each in partition.observers] == [(5, 31)]


def test_times_are_on_the_wall_clock() -> None:
    times = {
        each.replica_id: (each.last_fetch_timestamp, each.last_caught_up_timestamp)
        for each in (*described().current_voters, *described().observers)
    }
    assert times == {
        1: (NOW_MS - 10, NOW_MS - 10),
        2: (NOW_MS, NOW_MS),
        3: (NOW_MS - 3_000, NOW_MS - 3_500),
        5: (NOW_MS - 1_000, NOW_MS - 4_000),
    }


def test_directories_are_those_of_registered_brokers() -> None:
    assert [each.replica_directory_id for each in described().current_voters] == [bytes(16), DIRECTORY, bytes(16)]


def test_addresses_of_voters_that_are_known() -> None:
    response = ask(handler(), request())
    assert [(node.node_id, node.listeners[0].host, node.listeners[0].port) for node in response.nodes] == [
        (1, "h1", 9093),
        (2, "h2", 9093),
    ]


@pytest.mark.parametrize(("topic", "partition"), [("orders", 0), ("__cluster_metadata", 1)])
def test_no_other_partition_has_a_quorum(topic: str, partition: int) -> None:
    response = ask(handler(), request(topic, partition))
    assert response.error_code == 0
    (refused,) = response.topics[0].partitions
    assert (refused.partition_index, refused.error_code) == (partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_only_the_leader_can_tell() -> None:
    following = LEADING._replace(role=Role.FOLLOWER, replicas=())
    assert ask(handler(following), request()).error_code == ErrorCode.NOT_CONTROLLER
