"""Histories with a single broker: quick, repeatable, and a planted bug does not go unnoticed."""

from __future__ import annotations

import os
from random import Random

import pytest

from penstock.sim.cluster import SimCluster
from penstock.sim.faults.plan import ALL_KINDS, KINDS, LONE_CRASH, POWER, draw_plan
from penstock.sim.machine.world import SimWorld
from penstock.sim.plan import ENDINGS, draw
from penstock.sim.scenario import play
from penstock.sim.seeds import HistoryRequest, play_one

SEEDS = range(*map(int, os.environ.get("PENSTOCK_SIM_SEEDS", "0:8").split(":")))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_single_broker_keeps_its_promises(seed: int) -> None:
    verdict = play(draw(seed, nodes=1))
    assert verdict.is_good, verdict.details
    assert verdict.statistics["acknowledged"]
    assert verdict.statistics["read"]


def test_the_same_seed_is_the_same_history() -> None:
    first, second, other = (play_one(HistoryRequest(seed, nodes=1)) for seed in (5, 5, 6))
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
    assert sorted(kinds) == sorted(ALL_KINDS)
    assert {plan.ending for plan in plans} == {"", *ENDINGS}
    relaxed = [plan for plan in plans if not plan.is_durable]
    assert relaxed
    assert not [plan for plan in relaxed if plan.ending == "power failure"]
    assert not [fault for plan in relaxed for fault in plan.faults if fault.kind in POWER]
    assert {plan.is_durable for plan in plans for fault in plan.faults if fault.kind == LONE_CRASH} == {False}


def test_busy_histories_have_all_at_once() -> None:
    """Power and network fail while logs are compacted and an operator is at work."""
    busy = [plan for plan in map(draw, range(300)) if {"torn", "isolate"} <= {fault.kind for fault in plan.faults}]
    assert sum(plan.is_compacting and plan.has_operator for plan in busy) >= len(busy) / 2 > 2


def test_a_lone_crash_loses_what_was_not_flushed_and_nothing_that_was_acknowledged() -> None:
    plans = [draw(seed) for seed in range(400)]
    seeds = [plan.seed for plan in plans if any(fault.kind == LONE_CRASH for fault in plan.faults)]
    verdicts = [play(draw(seed)) for seed in seeds[:6]]
    assert all(verdict.is_good for verdict in verdicts)
    assert sum(verdict.faults[LONE_CRASH] for verdict in verdicts) >= 3
    assert sum(verdict.probes["power lost with a tail not flushed"] for verdict in verdicts)


def test_a_restarted_node_goes_by_its_changed_file() -> None:
    with SimWorld(2) as world:
        cluster = SimCluster(world, 1)

        async def main() -> None:
            await cluster.bring_up(1)
            cluster.rewrite_file(1, {"log.index.interval.bytes": "100"})
            assert cluster.nodes[1].config.settings.value("log.index.interval.bytes") == 4096
            await cluster.stop(1)
            await cluster.bring_up(1)
            assert cluster.nodes[1].config.settings.value("log.index.interval.bytes") == 100

        world.run(main())


def test_kinds_can_be_left_out() -> None:
    plan = draw_plan(Random(1), 60, is_power_fair=True, without=[kind for kind in KINDS if kind != "kill"][:-1])
    assert {fault.kind for fault in plan.faults} <= {"kill", KINDS[-1]}


def test_a_flusher_that_lies_is_found_out() -> None:
    assert any(not play_one(HistoryRequest(seed, nodes=1, bug="syncs-nothing")).is_good for seed in range(12))


def test_a_failure_is_told_with_the_command_that_shows_it() -> None:
    request = HistoryRequest(7, nodes=3, only=(1, 4), bug="votes-twice", keep_trace=True)
    assert request.command == "penstock sim --seed 7 --nodes 3 --faults 1,4 --bug votes-twice --trace"
