"""Histories of a whole cluster: real nodes on a seed, faults, clients, and nothing promised is broken.

`make sim` runs thousands; here are a few. PENSTOCK_SIM_SEEDS=first:after names others.
"""

from __future__ import annotations

import os

import pytest

from penstock.sim.scenario import draw, play
from penstock.sim.seeds import Request, play_one

SEEDS = range(*map(int, os.environ.get("PENSTOCK_SIM_SEEDS", "0:24").split(":")))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_keeps_its_promises(seed: int) -> None:
    verdict = play(draw(seed))
    assert verdict.is_good, f"{verdict.details}\nshow it again: {Request(seed).command}"
    assert verdict.statistics["acknowledged"]


def test_the_same_seed_is_the_same_history_of_a_cluster() -> None:
    first, second, other = (play_one(Request(seed)) for seed in (0, 0, 1))
    assert first.digest == second.digest != other.digest
    assert first.statistics == second.statistics


def test_watching_changes_nothing() -> None:
    """The trace with all the logs of brokers, and the one without, are of the same history."""
    assert play_one(Request(4, keep_trace=True)).digest == play_one(Request(4)).digest


def test_five_brokers_and_one_that_joins_come_up() -> None:
    plans = [draw(seed) for seed in range(200)]
    assert [plan for plan in plans if plan.nodes == 5]
    assert [plan for plan in plans if plan.joins]
