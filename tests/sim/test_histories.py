"""Histories of a whole cluster: real nodes on a seed, faults, clients, and nothing promised is broken.

`make sim` plays thousands; here are a few hundred. PENSTOCK_SIM_SEEDS=first:after names others.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from penstock.sim.faults.plan import ALL_KINDS
from penstock.sim.plan import draw
from penstock.sim.probes import STATES
from penstock.sim.scenario import play
from penstock.sim.seeds import HistoryRequest, play_one
from penstock.sim.tuning import settings_changed

DEFAULT_SEEDS = "0:250"
SEEDS = range(*map(int, os.environ.get("PENSTOCK_SIM_SEEDS", DEFAULT_SEEDS).split(":")))


@pytest.fixture(scope="module")
def totals() -> Counter[str]:
    """The events of all histories of this run."""
    return Counter()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_keeps_its_promises(seed: int, totals: Counter[str]) -> None:
    verdict = play(draw(seed))
    totals.update(verdict.faults)
    totals.update(verdict.probes)
    totals.update({f"{name} (setting)": count for name, count in verdict.settings.items()})
    totals.update({f"{what} (history)": count for what, count in verdict.statistics.items()})
    assert verdict.is_good, f"{verdict.details}\nreplay it with: {HistoryRequest(seed).command}"
    assert verdict.statistics["acknowledged"]


@pytest.mark.skipif(len(SEEDS) < 200, reason="a few histories need not have everything")
def test_everything_that_can_happen_did(totals: Counter[str]) -> None:
    """Faults that never come and clients that do nothing would break no promise either."""
    assert not [kind for kind in ALL_KINDS if not totals[kind]]
    assert not [name for name in settings_changed() if not totals[f"{name} (setting)"]]
    assert not [state for state in STATES if not totals[state]]
    for what in ("acknowledged", "read", "commits", "generations", "admin", "transactions committed"):
        assert totals[f"{what} (history)"] > len(SEEDS)
    assert totals["terms (history)"] > 2 * len(SEEDS)


def test_the_same_seed_is_the_same_history_of_a_cluster() -> None:
    first, second, other = (play_one(HistoryRequest(seed)) for seed in (0, 0, 1))
    assert first.digest == second.digest != other.digest
    assert first.statistics == second.statistics


def test_watching_changes_nothing() -> None:
    """The trace with all the logs of brokers, and the one without, are of the same history."""
    assert play_one(HistoryRequest(4, keep_trace=True)).digest == play_one(HistoryRequest(4)).digest


def test_five_brokers_and_one_that_joins_come_up() -> None:
    plans = [draw(seed) for seed in range(200)]
    assert [plan for plan in plans if plan.nodes == 5]
    assert [plan for plan in plans if plan.joins]
