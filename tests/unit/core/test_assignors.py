"""Server-side assignors: complete, balanced and sticky, whatever the subscriptions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.group.assignors import ASSIGNORS, Assignment, MemberSpec, assign_range, assign_uniform

TOPICS = [bytes([letter]) * 16 for letter in b"abcde"]


def loads(result: dict[str, Assignment]) -> list[int]:
    return [sum(map(len, assignment.values())) for assignment in result.values()]


def owners(result: dict[str, Assignment]) -> dict[tuple[bytes, int], str]:
    found: dict[tuple[bytes, int], str] = {}
    for member, assignment in result.items():
        for topic, partitions in assignment.items():
            assert partitions, "a topic with an empty set"
            for partition in partitions:
                assert (topic, partition) not in found, "two owners"
                found[topic, partition] = member
    return found


def check_complete(result: dict[str, Assignment], members: dict[str, MemberSpec], counts: dict[bytes, int]) -> None:
    found = owners(result)
    subscribed = {topic for spec in members.values() for topic in spec.topics}
    assert set(found) == {(topic, index) for topic in subscribed for index in range(counts[topic])}
    for (topic, _), member in found.items():
        assert topic in members[member].topics
    assert set(result) == set(members)


def with_targets(members: dict[str, MemberSpec], result: dict[str, Assignment]) -> dict[str, MemberSpec]:
    return {name: MemberSpec(spec.topics, result.get(name, {}), spec.instance_id) for name, spec in members.items()}


member_names = st.lists(st.integers(0, 40).map(lambda index: f"m{index:02}"), min_size=1, max_size=12, unique=True)
partition_counts = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in TOPICS})


@st.composite
def groups(draw: st.DrawFn, equal: bool) -> tuple[dict[str, MemberSpec], dict[bytes, int]]:
    """Members with arbitrary, even contradictory, targets from before."""
    names, counts = draw(member_names), draw(partition_counts)
    shared = frozenset(draw(st.sets(st.sampled_from(TOPICS), min_size=1)))
    members = {}
    for name in names:
        topics = shared if equal else frozenset(draw(st.sets(st.sampled_from(TOPICS))))
        target = draw(st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 11), min_size=1)))
        members[name] = MemberSpec(topics, target, draw(st.sampled_from([None, "static-" + name])))
    return members, counts


@given(groups(equal=False), st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_has_exactly_one_owner_that_subscribes_to_it(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]], name: str
) -> None:
    members, counts = group
    check_complete(ASSIGNORS[name](members, counts), members, counts)


@given(groups(equal=True))
def test_uniform_is_balanced_within_one_and_moves_as_little_as_that_allows(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, counts = group
    result = assign_uniform(members, counts)
    check_complete(result, members, counts)
    assert max(loads(result)) - min(loads(result)) <= 1

    # From a valid assignment: the most that can stay is what fits under the quotas.
    names = sorted(members)
    joined = {**with_targets(members, result), "newcomer": MemberSpec(members[names[0]].topics)}
    after = assign_uniform(joined, counts)
    total = len(owners(after))
    quota, extra = divmod(total, len(joined))
    most = 0
    for load in sorted(loads(result), reverse=True):
        most += min(load, quota + (extra > 0 and load > quota))
        extra -= extra > 0 and load > quota
    before = owners(result)
    assert sum(before[key] == member for key, member in owners(after).items()) == most


@given(groups(equal=True), st.data())
def test_uniform_moves_nothing_but_what_a_lost_member_had_until_balance_needs_it(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]], data: st.DataObject
) -> None:
    members, counts = group
    if len(members) < 2:
        return
    result = assign_uniform(members, counts)
    lost = data.draw(st.sampled_from(sorted(members)))
    rest = {name: spec for name, spec in with_targets(members, result).items() if name != lost}
    after = assign_uniform(rest, counts)
    check_complete(after, rest, counts)
    # Nobody has more than before by less than the quota, so survivors only ever gain.
    for name in rest:
        kept = {(t, p) for t, ps in result[name].items() for p in ps}
        assert kept <= {(t, p) for t, ps in after[name].items() for p in ps}


@given(groups(equal=False), st.sampled_from(sorted(ASSIGNORS)))
def test_what_an_assignor_made_it_leaves_alone(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]], name: str
) -> None:
    members, counts = group
    result = ASSIGNORS[name](members, counts)
    assert ASSIGNORS[name](with_targets(members, result), counts) == result


@given(groups(equal=False))
@settings(max_examples=200)
def test_uniform_with_different_subscriptions_leaves_no_single_move_that_would_improve_balance(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, counts = group
    result = assign_uniform(members, counts)
    load = dict(zip(result, loads(result), strict=True))
    for (topic, _), owner in owners(result).items():
        for member, spec in members.items():
            if topic in spec.topics:
                assert load[owner] - load[member] <= 1


def test_range_gives_contiguous_pieces_and_cuts_like_topics_alike() -> None:
    a, b = TOPICS[:2]
    members = {name: MemberSpec(frozenset({a, b})) for name in ("c", "a", "b")}
    assert assign_range(members, {a: 7, b: 7}) == {
        "a": {a: frozenset({0, 1, 2}), b: frozenset({0, 1, 2})},
        "b": {a: frozenset({3, 4}), b: frozenset({3, 4})},
        "c": {a: frozenset({5, 6}), b: frozenset({5, 6})},
    }


def test_range_gives_a_static_member_its_piece_whatever_its_member_id() -> None:
    topic = TOPICS[0]
    first = {"x": MemberSpec(frozenset({topic}), {}, "one"), "m": MemberSpec(frozenset({topic}), {}, "two")}
    second = {"b": MemberSpec(frozenset({topic}), {}, "one"), "m": MemberSpec(frozenset({topic}), {}, "two")}
    assert assign_range(first, {topic: 4})["x"] == assign_range(second, {topic: 4})["b"] == {topic: frozenset({0, 1})}


def test_uniform_spreads_the_partitions_of_each_topic() -> None:
    a, b = TOPICS[:2]
    members = {name: MemberSpec(frozenset({a, b})) for name in "xy"}
    result = assign_uniform(members, {a: 4, b: 4})
    assert all({len(held[a]), len(held[b])} == {2} for held in result.values())


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_nobody_and_nothing(name: str) -> None:
    assert ASSIGNORS[name]({}, {}) == {}
    assert ASSIGNORS[name]({"m": MemberSpec(frozenset())}, {}) == {"m": {}}
