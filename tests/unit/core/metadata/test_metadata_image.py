"""Records and image: what the log of a single broker was stays readable, and a snapshot is as good as the log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_cluster import TOPIC_ID, SmallCluster

from penstock.api.turns import drained
from penstock.core.metadata import records
from penstock.core.metadata.image import RESOURCE_TOPIC, MetadataImage
from penstock.core.metadata.records import (
    BrokerChanged,
    BrokerEpochsUsed,
    ClusterCreated,
    ConfigChanged,
    FeatureChanged,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    PeerAddressRemoved,
    PeerAddressSet,
    ProducerIdsAllocated,
    ScramCredentialSet,
    TopicCreated,
    TopicDeleted,
    decode,
    decode_entry,
    encode,
    encode_entry,
    encode_in_steps,
)

OF_A_SINGLE_BROKER = [
    b'{"type":"cluster-created","cluster_id":"c"}',
    b'{"type":"topic-created","name":"t","topic_id":"000102030405060708090a0b0c0d0e0f","assignments":[[1],[1]]}',
    b'{"type":"config-changed","resource_type":2,"resource_name":"t","overrides":{"retention.ms":"1"}}',
    b'{"type":"partitions-added","topic_id":"000102030405060708090a0b0c0d0e0f","assignments":[[1]]}',
    b'{"type":"producer-ids-allocated","next_producer_id":1000}',
]

every_record = st.one_of(*map(st.from_type, get_args(MetadataRecord)))


@given(every_record)
def test_every_record_survives_the_log(record: MetadataRecord) -> None:
    assert decode(encode(record)) == record


@given(st.lists(every_record, max_size=5))
def test_every_entry_survives_the_log(entry: list[MetadataRecord]) -> None:
    assert decode_entry(encode_entry(entry)) == entry


def test_the_log_of_a_single_broker_is_read_and_written_as_it_was() -> None:
    image = MetadataImage()
    for value in OF_A_SINGLE_BROKER:
        [record] = decode_entry(value)
        assert encode(record) == value
        image.replay(record)
    assert image.cluster_id == "c"
    assert image.next_producer_id == 1000
    assert image.topic_overrides("t") == {"retention.ms": "1"}
    assert [
        (each.index, each.replicas, each.leader, each.leader_epoch, each.isr) for each in image.topics["t"].partitions
    ] == [(index, (1,), 1, 0, (1,)) for index in range(3)]
    assert image.brokers == {}


def test_a_change_says_only_what_changed() -> None:
    assert (
        encode(PartitionChanged("00", 3, isr=(1,)))
        == b'{"type":"partition-changed","topic_id":"00","index":3,"isr":[1]}'
    )


def test_a_leader_named_again_begins_an_epoch() -> None:
    cluster = SmallCluster(1)
    cluster.create([1])
    cluster.apply([PartitionChanged(TOPIC_ID.hex(), 0, leader=1)])
    assert (cluster.partition.leader_epoch, cluster.partition.partition_epoch) == (1, 1)


def busy_image() -> MetadataImage:
    cluster = SmallCluster(4, racks={1: "a"}, min_isr=2)
    cluster.create([1, 2, 3], [2, 3, 1])
    cluster.create([4], name="lonely", topic_id=b"l" * 16)
    cluster.fence(4)
    cluster.alter(1)
    cluster.reassign(1, 2, 4)
    cluster.shut_down(3)
    cluster.apply(
        [
            ClusterCreated("c"),
            ConfigChanged(RESOURCE_TOPIC, "t", {"min.insync.replicas": "2"}),
            ScramCredentialSet("u", 1, "00", "01", "02", 4096),
            ProducerIdsAllocated(2000),
            PeerAddressSet(9, "host9", 9093),
            PeerAddressSet(8, "host8", 9093),
            PeerAddressRemoved(9),
        ]
    )
    return cluster.image


def test_a_snapshot_makes_the_same_image() -> None:
    image = busy_image()
    copy = MetadataImage()
    for record in decode_entry(encode_entry(image.snapshot_records())):
        copy.replay(record)
    assert copy == image
    assert copy.topics == image.topics
    assert copy.brokers == image.brokers
    assert copy.topics_by_id == image.topics_by_id
    assert copy.peers == image.peers == {8: ("host8", 9093)}
    assert copy.next_broker_epoch == image.next_broker_epoch
    assert copy.snapshot_records() == image.snapshot_records()
    copy.topics["t"].partitions[0] = replace(copy.topics["t"].partitions[0], partition_epoch=99)
    assert copy != image


def test_a_copy_stays_as_it_is_whatever_becomes_of_the_image() -> None:
    image = busy_image()
    copy, before = image.copy(), image.snapshot_records()
    assert copy == image
    assert copy.topics_by_id == {topic.topic_id: topic for topic in copy.topics.values()}
    assert (copy.topics_version, copy.partitions_version, copy.brokers_version) == (
        image.topics_version,
        image.partitions_version,
        image.brokers_version,
    )
    topic_id = image.topics["t"].topic_id.hex()
    broker = next(iter(image.brokers))
    for record in (
        PartitionChanged(topic_id, 0, leader=-1, isr=()),
        PartitionsAdded(topic_id, ((1,),)),
        ConfigChanged(RESOURCE_TOPIC, "t", {"flush.messages": "1"}, now_durable=("t",)),
        BrokerChanged(broker, is_fenced=not image.brokers[broker].is_fenced),
        BrokerEpochsUsed(image.next_broker_epoch + 5),
        FeatureChanged("metadata.version", 1),
        ScramCredentialSet("u", 2, "00", "01", "02", 8192),
        PeerAddressRemoved(8),
        ProducerIdsAllocated(9000),
        TopicCreated("another", "0f" * 16, ((1,),)),
    ):
        image.replay(record)
        assert copy.snapshot_records() == before, record
    image.replay(TopicDeleted(topic_id))
    image.clear()
    assert copy.snapshot_records() == before


@pytest.mark.parametrize("at_once", [1, 2, 3, 1000])
def test_an_image_is_encoded_in_steps_to_the_same_bytes(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PARTITIONS_IN_ONE_GO", at_once)
    for image in (busy_image(), MetadataImage()):
        assert drained(encode_in_steps(image.each_snapshot_record())) == encode_entry(image.snapshot_records())


def test_no_step_encodes_more_than_a_few_hundred_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    image = MetadataImage()
    for number in range(100):
        topic_id = f"{number:032x}"
        image.replay(TopicCreated(f"t{number}", topic_id, ((1, 2),) * 100))
        for index in range(0, 100, 2):
            image.replay(PartitionChanged(topic_id, index, leader=2))
    widths: list[int] = []
    dump = records._dump

    def counting(some: list[dict[str, Any]]) -> bytes:
        widths.append(sum(len(each.get("assignments", "1")) for each in some))
        return dump(some)

    monkeypatch.setattr(records, "_dump", counting)
    encoding = encode_in_steps(image.each_snapshot_record())
    steps = sum(1 for _ in encoding)
    assert len(widths) == steps + 1
    assert max(widths) < records.PARTITIONS_IN_ONE_GO + 100, "the last record may be a topic of a hundred partitions"
    assert sum(widths) == 100 * 100 + 100 * 50


def test_versions_grow_with_what_they_stand_for() -> None:
    cluster = SmallCluster(2)
    image = cluster.image

    def versions() -> tuple[int, int, int]:
        return image.topics_version, image.partitions_version, image.brokers_version

    topics, partitions, brokers = versions()
    cluster.create([1, 2])
    assert versions() == (topics + 1, partitions + 1, brokers)
    cluster.alter(1)
    assert versions() == (topics + 1, partitions + 2, brokers)
    cluster.fence(2)
    assert versions() == (topics + 1, partitions + 2, brokers + 1)
    before = versions()
    image.clear()
    assert all(now > then for now, then in zip(versions(), before, strict=True))
    assert image == MetadataImage()


def test_new_partitions_start_with_those_that_are_there() -> None:
    image = MetadataImage()
    image.replay(TopicCreated("t", TOPIC_ID.hex(), ((1, 2), (2, 1)), ((2,), (2, 1))))
    assert [(each.leader, each.isr) for each in image.topics["t"].partitions] == [(2, (2,)), (2, (2, 1))]
