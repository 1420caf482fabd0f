"""The meter of the loop: what waits for a disk there takes time, and names itself when it takes too much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.sim.judges.judging import Judging
from penstock.sim.judges.loop_meter import LIMIT_S, SYNC_S, LoopMeter
from penstock.sim.machine.world import SimMachine, SimPorts, SimWorld


@pytest.fixture
def world() -> SimWorld:
    return SimWorld(1)


@pytest.fixture
def judging(world: SimWorld) -> Judging:
    return Judging(world.loop.world_time, lambda: world.loop.steps)


def play(
    world: SimWorld, judging: Judging, syncs: int, *, in_worker: bool = False, is_counted_on: bool = True
) -> float:
    """How long it takes, in virtual seconds, until the program has had its next turn."""
    meter = LoopMeter(world.loop, judging, lambda _: is_counted_on)
    world.loop.after_turn = meter.end_turn

    async def program(ports: SimPorts) -> float:
        file = ports.disk.open("/file", create=True)

        def sync_often() -> None:
            for _ in range(syncs):
                file.sync()

        began = ports.loop.time()
        if in_worker:
            await ports.workers.run(sync_often)
        else:
            sync_often()
        await asyncio.sleep(0)
        return ports.loop.time() - began

    machine: SimMachine = world.machine("node-1")
    with world, meter.listening():
        return world.run(_awaited(machine, program))


async def _awaited(machine: SimMachine, program: Callable[[SimPorts], Coroutine[Any, Any, float]]) -> float:
    return await machine.start(program)


def test_a_sync_on_the_loop_takes_its_time(world: SimWorld, judging: Judging) -> None:
    assert play(world, judging, 4) == pytest.approx(4 * SYNC_S, abs=0.001)
    assert not judging.breaches


def test_too_many_are_told_with_who_wanted_them(world: SimWorld, judging: Judging) -> None:
    assert play(world, judging, 10) > LIMIT_S
    (breach,) = judging.breaches
    assert breach.what == "the loop never waits"
    assert "node-1#1 takes 150 ms: 10 calls" in breach.story
    assert "a sync of /file in" in breach.story
    assert "sync_often" in breach.story


def test_a_worker_may_wait(world: SimWorld, judging: Judging) -> None:
    assert play(world, judging, 100, in_worker=True) < 1.0
    assert not judging.breaches


def test_who_does_not_serve_may_wait(world: SimWorld, judging: Judging) -> None:
    assert play(world, judging, 10, is_counted_on=False) > LIMIT_S
    assert not judging.breaches
