"""The metadata core: decisions as request x image, and replay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.metadata import decisions
from penstock.core.metadata.image import RESOURCE_TOPIC, MetadataImage
from penstock.core.metadata.records import (
    ClusterCreated,
    ConfigChanged,
    MetadataRecord,
    PartitionsAdded,
    ProducerIdsAllocated,
    TopicCreated,
    TopicDeleted,
    decode,
    encode,
)
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.model.new_topic import NewTopic

ID = bytes(range(16))


def image_with(*names: str) -> MetadataImage:
    image = MetadataImage()
    for number, name in enumerate(names):
        image.replay(TopicCreated(name, bytes([number + 1] * 16).hex(), ((1,), (1,))))
    return image


def create(image: MetadataImage, name: str, **changes: object) -> list[MetadataRecord]:
    topic = NewTopic(name, **{"partitions": 2, "replication_factor": 1, **changes})  # type: ignore[arg-type]
    return decisions.create_topic(image, [1], topic, ID)


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        ("", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (".", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a" * 250, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("spaß", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("there", {}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("dotted_name", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("new", {"partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ("new", {"partitions": 10_001}, ErrorCode.POLICY_VIOLATION),
        ("new", {"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("new", {"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("new", {"assignments": {1: [1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("new", {"assignments": {0: []}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("new", {"assignments": {0: [2]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("new", {"assignments": {0: [1, 1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_topics_that_are_refused(name: str, changes: dict[str, object], code: ErrorCode) -> None:
    image = image_with("there", "dotted.name")
    with pytest.raises(ApiError) as refused:
        create(image, name, **changes)
    assert refused.value.code is code
    assert refused.value.message


def test_deciding_changes_nothing() -> None:
    image = image_with("there")
    records = create(image, "new", configs={"retention.ms": "1"})
    assert list(image.topics) == ["there"]
    for record in records:
        image.replay(record)
    assert list(image.topics) == ["there", "new"]
    assert image.topics["new"].topic_id == ID
    assert image.topics_by_id[ID].replication_factor == 1
    assert image.topic_overrides("new") == {"retention.ms": "1"}


@pytest.mark.parametrize(
    ("count", "assignments", "code"),
    [
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (4, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_partitions_that_are_refused(count: int, assignments: list[list[int]] | None, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        decisions.create_partitions(image_with("there"), [1], "there", count, assignments)
    assert refused.value.code is code


def test_partitions_are_added_at_the_end() -> None:
    image = image_with("there")
    for record in decisions.create_partitions(image, [1], "there", 5, None):
        image.replay(record)
    assert [partition.index for partition in image.topics["there"].partitions] == [0, 1, 2, 3, 4]


def test_deleting_forgets_topic_and_settings() -> None:
    image = image_with("there")
    image.replay(ConfigChanged(RESOURCE_TOPIC, "there", {"retention.ms": "1"}))
    image.replay(TopicDeleted(bytes([1] * 16).hex()))
    assert not image.topics
    assert not image.topics_by_id
    assert not image.configs


names = st.text("abc.-_", min_size=1, max_size=20)
assignments = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4).map(
    tuple
)
records = st.one_of(
    st.builds(ClusterCreated, names),
    st.builds(TopicCreated, names, st.just(ID.hex()), assignments),
    st.builds(PartitionsAdded, st.just(ID.hex()), assignments),
    st.builds(TopicDeleted, st.just(ID.hex())),
    st.builds(ConfigChanged, st.sampled_from([2, 4, 32]), names, st.dictionaries(names, st.text())),
    st.builds(ProducerIdsAllocated, st.integers(0, 2**40)),
)


@given(records)
def test_records_survive_the_log(record: MetadataRecord) -> None:
    assert decode(encode(record)) == record


def test_a_record_of_the_future_is_named() -> None:
    with pytest.raises(StorageError, match=r"time-travel.*newer version"):
        decode(b'{"type":"time-travel"}')


def test_fields_of_the_future_are_ignored() -> None:
    assert decode(b'{"type":"cluster-created","cluster_id":"x","colour":"blue"}') == ClusterCreated("x")
