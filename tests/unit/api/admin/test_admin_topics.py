"""CreateTopics, DeleteTopics and CreatePartitions: codes and sentences recorded from Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from admin_broker import DIRECTORY, AdminBroker

from penstock.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from penstock.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.wire.primitives import NULL_UUID

Assignments = list[tuple[int, list[int]]]


@pytest.fixture
def broker() -> Iterator[AdminBroker]:
    broker = AdminBroker(num_partitions="2")
    yield broker
    broker.close()


def topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assignments: Assignments | None = None,
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assignments or []
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


def create(
    broker: AdminBroker, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    results: list[CreatableTopicResult] = broker.ask(request, version).topics
    return results


def test_defaults_of_the_broker_fill_in(broker: AdminBroker) -> None:
    [result] = create(broker, topic("t", -1, -1))
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.num_partitions, result.replication_factor, result.topic_config_error_code) == (2, 1, 0)
    assert result.topic_id == broker.image.topics["t"].topic_id
    assert len(broker.partitions.by_name["t"]) == 2


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_creates_and_echoes_what_it_can(broker: AdminBroker, version: int) -> None:
    [result] = create(broker, topic("t", 3, 1, configs={"retention.ms": "5"}), version=version)
    assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
    assert len(broker.partitions.by_name["t"]) == 3
    assert broker.partitions.by_name["t"][0].config.retention_ms == 5
    if version < 5:
        assert (result.num_partitions, result.configs) == (-1, [])
    else:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert result.configs is not None
        names = [config.name for config in result.configs]
        assert names == sorted(names)
        assert len(names) == 33
        sources = {config.name: (config.value, config.config_source) for config in result.configs}
        assert sources["retention.ms"] == ("5", 1)
        assert sources["cleanup.policy"] == ("delete", 5)
    assert (result.topic_id != NULL_UUID) == (version >= 7)


def test_validate_only_creates_nothing(broker: AdminBroker) -> None:
    [result] = create(broker, topic("t", 4, 1), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 4)
    [result] = create(broker, topic("u", 0, 1), validate_only=True)
    assert result.error_code == 37
    assert broker.image.topics == {}
    assert broker.partitions.by_name == {}


def test_a_name_that_comes_twice_is_refused_once_and_the_others_are_created(broker: AdminBroker) -> None:
    results = create(broker, topic("x"), topic("x"), topic("y"))
    assert [(result.name, result.error_code, result.error_message) for result in results] == [
        ("x", 42, "Duplicate topic name."),
        ("y", 0, None),
    ]
    assert list(broker.image.topics) == ["y"]


def test_created_topics_survive_a_crash_with_ids_and_settings(broker: AdminBroker) -> None:
    [result] = create(broker, topic("t", 3, 1, configs={"cleanup.policy": "compact"}))
    broker.crash()
    assert broker.image.topics["t"].topic_id == result.topic_id
    assert len(broker.partitions.by_name["t"]) == 3
    assert broker.partitions.by_name["t"][2].config.cleanup_policy == {"compact"}


INVALID_NAME = "Topic name is invalid: "
MANUAL = "The manual partition assignment includes "
REFUSED: list[tuple[CreatableTopic, int, str]] = [
    (topic("taken"), 36, "Topic 'taken' already exists."),
    (topic("taken", configs={"nope": "1"}), 36, "Topic 'taken' already exists."),
    (
        topic("bad name"),
        17,
        f"{INVALID_NAME}'bad name' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
    ),
    (topic(""), 17, f"{INVALID_NAME}the empty string is not allowed"),
    (topic("."), 17, f"{INVALID_NAME}'.' is not allowed"),
    (topic(".."), 17, f"{INVALID_NAME}'..' is not allowed"),
    (topic("n" * 250), 17, f"{INVALID_NAME}the length of '{'n' * 250}' is longer than the max allowed length 249"),
    (topic("dotted_name"), 17, "Topic 'dotted_name' collides with existing topic: dotted.name"),
    (topic("__cluster_metadata"), 42, "Creation of internal topic __cluster_metadata is prohibited."),
    (topic("t", 0), 37, "Number of partitions was set to an invalid non-positive value."),
    (topic("t", -2), 37, "Number of partitions was set to an invalid non-positive value."),
    (topic("t", 20_000), 44, "Excessively large number of partitions per request."),
    (topic("t", 1, 0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (topic("t", 1, -3), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (
        topic("t", 1, 2),
        38,
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached because "
        "only 1 broker(s) are registered.",
    ),
    (topic("t", configs={"nope": "1"}), 40, "Unknown topic config name: nope"),
    (
        topic("t", configs={"retention.ms": None, "segment.bytes": None}),
        40,
        "Null value not supported for topic configs: retention.ms,segment.bytes",
    ),
    (
        topic("t", configs={"retention.ms": "abc"}),
        40,
        "Invalid value abc for configuration retention.ms: Not a number of type LONG",
    ),
    (
        topic("t", configs={"min.insync.replicas": "0"}),
        40,
        "Invalid value 0 for configuration min.insync.replicas: Value must be at least 1",
    ),
    (
        topic("t", 1, -1, [(0, [1])]),
        42,
        "A manual partition assignment was specified, but numPartitions was not set to -1.",
    ),
    (
        topic("t", -1, 1, [(0, [1])]),
        42,
        "A manual partition assignment was specified, but replication factor was not set to -1.",
    ),
    (topic("t", -1, -1, [(0, [1]), (2, [1])]), 39, "partitions should be a consecutive 0-based integer sequence"),
    (topic("t", -1, -1, [(0, [1, 1])]), 39, f"{MANUAL}the broker 1 more than once."),
    (topic("t", -1, -1, [(0, [9])]), 39, f"{MANUAL}broker 9, but no such broker is registered."),
    (topic("t", -1, -1, [(0, [])]), 39, f"{MANUAL}an empty replica list."),
    (
        topic("t", -1, -1, [(0, [1]), (0, [1])]),
        39,
        "Found multiple manual partition assignments for partition 0",
    ),
    (topic("t", -1, -1, [(0, [1]), (1, [1, 2])]), 39, f"{MANUAL}broker 2, but no such broker is registered."),
]


@pytest.mark.parametrize(("asked", "code", "message"), REFUSED)
def test_refused_in_kafkas_words(broker: AdminBroker, asked: CreatableTopic, code: int, message: str) -> None:
    create(broker, topic("taken"), topic("dotted.name"))
    [result] = create(broker, asked)
    assert (result.error_code, result.error_message) == (code, message)
    assert (result.num_partitions, result.replication_factor, result.topic_id) == (-1, -1, NULL_UUID)
    assert list(broker.image.topics) == ["taken", "dotted.name"]


def test_manual_assignment(broker: AdminBroker) -> None:
    [result] = create(broker, topic("t", -1, -1, [(1, [1]), (0, [1])]))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 1)


# -- CreatePartitions ---------------------------------------------------------------------------


def add(
    broker: AdminBroker,
    *topics: tuple[str, int, list[list[int]] | None],
    version: int = 3,
    validate_only: bool = False,
) -> list[tuple[str, int, str | None]]:
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if assignments is None
                else [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments],
            )
            for name, count, assignments in topics
        ],
        validate_only=validate_only,
    )
    results = broker.ask(request, version).results
    return [(result.name, result.error_code, result.error_message) for result in results]


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_in_every_version(broker: AdminBroker, version: int) -> None:
    create(broker, topic("t", 2))
    assert add(broker, ("t", 5, None), version=version, validate_only=True) == [("t", 0, None)]
    assert len(broker.partitions.by_name["t"]) == 2
    assert add(broker, ("t", 5, None), version=version) == [("t", 0, None)]
    assert [partition.index for partition in broker.partitions.by_name["t"]] == [0, 1, 2, 3, 4]
    broker.crash()
    assert len(broker.partitions.by_name["t"]) == 5


@pytest.mark.parametrize(
    ("count", "assignments", "code", "message"),
    [
        (2, None, 37, "Topic already has 2 partition(s)."),
        (1, None, 37, "The topic t currently has 2 partition(s); 1 would not be an increase."),
        (-1, None, 37, "The topic t currently has 2 partition(s); -1 would not be an increase."),
        (20_000, None, 44, "Excessively large number of partitions per request."),
        (3, [], 39, "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified."),
        (3, [[1], [1]], 39, "Attempted to add 1 additional partition(s), but only 2 assignment(s) were specified."),
        (3, [[9]], 39, f"{MANUAL}broker 9, but no such broker is registered."),
        (3, [[1, 1]], 39, f"{MANUAL}the broker 1 more than once."),
        (3, [[]], 39, f"{MANUAL}an empty replica list."),
        (3, [[1]], 0, None),
    ],
)
def test_adding_partitions_answers_as_kafka(
    broker: AdminBroker, count: int, assignments: list[list[int]] | None, code: int, message: str | None
) -> None:
    create(broker, topic("t", 2))
    assert add(broker, ("t", count, assignments)) == [("t", code, message)]
    assert len(broker.partitions.by_name["t"]) == (count if code == 0 else 2)


def test_adding_partitions_to_many_topics(broker: AdminBroker) -> None:
    create(broker, topic("t"), topic("u"))
    assert add(broker, ("t", 5, None), ("t", 6, None), ("u", 4, None), ("nope", 2, None)) == [
        ("t", 42, "Duplicate topic name."),
        ("u", 0, None),
        ("nope", 3, "The topic 'nope' does not exist."),
    ]
    assert len(broker.partitions.by_name["t"]) == 1


# -- DeleteTopics -------------------------------------------------------------------------------


def delete(
    broker: AdminBroker, *topics: DeleteTopicState, version: int = 6
) -> list[tuple[str | None, bytes, int, str | None]]:
    request = DeleteTopicsRequest(topics=list(topics))
    if version < 6:
        request = DeleteTopicsRequest(topic_names=[topic.name or "" for topic in topics])
    responses = broker.ask(request, version).responses
    return [(result.name, result.topic_id, result.error_code, result.error_message) for result in responses]


def named(name: str) -> DeleteTopicState:
    return DeleteTopicState(name=name)


def by_id(topic_id: bytes) -> DeleteTopicState:
    return DeleteTopicState(topic_id=topic_id)


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_by_name_in_every_version(broker: AdminBroker, version: int) -> None:
    [created] = create(broker, topic("t", 2))
    message = "This server does not host this topic-partition." if version >= 5 else None
    assert delete(broker, named("t"), named("nope"), version=version) == [
        ("t", created.topic_id if version == 6 else NULL_UUID, 0, None),
        ("nope", NULL_UUID, 3, message),
    ]
    assert broker.image.topics == {}
    assert broker.partitions.by_name == {}
    broker.loop.run_until_complete(broker.sole.machine.settle())
    assert not [name for name in broker.disk.list_directory(DIRECTORY) if name.startswith("t-")]
    broker.crash()
    assert broker.image.topics == {}


def test_delete_by_id(broker: AdminBroker) -> None:
    [created] = create(broker, topic("t"))
    assert delete(broker, by_id(created.topic_id)) == [("t", created.topic_id, 0, None)]
    assert delete(broker, by_id(created.topic_id)) == [
        (None, created.topic_id, 100, "This server does not host this topic ID.")
    ]


def test_a_topic_created_again_has_another_id_and_no_old_settings(broker: AdminBroker) -> None:
    [first] = create(broker, topic("t", configs={"retention.ms": "5"}))
    delete(broker, named("t"))
    [second] = create(broker, topic("t"))
    assert second.error_code == 0
    assert second.topic_id != first.topic_id
    assert broker.partitions.by_name["t"][0].config.retention_ms == 604_800_000


def test_references_that_contradict_themselves_delete_nothing(broker: AdminBroker) -> None:
    [created] = create(broker, topic("t"))
    topic_id, other = created.topic_id, b"\1" * 16
    cases: list[tuple[list[DeleteTopicState], tuple[str | None, bytes, int, str | None]]] = [
        ([named("t"), named("t")], ("t", NULL_UUID, 42, "Duplicate topic name.")),
        ([by_id(other), by_id(other)], (None, other, 42, "Duplicate topic id.")),
        ([by_id(NULL_UUID)], (None, NULL_UUID, 42, "Neither topic name nor id were specified.")),
        (
            [DeleteTopicState(name="t", topic_id=other)],
            ("t", other, 42, "You may not specify both topic name and topic id."),
        ),
        (
            [named("t"), by_id(topic_id)],
            ("t", topic_id, 42, "The provided topic name maps to an ID that was already supplied."),
        ),
    ]
    for asked, expected in cases:
        assert delete(broker, *asked) == [expected]
    assert list(broker.image.topics) == ["t"]


@pytest.mark.parametrize(("version", "code"), [(1, 42), (2, 42), (3, 73), (6, 73)])
def test_deletion_can_be_switched_off(version: int, code: int) -> None:
    broker = AdminBroker(delete_topic_enable="false")
    create(broker, topic("t"))
    [(name, _, error_code, _)] = delete(broker, named("t"), version=version)
    assert (name, error_code) == ("t", code)
    assert list(broker.image.topics) == ["t"]
    broker.close()
