"""Where replicas go: what StripedReplicaPlacer is to Kafka, without its dice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_cluster import TOPIC_ID, SmallCluster

from penstock.core.metadata import decisions
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic


def create(cluster: SmallCluster, partitions: int, factor: int, name: str = "t") -> list[tuple[int, ...]]:
    topic_id = name.encode().rjust(16, b"\1")
    cluster.apply(decisions.create_topic(cluster.image, [], NewTopic(name, partitions, factor), topic_id))
    return [partition.replicas for partition in cluster.image.topics[name].partitions]


def spread(counts: Counter[int], brokers: Sequence[int]) -> int:
    return max(counts[broker] for broker in brokers) - min(counts[broker] for broker in brokers)


@given(st.integers(1, 7), st.integers(1, 30), st.integers(1, 4))
@example(5, 20, 2)  # its last partition would need a broker twice
@example(6, 30, 2)
def test_leaders_and_replicas_are_even(brokers: int, partitions: int, factor: int) -> None:
    cluster = SmallCluster(brokers)
    factor = min(factor, brokers)
    placed = create(cluster, partitions, factor)
    ids = range(1, brokers + 1)
    assert all(len(set(replicas)) == factor for replicas in placed)
    assert spread(Counter(replicas[0] for replicas in placed), ids) <= 1
    assert spread(Counter(replica for replicas in placed for replica in replicas), ids) <= 1


def test_topics_of_one_partition_are_even_too() -> None:
    cluster = SmallCluster(3)
    placed = [create(cluster, 1, 2, f"t{number}")[0] for number in range(9)]
    assert spread(Counter(replicas[0] for replicas in placed), (1, 2, 3)) == 0
    assert spread(Counter(replica for replicas in placed for replica in replicas), (1, 2, 3)) == 0


def test_the_leaders_of_one_broker_have_different_successors() -> None:
    cluster = SmallCluster(3)
    placed = create(cluster, 12, 3)
    seconds = Counter(replicas[:2] for replicas in placed)
    assert sorted(seconds.values()) == [2] * 6


def test_added_partitions_go_on_evenly() -> None:
    cluster = SmallCluster(3)
    create(cluster, 2, 2)
    cluster.apply(decisions.create_partitions(cluster.image, [], "t", 6, None))
    placed = [partition.replicas for partition in cluster.image.topics["t"].partitions]
    assert spread(Counter(replicas[0] for replicas in placed), (1, 2, 3)) == 0
    assert spread(Counter(replica for replicas in placed for replica in replicas), (1, 2, 3)) == 0


@given(st.integers(1, 20), st.integers(2, 3))
def test_replicas_are_on_as_many_racks_as_there_are(partitions: int, factor: int) -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    placed = create(SmallCluster(6, racks=racks), partitions, factor)
    assert all(len({racks[replica] for replica in replicas}) == factor for replicas in placed)
    assert spread(Counter(replicas[0] for replicas in placed), list(racks)) <= 1


def test_with_fewer_racks_than_replicas_no_rack_has_them_all() -> None:
    racks = {1: "a", 2: "a", 3: "a", 4: "b"}
    placed = create(SmallCluster(4, racks=racks), 8, 3)
    assert all(4 in replicas for replicas in placed)


def test_fenced_brokers_are_used_only_when_they_are_needed() -> None:
    cluster = SmallCluster(4)
    cluster.fence(2)
    assert all(2 not in replicas for replicas in create(cluster, 6, 3, "three"))
    placed = create(cluster, 4, 4, "four")
    assert all(2 in replicas and replicas[0] != 2 for replicas in placed)
    for partition in cluster.image.topics["four"].partitions:
        assert partition.leader == partition.isr[0] == partition.replicas[0]
        assert sorted(partition.isr) == [1, 3, 4]


def test_a_broker_that_is_shutting_down_gets_nothing() -> None:
    cluster = SmallCluster(3)
    cluster.shut_down(3)
    assert all(3 not in replicas for replicas in create(cluster, 4, 2))


@pytest.mark.parametrize(
    ("fenced", "factor", "sentence"),
    [
        ([], 4, "Unable to replicate the partition 4 time(s): The target replication factor of 4 cannot be reached"),
        ([1, 2, 3], 1, "Unable to replicate the partition 1 time(s): All brokers are currently fenced."),
        ([], 0, "Replication factor must be larger than 0"),
    ],
)
def test_factors_that_are_refused(fenced: list[int], factor: int, sentence: str) -> None:
    cluster = SmallCluster(3)
    cluster.fence(*fenced)
    with pytest.raises(ApiError) as refused:
        create(cluster, 1, factor)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert str(refused.value).startswith(sentence)


def test_the_counts_are_named() -> None:
    with pytest.raises(ApiError, match="because only 3 broker"):
        create(SmallCluster(3), 1, 4)


def test_a_manual_assignment_needs_somebody_to_lead() -> None:
    cluster = SmallCluster(3)
    cluster.fence(2, 3)
    with pytest.raises(ApiError, match="for partition 0 are fenced") as refused:
        cluster.create([2, 3])
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    cluster.create([2, 1])
    assert (cluster.partition.replicas, cluster.partition.leader, cluster.partition.isr) == ((2, 1), 1, (1,))
    with pytest.raises(ApiError, match="for partition 1 are fenced"):
        decisions.create_partitions(cluster.image, [], "t", 2, [[2, 3]])


def test_before_anybody_has_registered_the_given_brokers_count() -> None:
    cluster = SmallCluster(0)
    records = decisions.create_topic(cluster.image, [7], NewTopic("t", 2, 1), TOPIC_ID)
    cluster.apply(records)
    assert [partition.replicas for partition in cluster.image.topics["t"].partitions] == [(7,), (7,)]
