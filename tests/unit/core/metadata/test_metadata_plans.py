"""Plans of what to move: off a broker, evenly over all, to another number of replicas."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_cluster import TOPIC_ID, SmallCluster

from penstock.core.metadata import decisions, partitions, plans, reassignment
from penstock.core.metadata.image import NO_LEADER
from penstock.core.metadata.records import TopicCreated
from penstock.core.metadata.requests import IsrChange, ReplicaEpoch
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic


def carry_out(cluster: SmallCluster, plan: plans.Plan) -> None:
    """To the end, by the word of leaders whose followers that are up have caught up."""
    for name, moves in plan.items():
        topic = cluster.image.topics[name]
        for index, replicas in moves.items():
            cluster.apply(reassignment.begin(cluster.image, name, index, replicas, cluster))
            state = topic.partitions[index]
            if state.is_reassigning:
                up = [replica for replica in state.replicas if not cluster.image.brokers[replica].is_fenced]
                cluster.apply(
                    partitions.alter_partition(
                        cluster.image,
                        state.leader,
                        cluster.image.brokers[state.leader].epoch,
                        IsrChange(
                            topic.topic_id,
                            index,
                            state.leader_epoch,
                            state.partition_epoch,
                            tuple(ReplicaEpoch(replica, -1) for replica in up),
                        ),
                        cluster,
                    )
                )
            assert (topic.partitions[index].replicas, topic.partitions[index].is_reassigning) == (replicas, False)


def load(cluster: SmallCluster) -> tuple[Counter[int], Counter[int]]:
    states = [state for _, state in cluster.image.all_partitions()]
    return Counter(state.replicas[0] for state in states), Counter(each for state in states for each in state.replicas)


@given(st.integers(1, 12), st.integers(1, 3), st.booleans())
def test_a_drained_broker_has_nothing_and_the_others_have_it_evenly(count: int, factor: int, is_racked: bool) -> None:
    racks = {broker: "abc"[broker % 3] for broker in range(1, 7)} if is_racked else {}
    cluster = SmallCluster(6, racks=racks)
    cluster.apply(decisions.create_topic(cluster.image, [], NewTopic("t", count, factor), TOPIC_ID))
    before = {state.index: state.replicas for _, state in cluster.image.all_partitions()}
    plan = plans.drain_plan(cluster.image, 1)
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
        plans.drain_plan(cluster.image, 1)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    cluster.add(4)
    assert plans.drain_plan(cluster.image, 1) == {"t": {0: (4, 2, 3)}}
    cluster.fence(4)
    with pytest.raises(ApiError, match="add a broker first"):
        plans.drain_plan(cluster.image, 1)


@given(st.integers(1, 12), st.integers(1, 3))
def test_a_new_broker_gets_its_share_and_no_more_moves_than_that(count: int, factor: int) -> None:
    cluster = SmallCluster(3)
    cluster.apply(decisions.create_topic(cluster.image, [], NewTopic("t", count, factor), TOPIC_ID))
    cluster.add(4)
    before = {state.index: state.replicas for _, state in cluster.image.all_partitions()}
    plan = plans.balance_plan(cluster.image)
    moved = sum(len(set(replicas) - set(before[index])) for index, replicas in plan.get("t", {}).items())
    carry_out(cluster, plan)
    leaders, replicas_of = load(cluster)
    assert max(replicas_of.values()) - min(replicas_of[broker] for broker in range(1, 5)) <= 1
    assert max(leaders.values()) - min(leaders[broker] for broker in range(1, 5)) <= 1
    assert moved == replicas_of[4]
    assert plans.balance_plan(cluster.image) == {}


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=4), st.randoms())
def test_each_topic_is_led_evenly_as_well(topics: list[tuple[int, int]], random: Random) -> None:
    cluster = SmallCluster(3)
    for number, (count, factor) in enumerate(topics):
        lists = [tuple(random.sample((1, 2, 3), factor)) for _ in range(count)]
        cluster.apply([TopicCreated(f"t{number}", bytes([number] * 16).hex(), tuple(lists))])
    carry_out(cluster, plans.balance_plan(cluster.image))
    leaders, replicas_of = load(cluster)
    assert max(replicas_of.values()) - min(replicas_of[broker] for broker in (1, 2, 3)) <= 1
    assert plans.balance_plan(cluster.image) == {}
    if all(factor == 3 for _, factor in topics):  # else somebody may not be asked
        assert max(leaders.values()) - min(leaders[broker] for broker in (1, 2, 3)) <= 1
        for topic in cluster.image.topics.values():
            own = Counter(state.replicas[0] for state in topic.partitions)
            assert max(own.values()) - min(own[broker] for broker in (1, 2, 3)) <= 1, topic.name


def test_a_topic_that_one_broker_leads_is_spread_although_all_lead_as_much() -> None:
    cluster = SmallCluster(2)
    cluster.apply([TopicCreated("a", bytes([1] * 16).hex(), ((1, 2),) * 4)])
    cluster.apply([TopicCreated("b", bytes([2] * 16).hex(), ((2, 1),) * 4)])
    carry_out(cluster, plans.balance_plan(cluster.image))
    for topic in cluster.image.topics.values():
        assert Counter(state.replicas[0] for state in topic.partitions) == {1: 2, 2: 2}


def test_what_waits_for_a_broker_that_is_down_is_not_balanced() -> None:
    """The move would not end before that broker is back."""
    cluster = SmallCluster(3)
    cluster.apply(decisions.create_topic(cluster.image, [], NewTopic("t", 4, 3), TOPIC_ID))
    cluster.fence(3)
    cluster.add(4)
    assert plans.balance_plan(cluster.image) == {}
    cluster.add(3)
    assert len(plans.balance_plan(cluster.image)["t"]) >= 3


@given(st.lists(st.integers(1, 3), min_size=1, max_size=30), st.integers(1, 3), st.randoms())
def test_no_more_moves_than_it_takes(topics: list[int], added: int, random: Random) -> None:
    """Without racks, each that has too many gives as many as are too many, and no more."""
    cluster = SmallCluster(3)
    for number, factor in enumerate(topics):
        replicas = tuple(random.sample((1, 2, 3), factor))
        cluster.apply([TopicCreated(f"t{number}", bytes([number] * 16).hex(), (replicas,))])
    for broker in range(4, 4 + added):
        cluster.add(broker)
    _, before = load(cluster)
    plan = plans.balance_plan(cluster.image)
    moved = sum(
        len(set(replicas) - set(cluster.image.topics[name].partitions[index].replicas))
        for name, moves in plan.items()
        for index, replicas in moves.items()
    )
    held = sorted((before[broker] for broker in range(1, 4 + added)), reverse=True)
    share, rest = divmod(sum(held), len(held))
    assert moved == sum(max(0, count - share - (at < rest)) for at, count in enumerate(held))


def test_what_nobody_leads_is_not_balanced() -> None:
    """There is nobody to copy it from: the move would never end."""
    cluster = SmallCluster(1)
    cluster.apply(decisions.create_topic(cluster.image, [], NewTopic("t", 4, 1), TOPIC_ID))
    cluster.add(2)
    cluster.image.topics["t"].partitions[0] = replace(cluster.partition, leader=NO_LEADER)
    plan = plans.balance_plan(cluster.image)
    assert 0 not in plan["t"]
    assert len(plan["t"]) == 2


@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_another_number_of_replicas_keeps_those_there_are(
    count: int, factor: int, wanted: int, is_racked: bool
) -> None:
    racks = {broker: "ab"[broker % 2] for broker in range(1, 5)} if is_racked else {}
    cluster = SmallCluster(4, racks=racks)
    cluster.apply(decisions.create_topic(cluster.image, [], NewTopic("t", count, factor), TOPIC_ID))
    before = {state.index: state.replicas for _, state in cluster.image.all_partitions()}
    plan = plans.factor_plan(cluster.image, wanted)
    assert set(plan.get("t", {})) == (set(before) if wanted != factor else set())
    for index, replicas in plan.get("t", {}).items():
        kept = set(replicas) & set(before[index])
        assert len(replicas) == len(set(replicas)) == wanted
        assert len(kept) == min(wanted, factor)
        if wanted < factor and not is_racked:
            assert replicas == before[index][:wanted]
        elif is_racked and wanted > 1:
            assert len({racks[replica] for replica in replicas}) == 2
    carry_out(cluster, plan)
    leaders, replicas_of = load(cluster)
    if wanted > factor:
        assert max(leaders.values()) - min(leaders[broker] for broker in range(1, 5)) <= 1
        assert max(replicas_of.values()) - min(replicas_of[broker] for broker in range(1, 5)) <= 2
    assert plans.factor_plan(cluster.image, wanted) == {}


def test_from_one_broker_to_three_everybody_leads() -> None:
    cluster = SmallCluster(1)
    cluster.apply(decisions.create_topic(cluster.image, [], NewTopic("t", 6, 1), TOPIC_ID))
    for broker in (2, 3):
        cluster.add(broker)
    carry_out(cluster, plans.factor_plan(cluster.image, 3, ["t"]))
    leaders, replicas_of = load(cluster)
    assert leaders == {1: 2, 2: 2, 3: 2}
    assert replicas_of == {1: 6, 2: 6, 3: 6}


@pytest.mark.parametrize(
    ("isr", "elr", "fenced", "factor", "kept"),
    [
        ((1, 2, 3), (), (), 2, (1, 2)),
        ((1, 3), (), (), 2, (1, 3)),
        ((1,), (), (2,), 2, (1, 3)),
        ((3,), (2,), (), 2, (2, 3)),
        ((), (2, 3), (2, 3), 1, (2,)),
    ],
    ids=["the first", "in sync", "running", "eligible", "eligible before running"],
)
def test_of_too_many_those_stay_that_are_worth_most(
    isr: tuple[int, ...], elr: tuple[int, ...], fenced: tuple[int, ...], factor: int, kept: tuple[int, ...]
) -> None:
    cluster = SmallCluster(4)
    cluster.create([1, 2, 3])
    cluster.fence(*fenced)
    cluster.image.topics["t"].partitions[0] = replace(cluster.partition, isr=isr, elr=elr)
    assert plans.factor_plan(cluster.image, factor) == {"t": {0: kept}}


def test_of_too_many_no_rack_is_given_up() -> None:
    cluster = SmallCluster(3, racks={1: "a", 2: "b", 3: "a"})
    cluster.create([3, 1, 2])
    assert plans.factor_plan(cluster.image, 2) == {"t": {0: (3, 2)}}


def test_more_replicas_than_running_brokers_are_refused() -> None:
    cluster = SmallCluster(6)
    cluster.create([1, 2, 3])
    cluster.fence(5, 6)
    with pytest.raises(
        ApiError, match=r"t-0 cannot have 5 replicas: 4 broker\(s\) are running, add or start more brokers first"
    ) as told:
        plans.factor_plan(cluster.image, 5)
    assert told.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert plans.factor_plan(cluster.image, 5, []) == {}
