"""Moving replicas (KIP-455), and plans of what to move."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_cluster import TOPIC_ID, SmallCluster

from penstock.core.metadata import decisions, partitions, reassignment
from penstock.core.metadata.image import NO_LEADER
from penstock.core.metadata.records import TopicCreated
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
    assert reassignment.begin(cluster.image, "t", 0, [3, 2, 1], cluster.min_isr) == []


def test_fewer_replicas_are_there_at_once(cluster: SmallCluster) -> None:
    cluster.reassign(2)
    assert moving(cluster) == ((2,), (), ())
    assert cluster.roles() == (2, (2,), ())


def test_the_factor_may_have_to_stay(cluster: SmallCluster) -> None:
    with pytest.raises(ApiError, match="from 3 to 2") as refused:
        reassignment.begin(cluster.image, "t", 0, [1, 2], cluster.min_isr, allow_replication_factor_change=False)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassignment.begin(cluster.image, "t", 0, [4, 5, 6], cluster.min_isr, allow_replication_factor_change=False)


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
        reassignment.begin(cluster.image, topic, index, replicas, cluster.min_isr)
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


# -- plans ------------------------------------------------------------------------------


def carry_out(cluster: SmallCluster, plan: reassignment.Plan) -> None:
    for name, moves in plan.items():
        for index, replicas in moves.items():
            cluster.apply(reassignment.begin(cluster.image, name, index, replicas, cluster.min_isr))
            state = cluster.image.topics[name].partitions[index]
            state.isr, state.leader, state.replicas = replicas, replicas[0], replicas
            state.adding = state.removing = ()


def load(cluster: SmallCluster) -> tuple[Counter[int], Counter[int]]:
    states = [state for _, state in cluster.image.all_partitions()]
    return Counter(state.replicas[0] for state in states), Counter(each for state in states for each in state.replicas)


@given(st.integers(1, 12), st.integers(1, 3), st.booleans())
def test_a_drained_broker_has_nothing_and_the_others_have_it_evenly(count: int, factor: int, is_racked: bool) -> None:
    racks = {broker: "abc"[broker % 3] for broker in range(1, 7)} if is_racked else {}
    cluster = SmallCluster(6, racks=racks)
    cluster.apply(decisions.create_topic(cluster.image, [], "t", TOPIC_ID, count, factor, {}, {}))
    before = {state.index: state.replicas for _, state in cluster.image.all_partitions()}
    plan = reassignment.drain_plan(cluster.image, 1)
    assert set(plan.get("t", {})) == {index for index, replicas in before.items() if 1 in replicas}
    for index, replicas in plan.get("t", {}).items():
        assert len(set(replicas) - set(before[index])) == 1
        if is_racked:
            assert len({racks[replica] for replica in replicas}) == factor
    carry_out(cluster, plan)
    leaders, replicas_of = load(cluster)
    assert replicas_of[1] == 0
    if not is_racked:
        assert max(replicas_of.values()) - min(replicas_of[broker] for broker in range(2, 7)) <= 2
        assert max(leaders.values()) - min(leaders[broker] for broker in range(2, 7)) <= 2


def test_a_drain_needs_somebody_to_take_over() -> None:
    cluster = SmallCluster(3)
    cluster.create([1, 2, 3])
    with pytest.raises(ApiError, match="add a broker first") as refused:
        reassignment.drain_plan(cluster.image, 1)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    cluster.add(4)
    assert reassignment.drain_plan(cluster.image, 1) == {"t": {0: (4, 2, 3)}}
    cluster.fence(4)
    with pytest.raises(ApiError, match="add a broker first"):
        reassignment.drain_plan(cluster.image, 1)


@given(st.integers(1, 12), st.integers(1, 3))
def test_a_new_broker_gets_its_share_and_no_more_moves_than_that(count: int, factor: int) -> None:
    cluster = SmallCluster(3)
    cluster.apply(decisions.create_topic(cluster.image, [], "t", TOPIC_ID, count, factor, {}, {}))
    cluster.add(4)
    before = {state.index: state.replicas for _, state in cluster.image.all_partitions()}
    plan = reassignment.balance_plan(cluster.image)
    moved = sum(len(set(replicas) - set(before[index])) for index, replicas in plan.get("t", {}).items())
    carry_out(cluster, plan)
    leaders, replicas_of = load(cluster)
    assert max(replicas_of.values()) - min(replicas_of[broker] for broker in range(1, 5)) <= 1
    assert max(leaders.values()) - min(leaders[broker] for broker in range(1, 5)) <= 1
    assert moved == replicas_of[4]
    assert reassignment.balance_plan(cluster.image) == {}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=4), st.randoms())
def test_each_topic_is_led_evenly_as_well(topics: list[tuple[int, int]], random: Random) -> None:
    cluster = SmallCluster(3)
    for number, (count, factor) in enumerate(topics):
        lists = [tuple(random.sample((1, 2, 3), factor)) for _ in range(count)]
        cluster.apply([TopicCreated(f"t{number}", bytes([number] * 16).hex(), tuple(lists))])
    carry_out(cluster, reassignment.balance_plan(cluster.image))
    leaders, replicas_of = load(cluster)
    assert max(replicas_of.values()) - min(replicas_of[broker] for broker in (1, 2, 3)) <= 1
    assert reassignment.balance_plan(cluster.image) == {}
    if all(factor == 3 for _, factor in topics):  # else somebody may not be asked
        assert max(leaders.values()) - min(leaders[broker] for broker in (1, 2, 3)) <= 1
        for topic in cluster.image.topics.values():
            own = Counter(state.replicas[0] for state in topic.partitions)
            assert max(own.values()) - min(own[broker] for broker in (1, 2, 3)) <= 1, topic.name


def test_a_topic_that_one_broker_leads_is_spread_although_all_lead_as_much() -> None:
    cluster = SmallCluster(2)
    cluster.apply([TopicCreated("a", bytes([1] * 16).hex(), ((1, 2),) * 4)])
    cluster.apply([TopicCreated("b", bytes([2] * 16).hex(), ((2, 1),) * 4)])
    carry_out(cluster, reassignment.balance_plan(cluster.image))
    for topic in cluster.image.topics.values():
        assert Counter(state.replicas[0] for state in topic.partitions) == {1: 2, 2: 2}


def test_what_nobody_leads_is_not_balanced() -> None:
    """There is nobody to copy it from: the move would never end."""
    cluster = SmallCluster(1)
    cluster.apply(decisions.create_topic(cluster.image, [], "t", TOPIC_ID, 4, 1, {}, {}))
    cluster.add(2)
    cluster.image.topics["t"].partitions[0].leader = NO_LEADER
    plan = reassignment.balance_plan(cluster.image)
    assert 0 not in plan["t"]
    assert len(plan["t"]) == 2


@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_another_number_of_replicas_keeps_those_there_are(
    count: int, factor: int, wanted: int, is_racked: bool
) -> None:
    racks = {broker: "ab"[broker % 2] for broker in range(1, 5)} if is_racked else {}
    cluster = SmallCluster(4, racks=racks)
    cluster.apply(decisions.create_topic(cluster.image, [], "t", TOPIC_ID, count, factor, {}, {}))
    before = {state.index: state.replicas for _, state in cluster.image.all_partitions()}
    plan = reassignment.factor_plan(cluster.image, wanted)
    assert set(plan.get("t", {})) == (set(before) if wanted != factor else set())
    for index, replicas in plan.get("t", {}).items():
        kept = set(replicas) & set(before[index])
        assert len(replicas) == len(set(replicas)) == wanted
        assert len(kept) == min(wanted, factor)
        if wanted < factor:
            assert replicas == before[index][:wanted]
        elif is_racked and wanted > 1:
            assert len({racks[replica] for replica in replicas}) == 2
    carry_out(cluster, plan)
    leaders, replicas_of = load(cluster)
    if wanted > factor:
        assert max(leaders.values()) - min(leaders[broker] for broker in range(1, 5)) <= 1
        assert max(replicas_of.values()) - min(replicas_of[broker] for broker in range(1, 5)) <= 2
    assert reassignment.factor_plan(cluster.image, wanted) == {}


def test_from_one_broker_to_three_everybody_leads() -> None:
    cluster = SmallCluster(1)
    cluster.apply(decisions.create_topic(cluster.image, [], "t", TOPIC_ID, 6, 1, {}, {}))
    for broker in (2, 3):
        cluster.add(broker)
    carry_out(cluster, reassignment.factor_plan(cluster.image, 3, ["t"]))
    leaders, replicas_of = load(cluster)
    assert leaders == {1: 2, 2: 2, 3: 2}
    assert replicas_of == {1: 6, 2: 6, 3: 6}


def test_of_too_many_those_in_sync_stay(cluster: SmallCluster) -> None:
    cluster.partition.isr = (1, 3)
    assert reassignment.factor_plan(cluster.image, 2) == {"t": {0: (1, 3)}}
    cluster.fence(5)
    cluster.fence(6)
    with pytest.raises(
        ApiError, match=r"t-0 cannot have 5 replicas: 4 broker\(s\) are running, add or start others first"
    ) as told:
        reassignment.factor_plan(cluster.image, 5)
    assert told.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassignment.factor_plan(cluster.image, 5, []) == {}
