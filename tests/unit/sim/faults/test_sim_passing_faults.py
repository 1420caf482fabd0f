"""Faults of disks that pass: brokers go on afterwards, or say that they want to be restarted."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from penstock.sim.faults.plan import LATER_KINDS, PASSING, POWER, Fault, widened
from penstock.sim.plan import Plan, draw
from penstock.sim.scenario import play


def plan_of(kind: str, seed: int) -> Plan:
    plan = draw(seed, nodes=3)
    faults = [Fault(number, kind, number + 0.5, 0.4) for number in range(3)]
    return replace(plan, faults=tuple(faults), seconds=3.0, has_tuner=False, ending="")


@pytest.mark.parametrize("kind", dict.fromkeys(PASSING))
def test_a_disk_that_fails_for_a_while_costs_nothing_that_was_promised(kind: str) -> None:
    verdict = play(plan_of(kind, 1))
    assert verdict.is_good, verdict.details
    assert verdict.faults[kind]
    assert verdict.statistics["acknowledged"]


def test_later_kinds_take_the_place_of_others_in_some_histories_and_change_nothing_else() -> None:
    faults = tuple(Fault(number, "kill", number, 0.3) for number in range(4))
    changed = [widened(faults, Random(seed), is_power_fair=True) for seed in range(90)]
    assert faults in changed
    others = [plan for plan in changed if plan != faults]
    assert others
    for plan in others:
        assert [replace(fault, kind="kill") for fault in plan] == list(faults)
        assert 1 <= len({fault.kind for fault in plan} & set(LATER_KINDS)) <= 2
    assert {fault.kind for plan in others for fault in plan} == {"kill", *LATER_KINDS}
    assert widened(faults, Random(1), is_power_fair=True, without=LATER_KINDS) == faults


def test_later_kinds_cut_no_power_where_that_is_not_fair() -> None:
    faults = tuple(Fault(number, "kill", number, 0.3) for number in range(4))
    kinds = {fault.kind for seed in range(90) for fault in widened(faults, Random(seed), is_power_fair=False)}
    assert not kinds & set(POWER)
    assert "kill inside" in kinds
