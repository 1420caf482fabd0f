"""DescribeTopicPartitions, DescribeCluster, DescribeLogDirs, ListConfigResources, as Apache Kafka 4.3.1 answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from admin_broker import DIRECTORY, LOCAL, AdminBroker

from penstock.core.metadata.image import RESOURCE_CLIENT_METRICS, RESOURCE_GROUP
from penstock.records.batch import iterate_headers
from penstock.records.builder import Record, build_batch
from penstock.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.messages.describe_cluster import DescribeClusterBroker, DescribeClusterRequest
from penstock.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from penstock.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponsePartition,
    TopicRequest,
)
from penstock.wire.messages.list_config_resources import ListConfigResourcesRequest

Place = tuple[str, int] | None


@pytest.fixture
def broker() -> Iterator[AdminBroker]:
    broker = AdminBroker(broker_rack="r1")
    # Out of order: answers must sort.
    for name in ("c", "a", "b"):
        broker.ask(CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=3, replication_factor=1)]))
    yield broker
    broker.close()


# -- DescribeTopicPartitions --------------------------------------------------------------------


def page(
    broker: AdminBroker, names: list[str], limit: int, cursor: Place
) -> tuple[list[tuple[int, str, list[int]]], Place]:
    response = broker.ask(
        DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )
    )
    topics = [
        (topic.error_code, topic.name, [partition.partition_index for partition in topic.partitions])
        for topic in response.topics
    ]
    after = response.next_cursor
    return topics, None if after is None else (after.topic_name, after.partition_index)


ABC = ["a", "b", "c"]
ALL = [0, 1, 2]


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "topics", "after"),
    [
        ([], 2000, None, [(0, "a", ALL), (0, "b", ALL), (0, "c", ALL)], None),
        (["c", "a", "a"], 2000, None, [(0, "a", ALL), (0, "c", ALL)], None),
        (ABC, 4, None, [(0, "a", ALL), (0, "b", [0])], ("b", 1)),
        (ABC, 3, None, [(0, "a", ALL)], ("b", 0)),
        (ABC, 0, None, [(0, "a", [0])], ("a", 1)),
        (ABC, -5, None, [(0, "a", [0])], ("a", 1)),
        (["a", "b"], 6, None, [(0, "a", ALL), (0, "b", ALL)], None),
        (["a", "b"], 2, ("a", 2), [(0, "a", [2]), (0, "b", [0])], ("b", 1)),
        (["a", "b"], 2, ("b", 1), [(0, "b", [1, 2])], None),
        ([], 2, ("b", 1), [(0, "b", [1, 2])], ("c", 0)),
        ([], 2, ("aa", 1), [(0, "b", [0, 1])], ("b", 2)),
        ([], 2, ("zzz", 0), [], None),
        (["a"], 2, ("a", 9), [(0, "a", [])], None),
        (["a", "nope"], 2000, None, [(0, "a", ALL), (3, "nope", [])], None),
        (["nope", "zz"], 2, ("nope", 0), [(3, "nope", []), (3, "zz", [])], None),
        (["bad name"], 2000, None, [(17, "bad name", [])], None),
        (["a"], 2, ("b", 0), [(42, "a", [])], None),
        (["a"], 2, ("a", -1), [(42, "a", [])], None),
    ],
)
def test_pages(
    broker: AdminBroker,
    names: list[str],
    limit: int,
    cursor: Place,
    topics: list[tuple[int, str, list[int]]],
    after: Place,
) -> None:
    assert page(broker, names, limit, cursor) == (topics, after)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
def test_following_the_cursor_gives_every_partition_once(broker: AdminBroker, limit: int) -> None:
    seen: list[tuple[str, int]] = []
    cursor: Place = None
    while True:
        topics, cursor = page(broker, [], limit, cursor)
        seen += [(name, index) for _, name, indexes in topics for index in indexes]
        if cursor is None:
            break
    assert seen == [(name, index) for name in ABC for index in ALL]


def test_a_partition_in_full(broker: AdminBroker) -> None:
    [topic] = broker.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")])).topics
    assert topic.topic_id == broker.image.topics["a"].topic_id
    assert (topic.is_internal, topic.topic_authorized_operations) == (False, 3576)
    assert topic.partitions[1] == DescribeTopicPartitionsResponsePartition(
        partition_index=1,
        leader_id=1,
        leader_epoch=0,
        replica_nodes=[1],
        isr_nodes=[1],
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=[],
    )


def test_the_broker_bounds_a_page() -> None:
    broker = AdminBroker(max_request_partition_size_limit="2")
    broker.ask(CreateTopicsRequest(topics=[CreatableTopic(name="a", num_partitions=3, replication_factor=1)]))
    assert page(broker, [], 2000, None) == ([(0, "a", [0, 1])], ("a", 2))
    broker.close()


# -- DescribeCluster ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_cluster_in_every_version(broker: AdminBroker, version: int) -> None:
    response = broker.ask(DescribeClusterRequest(include_fenced_brokers=True), version)
    assert (response.error_code, response.error_message) == (0, None)
    assert (response.cluster_id, response.controller_id, response.endpoint_type) == ("c" * 22, 1, 1)
    assert response.brokers == [DescribeClusterBroker(broker_id=1, host=LOCAL[0], port=LOCAL[1], rack="r1")]
    assert response.cluster_authorized_operations == -(2**31)
    asked = broker.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    assert asked.cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "code", "message"),
    [
        (
            2,
            114,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        ),
        (3, 115, "Unsupported endpoint type 3"),
        (0, 115, "Unsupported endpoint type 0"),
    ],
)
def test_only_brokers_are_described(broker: AdminBroker, endpoint_type: int, code: int, message: str) -> None:
    response = broker.ask(DescribeClusterRequest(endpoint_type=endpoint_type))
    assert (response.error_code, response.error_message, response.brokers) == (code, message, [])


# -- DescribeLogDirs ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 6))
def test_sizes_and_space_in_every_version(broker: AdminBroker, version: int) -> None:
    batch = build_batch([Record(None, b"value", timestamp_ms=1)])
    [(_, header)] = iterate_headers(batch, "test")
    broker.partitions.get("a", 2).append(header, batch, 1)
    response = broker.ask(DescribeLogDirsRequest(topics=None), version)
    [result] = response.results
    assert (response.error_code, result.error_code, result.log_dir) == (0, 0, DIRECTORY)
    sizes = {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in result.topics
        for partition in topic.partitions
    }
    assert sizes == {(name, index): len(batch) if (name, index) == ("a", 2) else 0 for name in ABC for index in ALL}
    assert {(partition.offset_lag, partition.is_future_key) for partition in result.topics[0].partitions} == {
        (0, False)
    }
    space = broker.disk.space(DIRECTORY) if version >= 4 else (-1, -1)
    assert (result.total_bytes, result.usable_bytes, result.is_cordoned) == (*space, False)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ([], []),
        ([("nope", [0])], []),
        ([("a", [])], []),
        ([("a", [77, 1])], [("a", [1])]),
        ([("a", [0]), ("nope", [1]), ("b", [2, 0])], [("a", [0]), ("b", [0, 2])]),
    ],
)
def test_chosen_partitions(
    broker: AdminBroker, asked: list[tuple[str, list[int]]], found: list[tuple[str, list[int]]]
) -> None:
    request = DescribeLogDirsRequest(
        topics=[DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in asked]
    )
    [result] = broker.ask(request).results
    described = [(topic.name, [item.partition_index for item in topic.partitions]) for topic in result.topics]
    assert (result.error_code, described) == (0, found)


# -- ListConfigResources ------------------------------------------------------------------------


def listed(broker: AdminBroker, *types: int, version: int = 1) -> tuple[int, list[tuple[int, str]]]:
    response = broker.ask(ListConfigResourcesRequest(resource_types=list(types)), version)
    return response.error_code, [(item.resource_type, item.resource_name) for item in response.config_resources]


def test_resources_by_type(broker: AdminBroker) -> None:
    topics = [(2, "c"), (2, "a"), (2, "b")]
    assert listed(broker) == (0, [*topics, (4, "1"), (8, "1")])
    assert listed(broker, version=0) == (0, [])
    for kind, name in ((RESOURCE_GROUP, "g"), (RESOURCE_CLIENT_METRICS, "m")):
        broker.loop.run_until_complete(
            broker.controller.topics.change_config(kind, name, lambda _: {"interval.ms": "1000"}, validate_only=False)
        )
    assert listed(broker) == (0, [*topics, (4, "1"), (8, "1"), (16, "m"), (32, "g")])
    assert listed(broker, version=0) == (0, [(16, "m")])
    assert listed(broker, 2) == (0, topics)
    assert listed(broker, 32, 4, 4) == (0, [(4, "1"), (32, "g")])
    assert listed(broker, 3) == (35, [])
    assert listed(broker, 2, 0) == (35, [])
