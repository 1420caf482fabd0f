"""Records and image: what the log of a single broker was stays readable, and a snapshot is as good as the log."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st
from small_cluster import TOPIC_ID, SmallCluster

from penstock.core.metadata.image import RESOURCE_TOPIC, MetadataImage
from penstock.core.metadata.records import (
    ClusterCreated,
    ConfigChanged,
    MetadataRecord,
    PartitionChanged,
    PeerAddressRemoved,
    PeerAddressSet,
    ProducerIdsAllocated,
    ScramCredentialSet,
    TopicCreated,
    decode,
    decode_entry,
    encode,
    encode_entry,
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
def test_every_entry_survives_the_log(records: list[MetadataRecord]) -> None:
    assert decode_entry(encode_entry(records)) == records


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
    copy.topics["t"].partitions[0].partition_epoch += 1
    assert copy != image


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
