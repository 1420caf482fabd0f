"""The simulation finds what is planted: every bug within so many seeds, by the checker that is there for it.

Takes a while, so a few bugs are looked for by default; PENSTOCK_SIM_BUGS=all looks for all of them.
"""

from __future__ import annotations

import os

import pytest

from penstock.sim.planted_bugs import BUGS
from penstock.sim.scenario import Verdict
from penstock.sim.seeds import find

MOST_SEEDS = 500
QUICK = ["acknowledges-alone", "serves-uncommitted", "watermark-goes-back", "shrinks-isr-alone", "keeps-the-epoch"]
WANTED = list(BUGS) if os.environ.get("PENSTOCK_SIM_BUGS") == "all" else QUICK


@pytest.fixture(scope="module")
def table() -> dict[str, Verdict]:
    found: dict[str, Verdict] = {}
    for name in WANTED:
        verdict = find(name, range(MOST_SEEDS))
        if verdict is not None:
            found[name] = verdict
    print()
    for name in WANTED:
        verdict = found.get(name)
        print(f"{name:24} {'seed ' + str(verdict.seed) + ': ' + verdict.what if verdict else 'not found'}")
    return found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WANTED)
def test_a_planted_bug_is_found(table: dict[str, Verdict], name: str) -> None:
    assert name in table, f"{BUGS[name].story}: not found in {MOST_SEEDS} seeds"
