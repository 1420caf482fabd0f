"""The simulation finds what is planted: a seed for every bug, good without it; with it the bug's own judge speaks.

`make sim-bugs` looks for all of them from seed 0 on. Here the seeds it found are tried first, so that the test takes
seconds; where one no longer shows its bug, because the code or the faults have changed, the search goes on from seed 0
and the new seed is printed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.sim.planted.bugs import BUGS
from penstock.sim.scenario import Verdict
from penstock.sim.seeds import find

MOST_SEEDS = 500
# As told by `make sim-bugs`.
FOUND_BY: dict[str, int] = {
    "acknowledges-alone": 20,
    "claims-unflushed": 0,
    "votes-twice": 29,
    "never-truncates": 2,
    "hides-divergence": 4,
    "serves-uncommitted": 0,
    "shrinks-isr-alone": 0,
    "commits-on-election": 25,
    "watermark-goes-back": 0,
    "keeps-the-epoch": 0,
    "commits-below-minimum": 2,
    "elects-the-outdated": 18,
    "metadata-unflushed": 0,
    "forgets-producers": 5,
    "remembers-one-batch": 19,
    "unclean-election": 2,
    "answers-before-commit": 4,
    "compacts-too-much": 0,
    "gives-twice": 10,
    "join-never-ends": 0,
    "loses-in-snapshot": 0,
    "joins-too-early": 0,
    "syncs-nothing": 0,
    "drops-replicas-early": 11,
    "flush-ticket": 1,
    "watermark-unbounded": 0,
    "cuts-committed": 1,
    "forgets-its-vote": 9,
    "leads-for-ever": 4,
    "shows-less": 24,
    "gives-up-with-its-vote": 179,
    "impatient-alone": 5,
    "forgets-in-no-time": 396,
    "mends-half-a-compacted-log": 53,
    "takes-the-second-batch": 47,
    "undoes-every-swap": 60,
    "inherits-offsets": 45,
    "forgets-gaps": 39,
    "clean-for-good": 0,
    "clean-too-early": 14,
    "keeps-its-cleaned-offset": 24,
    "cuts-before-lowering": 2,
    "deletes-on-the-loop": 0,
    "waits-for-its-disk": 36,
    "repairs-in-sync": 24,
    "begins-with-all-committed": 2,
    "promises-its-end": 0,
    "keeps-its-minimum": 14,
    "syncs-again": 8,
    "offline-for-want": 10,
    "asks-once": 208,
    "eligible-unflushed": 101,
    "votes-emptied": 13,
    "gives-a-vote-again": 27,
    "believes-one-reader": 102,
    "walks-from-the-start": 0,
    "renames-unsynced": 0,
    "ends-the-next": 40,
    "opens-late": 40,
    "refuses-a-repeated-marker": 30,
    "rises-twice": 7,
    "never-used-up": 17,
    "knows-before-it-writes": 7,
    "stays-pending": 7,
    "stable-too-early": 7,
    "marks-undecided": 7,
    "marks-once": 30,
    "counts-at-once": 17,
    "keeps-its-timeout": 7,
    "knows-the-present-id": 32,
    "waits-for-nobody": 20,
    "has-no-last-epoch": 112,
    "removes-markers": 7,
    "loads-no-aborted": 7,
    "forgets-open-offsets": 57,
    "hears-strangers": 38,
}


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
