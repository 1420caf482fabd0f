"""Ambushes: they wait for a moment of a broker, hit it then, and leave nothing behind."""

from __future__ import annotations

from dataclasses import replace

from penstock.replica.partition import Partition
from penstock.sim.faults.ambush import MOMENTS
from penstock.sim.faults.plan import AMBUSHES, POWER, Fault
from penstock.sim.plan import Plan, draw
from penstock.sim.scenario import play
from penstock.storage.log import Log


def plan_of(seed: int) -> Plan:
    plan = draw(seed, nodes=3)
    kinds = [kind for kind in AMBUSHES if plan.is_durable or kind not in POWER]
    faults = [Fault(number, kinds[number % len(kinds)], number + 0.5, 0.3) for number in range(int(plan.seconds))]
    return replace(plan, faults=tuple(faults))


def test_brokers_are_met_at_telling_moments() -> None:
    met = set()
    for seed in range(3):
        verdict = play(plan_of(seed), keep_trace=True)
        assert verdict.is_good, verdict.details
        met |= {what for what in MOMENTS if f"{what} on node-" in verdict.trace}
    assert met


def test_the_same_seed_is_the_same_history_and_nobody_listens_after_it() -> None:
    before = Partition._lead, Log.begin_flush
    assert play(plan_of(1)).digest == play(plan_of(1)).digest
    assert (Partition._lead, Log.begin_flush) == before
