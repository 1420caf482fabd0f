"""Moving replicas (KIP-455)."""

from __future__ import annotations

import pytest
from small_cluster import TOPIC_ID, SmallCluster

from penstock.core.metadata import partitions, reassignment
from penstock.core.metadata.requests import OngoingReassignment
from penstock.model.errors import ApiError, ErrorCode


@pytest.fixture
def cluster() -> SmallCluster:
    cluster = SmallCluster(6, min_isr=2)
    cluster.create([1, 2, 3])
    return cluster


def moving(cluster: SmallCluster) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    state = cluster.partition
    return state.replicas, state.adding, state.removing


def test_replicas_are_added_then_in_sync_then_removed(cluster: SmallCluster) -> None:
    cluster.reassign(4, 5, 6)
    assert moving(cluster) == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert cluster.roles() == (1, (1, 2, 3), ())
    cluster.alter(1, 2, 3, 4, 5)
    assert moving(cluster) == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert cluster.partition.leader == 1
    cluster.alter(1, 2, 3, 4, 5, 6)
    assert moving(cluster) == ((4, 5, 6), (), ())
    assert cluster.roles() == (4, (4, 5, 6), ())
    with pytest.raises(ApiError) as told:
        partitions.altered(cluster.image, TOPIC_ID, 0, 1)
    assert told.value.code is ErrorCode.NEW_LEADER_ELECTED


def test_a_leader_that_stays_leads_on_in_a_new_epoch(cluster: SmallCluster) -> None:
    """The epoch tells the replica that is taken off that it is no follower any more."""
    cluster.reassign(1, 2, 4)
    assert cluster.partition.leader_epoch == 0
    cluster.alter(1, 2, 3, 4)
    assert moving(cluster) == ((1, 2, 4), (), ())
    assert (cluster.partition.leader, cluster.partition.leader_epoch) == (1, 1)


def test_another_order_moves_nothing(cluster: SmallCluster) -> None:
    cluster.reassign(3, 2, 1)
    assert moving(cluster) == ((3, 2, 1), (), ())
    assert (cluster.partition.leader, cluster.partition.leader_epoch) == (1, 0)
    assert reassignment.begin(cluster.image, "t", 0, [3, 2, 1], cluster) == []


def test_fewer_replicas_are_there_at_once(cluster: SmallCluster) -> None:
    cluster.reassign(2)
    assert moving(cluster) == ((2,), (), ())
    assert cluster.roles() == (2, (2,), ())


def test_the_factor_may_have_to_stay(cluster: SmallCluster) -> None:
    with pytest.raises(ApiError, match="from 3 to 2") as refused:
        reassignment.begin(cluster.image, "t", 0, [1, 2], cluster, allow_replication_factor_change=False)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassignment.begin(cluster.image, "t", 0, [4, 5, 6], cluster, allow_replication_factor_change=False)


@pytest.mark.parametrize(
    ("topic", "index", "replicas", "code"),
    [
        ("none", 0, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 1, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 0, [1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_targets_that_are_refused(
    cluster: SmallCluster, topic: str, index: int, replicas: list[int], code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as refused:
        reassignment.begin(cluster.image, topic, index, replicas, cluster)
    assert refused.value.code is code


def test_cancelling_goes_back(cluster: SmallCluster) -> None:
    with pytest.raises(ApiError) as refused:
        cluster.cancel()
    assert refused.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    cluster.reassign(4, 5, 6)
    cluster.alter(1, 2, 3, 4)
    cluster.cancel()
    assert cluster.roles() == (1, (1, 2, 3), ())
    assert sorted(cluster.partition.replicas) == [1, 2, 3]
    assert not cluster.partition.is_reassigning


def test_cancelling_does_not_give_up_the_only_replica_in_sync() -> None:
    cluster = SmallCluster(2)
    cluster.create([1])
    cluster.reassign(2, 1)
    cluster.alter(1, 2)
    cluster.reassign(1, 2)
    assert not cluster.partition.is_reassigning
    cluster.reassign(1)
    cluster.add(3)
    cluster.reassign(3, 2)
    cluster.alter(1, 3)
    cluster.alter(1, 3)
    cluster.fence(1)
    assert cluster.roles() == (3, (3,), ())
    with pytest.raises(ApiError, match="unclean leader election") as refused:
        cluster.cancel()
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    cluster.is_unclean_allowed = True
    cluster.cancel()
    assert cluster.partition.replicas == (1,)


def test_another_target_replaces_the_first(cluster: SmallCluster) -> None:
    cluster.reassign(4, 5, 6)
    cluster.reassign(1, 2, 5)
    assert moving(cluster) == ((1, 2, 5, 3), (5,), (3,))
    cluster.alter(1, 2, 3, 5)
    assert moving(cluster) == ((1, 2, 5), (), ())


def test_after_another_target_cancelling_goes_back_to_the_beginning(cluster: SmallCluster) -> None:
    cluster.reassign(4, 5, 6)
    cluster.reassign(1, 2, 5)
    cluster.cancel()
    assert sorted(cluster.partition.replicas) == [1, 2, 3]


def test_another_target_keeps_the_only_replica_in_sync_until_it_is_met(cluster: SmallCluster) -> None:
    cluster.configured_min_isr = 1
    cluster.reassign(4, 5, 6)
    cluster.alter(1, 4)
    cluster.fence(1)
    assert cluster.roles() == (4, (4,), ())
    cluster.reassign(2, 3)
    assert cluster.roles() == (4, (4,), ())
    assert set(cluster.partition.replicas) == {1, 2, 3, 4}
    cluster.alter(4, 2, 3)
    assert moving(cluster) == ((2, 3), (), ())
    assert cluster.roles() == (2, (2, 3), ())


def test_another_target_forgets_nobody_who_has_the_data_while_nobody_leads(cluster: SmallCluster) -> None:
    cluster.configured_min_isr = 1
    cluster.reassign(4, 5, 6)
    cluster.alter(1, 4)
    cluster.fence(1, 4)
    assert cluster.roles() == (-1, (), (4,))
    cluster.reassign(2, 3)
    assert cluster.roles() == (-1, (), (4,))
    cluster.unfence(4)
    cluster.alter(4, 2, 3)
    assert moving(cluster) == ((2, 3), (), ())


def test_a_reassignment_does_not_raise_the_minimum_meanwhile() -> None:
    cluster = SmallCluster(2, min_isr=2)
    cluster.create([1])
    assert cluster.partition.effective_min_isr(2) == 1
    cluster.reassign(2)
    assert cluster.partition.replicas == (2, 1)
    assert cluster.partition.effective_min_isr(2) == 1


def test_those_under_way_are_listed(cluster: SmallCluster) -> None:
    cluster.create([1], [2], name="other", topic_id=b"o" * 16)
    assert reassignment.ongoing(cluster.image) == []
    cluster.reassign(4, 2, 3)
    expected = [OngoingReassignment("t", 0, (4, 2, 3, 1), (4,), (1,))]
    assert reassignment.ongoing(cluster.image) == expected
    assert reassignment.ongoing(cluster.image, {"t": [0, 7], "other": [0], "none": [0]}) == expected
    assert reassignment.ongoing(cluster.image, {"other": [0, 1]}) == []
