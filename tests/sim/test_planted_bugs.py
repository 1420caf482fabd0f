"""The simulation finds what is planted: a seed for every bug, good without it; with it the bug's own judge speaks.

The seed that is known for a bug is tried first. Where it no longer shows the bug, because the code or the faults have
changed, the search goes on from seed 0 and the new seed is printed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.sim.planted.bugs import BUGS
from penstock.sim.planted.known_seeds import FOUND_BY
from penstock.sim.scenario import Verdict
from penstock.sim.seeds import find

MOST_SEEDS = 500


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[dict[str, Verdict]]:
    """Printed when all have been looked for, also where output is captured."""
    found: dict[str, Verdict] = {}
    yield found
    capturing = request.config.pluginmanager.getplugin("capturemanager")
    with capturing.global_and_fixture_disabled():
        print("\nplanted bugs, the seeds that found them, and the promise that was broken:")
        for name, verdict in found.items():
            is_new = "" if verdict.seed == FOUND_BY.get(name) else f" (was {FOUND_BY.get(name)})"
            print(f"  {name:24}{verdict.seed:>6}{is_new}  {verdict.what}")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(table: dict[str, Verdict], name: str) -> None:
    verdict = find(name, [FOUND_BY[name]] if name in FOUND_BY else []) or find(name, range(MOST_SEEDS))
    assert verdict is not None, f"{BUGS[name].story}: not found by '{BUGS[name].judge}' in {MOST_SEEDS} seeds"
    table[name] = verdict


def test_there_are_ten_bugs_and_more() -> None:
    assert len(BUGS) >= 10
    assert not [name for name in FOUND_BY if name not in BUGS]
