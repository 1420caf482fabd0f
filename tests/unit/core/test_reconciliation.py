"""One member's steps towards its target: every state with every kind of fact."""

from __future__ import annotations

import itertools

import pytest

from penstock.core.group.assignors import Assignment
from penstock.core.group.consumer_records import MemberAssignment, MemberState
from penstock.core.group.reconciliation import Facts, is_subset, reconcile
from penstock.model.errors import ApiError, ErrorCode

T, U = b"t" * 16, b"u" * 16
STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
)


def held(*partitions: int, topic: bytes = T) -> Assignment:
    return {topic: frozenset(partitions)} if partitions else {}


def facts(
    target: Assignment,
    owned: Assignment | None = None,
    *,
    epoch: int = 2,
    taken: tuple[int, ...] = (),
    subscribed: tuple[bytes, ...] = (T,),
    changed: bool = False,
) -> Facts:
    return Facts(epoch, target, frozenset(subscribed), owned, lambda topic, index: index in taken, changed)


def step(member: MemberAssignment, told: Facts) -> tuple[MemberState, int, Assignment, Assignment]:
    after = reconcile(member, told)
    return after.state, after.epoch, after.assigned, after.pending_revocation


AT_1 = MemberAssignment(1, 0, STABLE, held(0, 1))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (facts(held(0, 1)), (STABLE, 2, held(0, 1), {})),
        (facts(held(0, 1, 2)), (STABLE, 2, held(0, 1, 2), {})),
        (facts(held(0, 1, 2), taken=(2,)), (UNRELEASED, 2, held(0, 1), {})),
        (facts(held(0, 1, 2, 3), taken=(2,)), (UNRELEASED, 2, held(0, 1, 3), {})),
        (facts(held(0)), (UNREVOKED, 1, held(0), held(1))),
        (facts(held(0), held(0, 1)), (UNREVOKED, 1, held(0), held(1))),
        (facts(held(0, 2), held(0)), (STABLE, 2, held(0, 2), {})),
        (facts(held(2), None), (UNREVOKED, 1, {}, held(0, 1))),
        (facts(held(0, 1), subscribed=(U,)), (UNREVOKED, 1, {}, held(0, 1))),
        (facts(held(0, 1), {}, subscribed=(U,)), (STABLE, 2, {}, {})),
    ],
)
def test_from_stable(told: Facts, expected: tuple[MemberState, int, Assignment, Assignment]) -> None:
    assert step(AT_1, told) == expected


def test_stable_at_the_epoch_of_the_target_is_the_end() -> None:
    assert reconcile(AT_1, facts(held(5), epoch=1)) is AT_1
    assert reconcile(AT_1, facts(held(5), epoch=1, changed=True)) is AT_1


def test_stable_gives_up_at_once_what_it_no_longer_subscribes_to() -> None:
    both = MemberAssignment(1, 0, STABLE, {**held(0), **held(3, topic=U)})
    less = facts({}, epoch=1, subscribed=(T,), changed=True)
    assert step(both, less) == (UNREVOKED, 1, held(0), held(3, topic=U))
    gone = facts({}, held(0), epoch=1, subscribed=(T,), changed=True)
    assert step(both, gone) == (STABLE, 1, held(0), {})


REVOKING = MemberAssignment(1, 0, UNREVOKED, {**held(0), **held(9, topic=U)}, held(1))


def test_from_unrevoked() -> None:
    assert reconcile(REVOKING, facts(held(0))) is REVOKING, "it did not say what it owns"
    assert reconcile(REVOKING, facts(held(0), held(0, 1), subscribed=(T, U))) is REVOKING
    target = {**held(0, 1), **held(9, topic=U)}
    owned = {**held(0), **held(9, topic=U)}
    assert step(REVOKING, facts(target, owned, subscribed=(T, U))) == (STABLE, 2, target, {}), "given back"
    changed = facts(held(0), held(0, 1), changed=True)
    pending = {**held(1), **held(9, topic=U)}
    assert step(REVOKING, changed) == (UNREVOKED, 1, held(0), pending)


WAITING = MemberAssignment(2, 1, UNRELEASED, held(0), since={T: {0: 1}})


def test_from_unreleased() -> None:
    assert reconcile(WAITING, facts(held(0, 1), taken=(1,))) is WAITING
    assert step(WAITING, facts(held(0, 1))) == (STABLE, 2, held(0, 1), {})
    assert step(WAITING, facts(held(1), held(0), epoch=3)) == (UNREVOKED, 2, {}, held(0))


def test_an_unknown_state_is_left_only_without_partitions() -> None:
    lost = MemberAssignment(1, 0, MemberState.UNKNOWN, held(0))
    for owned in (None, held(0)):
        with pytest.raises(ApiError) as caught:
            reconcile(lost, facts(held(0), owned))
        assert caught.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    assert step(lost, facts(held(0), {})) == (STABLE, 2, held(0), {})


def test_the_previous_epoch_is_the_one_that_was_left() -> None:
    after = reconcile(AT_1, facts(held(0, 1), epoch=7))
    assert (after.epoch, after.previous_epoch) == (7, 1)
    waiting = reconcile(after, facts(held(0), epoch=8))
    assert (waiting.epoch, waiting.previous_epoch) == (7, 1)


def test_the_whole_product_of_states_and_facts() -> None:
    """Nobody gets what was not free, nor is to give up what it did not have; the same facts again change nothing."""
    options = [(), (0,), (1,), (0, 1)]
    for state, assigned, pending, target, owned, taken, changed in itertools.product(
        MemberState, options, [(), (2,)], options, [None, *options], options, (False, True)
    ):
        member = MemberAssignment(1, 0, state, held(*assigned), held(*pending))
        told = facts(
            held(*target),
            None if owned is None else held(*owned),
            taken=tuple(set(taken) - set(assigned)),
            changed=changed,
        )
        try:
            after = reconcile(member, told)
        except ApiError:
            assert state is MemberState.UNKNOWN
            continue
        had = {*assigned, *pending}
        now = after.assigned.get(T, frozenset())
        assert now - had <= set(target) - (set(taken) - set(assigned))
        assert after.pending_revocation.get(T, frozenset()) <= had
        assert now.isdisjoint(after.pending_revocation.get(T, frozenset()))
        assert after.epoch in (1, 2)
        if after.state is STABLE and after.epoch == 2:
            assert now == set(target)
        again = reconcile(after, told._replace(subscription_changed=False))
        assert again is after or again.state is not after.state


def test_subsets() -> None:
    assert is_subset({}, {})
    assert is_subset(held(0), held(0, 1))
    assert not is_subset(held(2), held(0, 1))
    assert not is_subset(None, held(0))
    assert not is_subset(held(0, topic=U), held(0))


def test_a_partition_keeps_the_epoch_it_came_with() -> None:
    member = reconcile(AT_1._replace(since={T: {0: 1, 1: 1}}), facts(held(0, 1, 2)))
    assert member.since == {T: {0: 1, 1: 1, 2: 2}}
    member = reconcile(member, facts(held(2), epoch=3))
    assert (member.state, member.since) == (UNREVOKED, {T: {0: 1, 1: 1, 2: 2}})
    # It gives up only one of the two, and the other is to be its own again: a new beginning.
    member = reconcile(member, facts(held(1, 2), {}, epoch=4))
    assert (member.epoch, member.since) == (4, {T: {1: 4, 2: 2}})
    member = reconcile(member, facts(held(1), held(1, 2), epoch=4, subscribed=(U,), changed=True))
    assert (member.state, member.since) == (UNREVOKED, {T: {1: 4, 2: 2}})
