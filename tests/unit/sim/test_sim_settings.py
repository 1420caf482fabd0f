"""Settings that a seed chooses, and their consequences."""

from __future__ import annotations

from random import Random

from penstock.core.partition.follower import LONGEST_PAUSE_MS
from penstock.sim.settings import DRAWN, SETTINGS, draw_settings, well_within_s
from penstock.sim.stage import PROGRESS_WITHIN_S


def test_the_longest_time_to_get_well_is_the_sum_of_what_may_be_waited_for() -> None:
    usual = {**SETTINGS, **{name: str(values[0]) for name, values in DRAWN.items()}}
    assert well_within_s(usual) == (8 * 500 + 1000 + 200 + 5000 + 200 + 50 + 600 + LONGEST_PAUSE_MS) / 1000
    slower = {**usual, "replica.lag.time.max.ms": "1600"}
    assert well_within_s(slower) == well_within_s(usual) + 1


def test_whatever_is_drawn_the_bound_is_below_that_of_other_progress() -> None:
    bounds = [well_within_s({**SETTINGS, **draw_settings(Random(seed))}) for seed in range(200)]
    assert 69 < min(bounds) < max(bounds) < 100 < PROGRESS_WITHIN_S
