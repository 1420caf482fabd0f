"""Faults that need each other: in some histories, fair, and each with what has to be set for it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from penstock.sim.faults.plan import (
    FAILING_CHECKPOINT,
    LEAP,
    LOST_DISK,
    POWER,
    PROMPT,
    SCENES,
    STEERED,
    STEERED_SCENES,
    Fault,
    Scene,
    draw_scene,
    draw_steered_scene,
    staged,
)
from penstock.sim.plan import RETENTION_MS, draw
from penstock.sim.scenario import play

KILLS = tuple(Fault(number, "kill", number, 0.3) for number in range(4))


def test_every_scene_is_drawn_in_some_histories() -> None:
    drawn = [draw_scene(Random(seed)) for seed in range(300)]
    assert 0 < sum(scene is not None for scene in drawn) < 100
    assert all(scene in drawn for scene in SCENES)
    assert SCENES[0] not in [draw_scene(Random(seed), without=[LOST_DISK]) for seed in range(300)]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.kinds[0])
def test_a_scene_takes_the_place_of_some_faults_and_changes_nothing_else(scene: Scene) -> None:
    for seed in range(20):
        plan = staged(KILLS, scene, Random(seed), is_power_fair=False)
        assert [replace(fault, kind="kill") for fault in plan] == list(KILLS)
        assert [fault for fault in plan if fault.kind == scene.kinds[0]]
        assert not [fault for fault in plan if fault.kind in POWER]
        assert not scene.is_once or sum(fault.kind == scene.kinds[0] for fault in plan) == 1


def test_every_steered_scene_is_drawn_in_some_histories() -> None:
    drawn = [draw_steered_scene(Random(seed)) for seed in range(300)]
    assert 0 < sum(scene is not None for scene in drawn) < 150
    assert all(scene in drawn for scene in STEERED_SCENES)
    assert draw_steered_scene(Random(0), without=STEERED) is None


@pytest.mark.parametrize("scene", STEERED_SCENES, ids=lambda scene: scene.kinds[0])
@pytest.mark.parametrize("is_power_fair", [True, False])
def test_a_steered_scene_comes_first_and_at_once(scene: Scene, is_power_fair: bool) -> None:
    first, *others = staged(KILLS, scene, Random(0), is_power_fair=is_power_fair)
    assert others == list(KILLS[1:])
    assert first.kind in scene.kinds
    assert first.at_s == 0.0
    assert is_power_fair or first.kind not in POWER


def test_a_steered_history_is_small() -> None:
    steered = [plan for plan in map(draw, range(1000)) if any(fault.kind in STEERED for fault in plan.faults)]
    assert 10 < len(steered) < 80
    assert all(plan.nodes == 3 and not plan.has_tuner and plan.transactions is None for plan in steered)
    assert not [fault for seed in range(200) for fault in draw(seed, nodes=1).faults if fault.kind in STEERED]


def test_a_lost_disk_is_drawn_only_where_others_have_everything() -> None:
    plans = [draw(seed) for seed in range(400)]
    losing = [plan for plan in plans if any(fault.kind == LOST_DISK for fault in plan.faults)]
    assert losing
    assert all(plan.nodes >= 3 and not plan.has_voter_changes for plan in losing)
    alone = [fault.kind for seed in range(400) for fault in draw(seed, nodes=1).faults]
    assert LOST_DISK not in alone


def test_producers_are_forgotten_only_where_nothing_of_theirs_arrives_late() -> None:
    forgetting = [plan for plan in map(draw, range(400)) if plan.forgotten_after_s is not None]
    assert 10 < len(forgetting) < 60
    for plan in forgetting:
        assert {fault.kind for fault in plan.faults} <= set(PROMPT)
        assert not plan.is_compacting
        assert not plan.has_reborn


def test_a_lane_that_was_forgotten_goes_on_where_it_was() -> None:
    plan = next(plan for plan in map(draw, range(400)) if plan.forgotten_after_s is not None)
    verdict = play(replace(plan, faults=(), ending=""))
    assert verdict.is_good, verdict.story
    assert verdict.probes["a silent producer forgotten"]
    assert verdict.troubles["slept"]


@pytest.mark.parametrize("kind", [FAILING_CHECKPOINT, LEAP])
def test_it_costs_nothing_that_was_promised(kind: str) -> None:
    plan = replace(
        draw(1, nodes=3),
        faults=tuple(Fault(number, kind, number + 0.5, 1.0) for number in range(2)),
        seconds=4.0,
        has_tuner=False,
        has_trimmed=True,
        retention_ms=RETENTION_MS,
        ending="",
    )
    verdict = play(plan)
    assert verdict.is_good, verdict.details
    assert verdict.faults[kind]
