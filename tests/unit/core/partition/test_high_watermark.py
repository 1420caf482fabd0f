"""The rule of the high watermark, over what replicas hold."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest

from penstock.core.metadata.image import PartitionState
from penstock.core.partition.follower import ANY_BROKER_EPOCH, Follower
from penstock.core.partition.high_watermark import (
    claimed_offset,
    held_by_all,
    is_under_min_isr,
    joining_offset,
    maximal_isr,
    of_follower,
    promised_offset,
    within_log,
)

LAG_MS = 1000
NOW_MS = 100_000
END = 10
BROKER_EPOCH = 7
STATE = PartitionState(0, replicas=(1, 2, 3), leader=1, isr=(1, 2, 3))


@dataclass
class Known:
    lag_time_max_ms: int = LAG_MS
    living: frozenset[int] = frozenset({1, 2, 3})
    asked: list[int] = field(default_factory=list)

    def own_broker_epoch(self) -> int:
        return BROKER_EPOCH

    def broker_epoch_of(self, broker_id: int) -> int | None:
        return BROKER_EPOCH if broker_id in self.living else None


def follower(broker_id: int, held: int, caught_up_ms: int = 0) -> Follower:
    one = Follower(broker_id, caught_up_ms)
    one.broker_epoch, one.end_offset = BROKER_EPOCH, held
    return one


def held(claimed: int, counted: tuple[int, ...], *followers: Follower, brokers: Known | None = None) -> int:
    return held_by_all(claimed, counted, followers, END, NOW_MS, brokers or Known())


@pytest.mark.parametrize(
    ("isr", "pending"), [*itertools.product([(1,), (1, 2), (1, 2, 3)], [None, (1,), (1, 2), (1, 3)])]
)
def test_no_counted_replica_lacks_what_lies_below_and_one_lacks_what_comes_next(
    isr: tuple[int, ...], pending: tuple[int, ...] | None
) -> None:
    counted = maximal_isr(isr, pending)
    assert {*counted} == {*isr, *(pending or ())}
    for own, second, third in itertools.product(range(4), repeat=3):
        ends = {1: own, 2: second, 3: third}
        mark = held(own, counted, follower(2, second), follower(3, third))
        assert mark == min(ends[one] for one in counted), ends


def test_one_that_is_about_to_join_counts() -> None:
    keeps_pace = follower(2, 8, NOW_MS - LAG_MS)
    assert held(END, (1,), keeps_pace) == 8
    assert held(END, (1,), follower(2, 8, NOW_MS - LAG_MS - 1)) == END, "it is late"
    assert held(END, (1,), keeps_pace, brokers=Known(living=frozenset({1}))) == END, "it is fenced"
    keeps_pace.broker_epoch = BROKER_EPOCH - 1
    assert held(END, (1,), keeps_pace) == END, "it fetched in another life"
    keeps_pace.broker_epoch = ANY_BROKER_EPOCH
    assert held(END, (1,), keeps_pace) == 8


def test_one_that_disowned_holds_nothing_back_unless_it_is_in_sync() -> None:
    full = follower(2, 8, NOW_MS)
    full.disown(6, END, NOW_MS)
    assert held(END, (1,), full) == END
    assert held(END, (1, 2), full) == 6


@pytest.mark.parametrize("isr", [(), (1,), (1, 2), (1, 2, 3)])
@pytest.mark.parametrize("configured", range(1, 6))
def test_the_minimum_of_in_sync_replicas(isr: tuple[int, ...], configured: int) -> None:
    state = replace(STATE, isr=isr)
    assert is_under_min_isr(state, configured) == (len(isr) < min(configured, 3))


def test_the_minimum_is_within_what_a_reassignment_leaves() -> None:
    moving = replace(STATE, isr=(1,), adding=(3,), removing=(2,))
    assert is_under_min_isr(moving, 3)
    assert not is_under_min_isr(replace(moving, adding=(2, 3), removing=()), 3), "there was one replica before"


def test_what_a_replica_claims_and_promises() -> None:
    assert claimed_offset(3, 8, is_durable=True) == 3
    assert claimed_offset(3, 8, is_durable=False) == 8
    assert promised_offset(3, 8, 0, is_durable=False) == 8
    assert promised_offset(3, 8, 0, is_durable=True) == 3
    assert promised_offset(3, 8, 5, is_durable=True) == 5, "written before the topic became durable"
    assert promised_offset(3, 8, 9, is_durable=True) == 8, "cut since"


def test_who_joins_has_all_that_was_committed_before() -> None:
    assert joining_offset(5, 9) == 9
    assert joining_offset(9, 5) == 9


def test_the_mark_of_a_follower_only_grows_and_ends_with_its_log() -> None:
    assert of_follower(4, 9, 6) == 6
    assert of_follower(4, 5, 6) == 5
    assert of_follower(4, 2, 6) == 4


def test_a_mark_that_was_known_lies_within_the_log() -> None:
    assert [within_log(known, 3, 7) for known in (1, 3, 5, 7, 9)] == [3, 3, 5, 7, 7]
