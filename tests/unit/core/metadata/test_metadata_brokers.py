"""Brokers come, are fenced, shut down and go: what ClusterControlManager is to Kafka."""

from __future__ import annotations

import pytest
from small_cluster import TOPIC_ID, FixedPolicies, SmallCluster

from penstock.core.metadata import brokers
from penstock.core.metadata.image import RESOURCE_TOPIC, MetadataImage
from penstock.core.metadata.records import BrokerRegistered, ConfigChanged, TopicCreated
from penstock.core.metadata.requests import Registration
from penstock.model.errors import ApiError, ErrorCode


def code_of(error: pytest.ExceptionInfo[ApiError]) -> ErrorCode:
    return error.value.code


def test_a_broker_starts_fenced_and_with_an_epoch_of_its_own() -> None:
    cluster = SmallCluster(0)
    cluster.register(1)
    cluster.register(2)
    assert [broker.epoch for broker in cluster.image.brokers.values()] == [0, 1]
    assert cluster.image.live_brokers() == []
    cluster.unfence(2)
    assert cluster.image.live_brokers() == [2]


def test_epochs_are_never_given_again() -> None:
    cluster = SmallCluster(2)
    cluster.apply(brokers.unregister(cluster.image, 2, cluster))
    copy = MetadataImage()
    for record in cluster.image.snapshot_records():
        copy.replay(record)
    assert copy.next_broker_epoch == 2
    cluster.register(2)
    assert cluster.image.brokers[2].epoch == 2


def test_registering_again_in_the_same_life_changes_addresses_only() -> None:
    cluster = SmallCluster(2)
    cluster.create([1, 2])
    records = cluster.register(1, is_same_life=True)
    assert [type(record) for record in records] == [BrokerRegistered]
    assert cluster.image.brokers[1].epoch == 0
    assert not cluster.image.brokers[1].is_fenced
    assert cluster.partition.leader == 1


def test_a_new_life_takes_leadership_and_isr_of_the_old_one() -> None:
    cluster = SmallCluster(2)
    cluster.create([1, 2])
    cluster.register(1)
    assert (cluster.partition.leader, cluster.partition.isr) == (2, (2,))
    assert cluster.image.brokers[1].is_fenced


@pytest.mark.parametrize(("is_clean", "elr"), [(False, ()), (True, (3,))], ids=["a crash", "a stop"])
def test_who_crashes_in_the_life_in_which_a_topic_became_durable_is_not_eligible(
    is_clean: bool, elr: tuple[int, ...]
) -> None:
    """It may have crashed before its first flush; from its next life on what it acknowledges is stable."""
    cluster = SmallCluster(3, min_isr=3)
    cluster.create((1, 2, 3))
    cluster.apply([ConfigChanged(RESOURCE_TOPIC, "t", {"flush.messages": "1"}, now_durable=("t",))])
    copy = MetadataImage()
    for record in cluster.image.snapshot_records():
        copy.replay(record)
    assert copy == cluster.image
    cluster.register(3, is_clean=is_clean)
    assert cluster.roles() == (1, (1, 2), elr)
    cluster.unfence(3)
    cluster.alter(1, 2, 3)
    cluster.register(3, is_clean=False)
    assert cluster.roles() == (1, (1, 2), (3,))


@pytest.mark.parametrize(
    ("is_durable", "is_clean", "elr"),
    [(True, True, (1,)), (True, False, (1,)), (False, True, (1,)), (False, False, ())],
)
def test_what_a_crash_takes(is_durable: bool, is_clean: bool, elr: tuple[int, ...]) -> None:
    """Only an unclean end, and only where records are acknowledged before they are flushed."""
    cluster = SmallCluster(1)
    cluster.is_flushed_first = is_durable
    cluster.create([1])
    cluster.fence(1)
    cluster.register(1, is_clean=is_clean)
    assert (cluster.partition.elr, cluster.partition.last_known_elr) == (elr, (1,))


def test_the_last_known_leader_leads_when_nobody_is_eligible() -> None:
    cluster = SmallCluster(2)
    cluster.is_flushed_first = False
    cluster.create([1, 2])
    cluster.fence(2)
    cluster.register(1)
    assert cluster.roles() == (-1, (), ())
    cluster.unfence(2)
    assert cluster.partition.leader == -1
    cluster.unfence(1)
    assert (cluster.partition.leader, cluster.partition.isr, cluster.partition.last_known_elr) == (1, (1,), ())


def test_a_broker_with_another_disk_is_trusted_with_nothing() -> None:
    cluster = SmallCluster(0)
    cluster.register(1, directory_id="old")
    cluster.unfence(1)
    cluster.create([1])
    cluster.register(1, directory_id="new")
    cluster.unfence(1)
    state = cluster.partition
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (), ())


def test_fencing_moves_leaders_and_leaves_isrs() -> None:
    cluster = SmallCluster(3)
    cluster.create([1, 2, 3], [2, 1, 3])
    cluster.fence(1)
    first, second = cluster.image.topics["t"].partitions
    assert (first.leader, first.isr, first.leader_epoch) == (2, (2, 3), 1)
    assert (second.leader, second.isr, second.leader_epoch) == (2, (2, 3), 0)
    assert brokers.fence(cluster.image, 1, cluster) == []


def test_unknown_brokers_are_refused() -> None:
    cluster = SmallCluster(1)
    for decide in (brokers.fence, brokers.unfence, brokers.begin_controlled_shutdown, brokers.unregister):
        with pytest.raises(ApiError) as refused:
            decide(cluster.image, 9, cluster)
        assert code_of(refused) is ErrorCode.BROKER_ID_NOT_REGISTERED
    with pytest.raises(ApiError) as refused:
        brokers.check_epoch(cluster.image, 9, 0)
    assert code_of(refused) is ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(ApiError) as refused:
        brokers.check_epoch(cluster.image, 1, 5)
    assert code_of(refused) is ErrorCode.STALE_BROKER_EPOCH
    brokers.check_epoch(cluster.image, 1, 0)


# -- controlled shutdown ----------------------------------------------------------------


def test_a_broker_that_shuts_down_hands_over() -> None:
    cluster = SmallCluster(3)
    cluster.create([1, 2, 3], [2, 1, 3])
    cluster.shut_down(1)
    first, second = cluster.image.topics["t"].partitions
    assert (first.leader, first.isr) == (2, (2, 3))
    assert second.isr == (2, 3)
    assert brokers.leads(cluster.image, 1) == 0
    assert cluster.image.live_brokers() == [1, 2, 3]
    assert cluster.image.placeable_brokers() == [2, 3]
    assert cluster.shut_down(1) == []


def test_where_nobody_else_is_in_sync_it_leads_on_until_somebody_is() -> None:
    cluster = SmallCluster(2)
    cluster.create([1, 2])
    cluster.alter(1)
    cluster.shut_down(1)
    assert (cluster.partition.leader, cluster.partition.isr) == (1, (1,))
    assert brokers.leads(cluster.image, 1) == brokers.awaits_successor(cluster.image, 1) == 1
    cluster.alter(1, 2)
    assert (cluster.partition.leader, cluster.partition.isr) == (2, (2,))
    assert brokers.awaits_successor(cluster.image, 1) == 0


def test_a_single_replica_does_not_keep_a_broker_from_shutting_down() -> None:
    cluster = SmallCluster(2)
    cluster.create([1])
    cluster.shut_down(1)
    assert (brokers.leads(cluster.image, 1), brokers.awaits_successor(cluster.image, 1)) == (1, 0)
    cluster.fence(1)
    assert (cluster.partition.leader, cluster.partition.elr) == (-1, (1,))
    cluster.register(1, is_clean=True)
    cluster.unfence(1)
    assert cluster.partition.leader == 1


# -- going for good ---------------------------------------------------------------------


def test_an_unregistered_broker_is_gone_and_its_replicas_are_known() -> None:
    cluster = SmallCluster(3)
    cluster.create([1, 2, 3], [2, 3, 1], [2, 3, 1])
    assert brokers.replicas_on(cluster.image, 1) == [("t", 0), ("t", 1), ("t", 2)]
    cluster.apply(brokers.unregister(cluster.image, 1, cluster))
    assert list(cluster.image.brokers) == [2, 3]
    assert (cluster.partition.leader, cluster.partition.replicas, cluster.partition.isr) == (2, (1, 2, 3), (2, 3))


# -- standing alone ---------------------------------------------------------------------


def test_a_broker_alone_starts_without_a_change_per_partition() -> None:
    """Also the one whose log is from before there were registrations."""
    image = MetadataImage()
    image.replay(TopicCreated("t", TOPIC_ID.hex(), ((1,), (1,))))
    records = brokers.register(
        image, Registration(1, "", bytes(16), {}), FixedPolicies(durable=False), is_clean=False, is_alone=True
    )
    assert [type(record) for record in records] == [BrokerRegistered]
    for record in records:
        image.replay(record)
    assert image.placeable_brokers() == [1]
    assert all(each.leader == 1 and each.leader_epoch == 0 for each in image.topics["t"].partitions)


def test_a_log_from_before_registrations_is_led_again() -> None:
    image = MetadataImage()
    image.replay(TopicCreated("t", TOPIC_ID.hex(), ((1,),)))
    cluster = SmallCluster(0)
    cluster.image = image
    cluster.register(1)
    assert (cluster.partition.leader, cluster.partition.elr) == (-1, (1,))
    cluster.unfence(1)
    assert (cluster.partition.leader, cluster.partition.isr) == (1, (1,))


def test_beside_others_nobody_is_alone() -> None:
    cluster = SmallCluster(2)
    cluster.create([1, 2])
    records = brokers.register(
        cluster.image, Registration(1, "", b"x" * 16, {}), FixedPolicies(durable=True), is_clean=True, is_alone=True
    )
    cluster.apply(records)
    assert cluster.image.brokers[1].is_fenced
    assert cluster.partition.leader == 2
