"""A machine comes back under its number with nothing on its disk: its vote is taken away before, and given after."""

from __future__ import annotations

from dataclasses import replace

from penstock.sim.faults.plan import LOST_DISK, Fault
from penstock.sim.plan import draw
from penstock.sim.scenario import play


def test_what_a_lost_disk_had_is_fetched_from_the_others() -> None:
    plan = replace(
        draw(1, nodes=3),
        faults=(Fault(0, LOST_DISK, 1.0, 0.3),),
        seconds=3.0,
        max_down=1,
        ending="",
        has_tuner=False,
        has_unclean=False,
        has_voter_changes=False,
    )
    verdict = play(plan)
    assert verdict.is_good, verdict.details
    assert verdict.faults[LOST_DISK] == 1
