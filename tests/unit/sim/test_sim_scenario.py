"""Histories with a single broker: quick, repeatable, and a planted bug does not go unnoticed."""

from __future__ import annotations

import os
from random import Random

import pytest

from penstock.sim.fault_plan import KINDS, POWER, draw_plan
from penstock.sim.plan import ENDINGS, draw
from penstock.sim.scenario import play
from penstock.sim.seeds import Request, play_one

SEEDS = range(*map(int, os.environ.get("PENSTOCK_SIM_SEEDS", "0:8").split(":")))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_single_broker_keeps_its_promises(seed: int) -> None:
    verdict = play(draw(seed, nodes=1))
    assert verdict.is_good, verdict.details
    assert verdict.statistics["acknowledged"]
    assert verdict.statistics["read"]


def test_the_same_seed_is_the_same_history() -> None:
    first, second, other = (play_one(Request(seed, nodes=1)) for seed in (5, 5, 6))
    assert first.digest == second.digest != other.digest
    assert first.statistics == second.statistics


def test_a_plan_is_the_seeds_and_a_fault_can_be_left_out_of_it() -> None:
    whole = draw(11)
    assert whole == draw(11) != draw(12)
    assert [fault.number for fault in whole.faults] == list(range(len(whole.faults)))
    some = draw(11, only=(0, 2))
    assert some.faults == (whole.faults[0], whole.faults[2])
    assert some.topics == whole.topics


def test_power_fails_only_where_it_is_fair() -> None:
    plans = [draw(seed) for seed in range(300)]
    kinds = {fault.kind: None for plan in plans for fault in plan.faults}
    assert sorted(kinds) == sorted(KINDS)
    assert {plan.ending for plan in plans} == set(ENDINGS)
    relaxed = [plan for plan in plans if not plan.is_durable]
    assert relaxed
    assert not [plan for plan in relaxed if plan.ending == "power failure"]
    assert not [fault for plan in relaxed for fault in plan.faults if fault.kind in POWER]


def test_kinds_can_be_left_out() -> None:
    plan = draw_plan(Random(1), 60, is_power_fair=True, without=[kind for kind in KINDS if kind != "kill"][:-1])
    assert {fault.kind for fault in plan.faults} <= {"kill", KINDS[-1]}


def test_a_flusher_that_lies_is_found_out() -> None:
    assert any(not play_one(Request(seed, nodes=1, bug="syncs-nothing")).is_good for seed in range(12))


def test_a_failure_is_told_with_the_command_that_shows_it() -> None:
    request = Request(7, nodes=3, only=(1, 4), bug="votes-twice", keep_trace=True)
    assert request.command == "penstock sim --seed 7 --nodes 3 --faults 1,4 --bug votes-twice --trace"
