"""ISR, ELR and elections: what PartitionChangeBuilder and AlterPartition are to Kafka."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_cluster import TOPIC_ID, SmallCluster

from penstock.core.metadata import partitions
from penstock.core.metadata.records import PartitionChanged
from penstock.core.metadata.requests import ElectionKind
from penstock.model.errors import ApiError, ErrorCode

PREFERRED, UNCLEAN = ElectionKind.PREFERRED, ElectionKind.UNCLEAN


@pytest.fixture
def cluster() -> SmallCluster:
    """Three brokers, one partition on all of them, min.insync.replicas 2."""
    cluster = SmallCluster(3, min_isr=2)
    cluster.create([1, 2, 3])
    return cluster


def refusal(code: ErrorCode) -> pytest.RaisesExc[ApiError]:
    return pytest.RaisesExc(ApiError, check=lambda error: error.code is code)


# -- the ISR ----------------------------------------------------------------------------


def test_shrinking_and_expanding_bump_the_partition_epoch_only(cluster: SmallCluster) -> None:
    cluster.alter(1, 2)
    assert (cluster.partition.isr, cluster.partition.leader_epoch, cluster.partition.partition_epoch) == ((1, 2), 0, 1)
    cluster.alter(1, 2, 3)
    assert (cluster.partition.isr, cluster.partition.leader_epoch, cluster.partition.partition_epoch) == (
        (1, 2, 3),
        0,
        2,
    )


def test_the_same_isr_again_changes_nothing(cluster: SmallCluster) -> None:
    assert cluster.alter(1, 2, 3) == []
    assert partitions.altered(cluster.image, TOPIC_ID, 0, 1) is cluster.partition


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"broker_epoch": 77}, ErrorCode.STALE_BROKER_EPOCH),
        ({"broker_id": 9}, ErrorCode.STALE_BROKER_EPOCH),
        ({"topic_id": bytes(16)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"index": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 5}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 5}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"broker_id": 2, "broker_epoch": 1}, ErrorCode.INVALID_REQUEST),
        ({"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"new_isr": []}, ErrorCode.INVALID_REQUEST),
        ({"new_isr": [(1, -1), (4, -1)]}, ErrorCode.INVALID_REQUEST),
        ({"new_isr": [(1, -1), (1, -1)]}, ErrorCode.INVALID_REQUEST),
        ({"new_isr": [(1, -1), (2, 77)]}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_alterations_that_are_refused(cluster: SmallCluster, changes: dict[str, object], code: ErrorCode) -> None:
    with refusal(code):
        cluster.alter(1, 2, **changes)


def test_a_leader_that_leaves_itself_out_resigns(cluster: SmallCluster) -> None:
    cluster.alter(1, 2, 3, new_isr=[(2, -1), (3, -1)])
    assert cluster.roles() == (2, (2, 3), ())
    assert cluster.partition.leader_epoch == 1
    with refusal(ErrorCode.NEW_LEADER_ELECTED):
        partitions.altered(cluster.image, TOPIC_ID, 0, 1)


def test_a_fenced_replica_does_not_join_the_isr(cluster: SmallCluster) -> None:
    cluster.fence(3)
    with refusal(ErrorCode.INELIGIBLE_REPLICA):
        cluster.alter(1, 2, 3)


def test_a_replica_that_is_shutting_down_does_not_join_the_isr(cluster: SmallCluster) -> None:
    cluster.shut_down(3)
    with refusal(ErrorCode.INELIGIBLE_REPLICA):
        cluster.alter(1, 2, 3)


def test_a_replica_of_an_earlier_life_does_not_join_the_isr(cluster: SmallCluster) -> None:
    old = cluster.image.brokers[3].epoch
    cluster.register(3)
    cluster.unfence(3)
    with refusal(ErrorCode.INELIGIBLE_REPLICA):
        cluster.alter(1, 2, 3, new_isr=[(1, -1), (2, -1), (3, old)])
    cluster.alter(1, 2, 3, new_isr=[(1, -1), (2, -1), (3, cluster.image.brokers[3].epoch)])
    assert cluster.partition.isr == (1, 2, 3)


# -- eligible leader replicas -----------------------------------------------------------


def test_whoever_leaves_an_isr_below_the_minimum_stays_eligible(cluster: SmallCluster) -> None:
    cluster.alter(1)
    assert (cluster.partition.isr, cluster.partition.elr) == ((1,), (2, 3))


def test_above_the_minimum_nobody_else_is_eligible(cluster: SmallCluster) -> None:
    cluster.alter(1, 2)
    assert cluster.roles() == (1, (1, 2), ())
    cluster.alter(1)
    assert cluster.roles() == (1, (1,), (2,))
    cluster.alter(1, 3)
    assert cluster.roles() == (1, (1, 3), ())


def test_the_last_one_standing_is_never_forgotten() -> None:
    cluster = SmallCluster(2)
    cluster.create([1, 2])
    cluster.fence(2, 1)
    state = cluster.partition
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (1,), (1,))
    cluster.unfence(2)
    assert cluster.partition.leader == -1
    cluster.unfence(1)
    state = cluster.partition
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (1, (1,), (), ())
    assert state.leader_epoch == 2


def test_an_eligible_one_leads_when_nobody_is_in_sync(cluster: SmallCluster) -> None:
    cluster.fence(3, 2, 1)
    assert (cluster.partition.leader, cluster.partition.elr) == (-1, (1, 2))
    cluster.unfence(3)
    assert cluster.partition.leader == -1
    cluster.unfence(2)
    assert cluster.roles() == (2, (2,), (1,))


def test_the_replication_factor_bounds_the_minimum() -> None:
    cluster = SmallCluster(2, min_isr=3)
    cluster.create([1, 2])
    cluster.alter(1)
    assert cluster.roles() == (1, (1,), (2,))
    cluster.alter(1, 2)
    assert cluster.roles() == (1, (1, 2), ())


def test_a_lower_minimum_ends_eligibility(cluster: SmallCluster) -> None:
    """From then on the leader commits alone, and the others have not all of it any more."""
    cluster.alter(1)
    cluster.configured_min_isr = 1
    cluster.apply(partitions.settings_changed(cluster.image, ["t"], cluster))
    assert (cluster.partition.isr, cluster.partition.elr) == ((1,), ())
    cluster.fence(1)
    assert (cluster.partition.leader, cluster.partition.elr) == (-1, (1,))


def test_a_minimum_lowered_while_nobody_leads_ends_eligibility_with_the_election(cluster: SmallCluster) -> None:
    cluster.fence(3, 2, 1)
    cluster.configured_min_isr = 1
    cluster.apply(partitions.settings_changed(cluster.image, ["t"], cluster))
    assert cluster.roles() == (-1, (), (1, 2))
    cluster.unfence(2)
    assert cluster.roles() == (2, (2,), ())


def test_who_is_away_when_a_topic_becomes_durable_is_not_eligible(cluster: SmallCluster) -> None:
    """It may have crashed with something unflushed, and nobody could tell when it registers."""
    cluster.alter(1, 2)
    cluster.fence(2)
    assert cluster.roles() == (1, (1,), (2,))
    cluster.apply(partitions.settings_changed(cluster.image, ["t"], cluster, ["t"]))
    assert cluster.roles() == (1, (1,), ())


def test_who_is_there_when_a_topic_becomes_durable_stays_eligible(cluster: SmallCluster) -> None:
    cluster.alter(1)
    assert cluster.roles() == (1, (1,), (2, 3))
    cluster.apply(partitions.settings_changed(cluster.image, ["t"], cluster, ["t"]))
    assert cluster.roles() == (1, (1,), (2, 3))


def test_a_topic_does_not_become_durable_while_all_that_may_lead_it_are_away(cluster: SmallCluster) -> None:
    cluster.fence(3, 2, 1)
    with refusal(ErrorCode.INVALID_CONFIG):
        partitions.settings_changed(cluster.image, ["t"], cluster, ["t"])
    assert cluster.roles() == (-1, (), (1, 2))


# -- elections --------------------------------------------------------------------------


def test_the_preferred_leader_takes_over(cluster: SmallCluster) -> None:
    cluster.fence(1)
    cluster.unfence(1)
    cluster.alter(2, 3, 1)
    assert cluster.partition.leader == 2
    cluster.elect(PREFERRED)
    assert (cluster.partition.leader, cluster.partition.leader_epoch, cluster.partition.isr) == (1, 2, (2, 3, 1))


def test_preferred_elections_that_are_refused(cluster: SmallCluster) -> None:
    with refusal(ErrorCode.ELECTION_NOT_NEEDED):
        cluster.elect(PREFERRED)
    cluster.fence(1)
    with refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
        cluster.elect(PREFERRED)
    cluster.unfence(1)
    with refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
        cluster.elect(PREFERRED)
    with refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        partitions.elect(cluster.image, "none", 0, PREFERRED, cluster)
    with refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        partitions.elect(cluster.image, "t", 1, PREFERRED, cluster)


def test_unclean_elections(cluster: SmallCluster) -> None:
    with refusal(ErrorCode.ELECTION_NOT_NEEDED):
        cluster.elect(UNCLEAN)
    cluster.alter(1, 2)
    cluster.alter(1)
    cluster.configured_min_isr = 1
    cluster.alter(1)
    cluster.fence(1, 2, 3)
    with refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE):
        cluster.elect(UNCLEAN)
    cluster.unfence(3)
    assert cluster.partition.leader == -1
    cluster.elect(UNCLEAN)
    state = cluster.partition
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (3, (3,), (), ())


def test_a_topic_that_allows_it_is_led_by_anybody(cluster: SmallCluster) -> None:
    cluster.is_unclean_allowed = True
    cluster.configured_min_isr = 1
    cluster.alter(1)
    cluster.fence(1)
    assert cluster.roles() == (2, (2,), ())


def test_allowing_unclean_elections_helps_partitions_that_wait(cluster: SmallCluster) -> None:
    cluster.configured_min_isr = 1
    cluster.alter(1)
    cluster.fence(1)
    assert cluster.partition.leader == -1
    assert partitions.elect_leaderless(cluster.image, cluster) == []
    cluster.is_unclean_allowed = True
    cluster.apply(partitions.elect_leaderless(cluster.image, cluster))
    assert cluster.partition.leader == 2


def test_leaders_go_back_where_they_are_in_sync() -> None:
    cluster = SmallCluster(3)
    cluster.create([1, 2], [1, 3], [2, 3])
    cluster.fence(1)
    cluster.unfence(1)
    assert partitions.preferred_imbalance(cluster.image, cluster) == []
    cluster.alter(2, 1)
    records = cluster.apply(partitions.preferred_imbalance(cluster.image, cluster))
    assert records == [PartitionChanged(TOPIC_ID.hex(), 0, leader=1)]
    assert [each.leader for each in cluster.image.topics["t"].partitions] == [1, 3, 2]


def test_not_all_leaders_move_at_once() -> None:
    cluster = SmallCluster(2)
    cluster.create([1, 2], [1, 2], [1, 2])
    cluster.fence(1)
    cluster.unfence(1)
    topic = cluster.image.topics["t"]
    topic.partitions = [replace(partition, isr=(2, 1)) for partition in topic.partitions]
    assert len(partitions.preferred_imbalance(cluster.image, cluster, limit=2)) == 2
