"""When a disk counts as hung, and when as well again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from penstock.replica.disk_watch import PATIENCE, DiskWatch
from penstock.sim.machine.world import SimWorld

LIMIT_S = 1.0


class Disk:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.since_s: float | None = None
        self.ended_s = 0.0
        self.ended_age_s = 0.0
        self.probe_takes_s = 0.01
        self.probe_fails = False
        self.told: list[tuple[bool, float]] = []
        self._loop = loop
        self.watch = DiskWatch(
            loop,
            "/data",
            (lambda: None, lambda: self.since_s),
            lambda age_s: self.ended_s if age_s / 2 <= self.ended_age_s else 0.0,
            lambda: int(LIMIT_S * 1000),
            self._probe,
            lambda is_hung: self.told.append((is_hung, loop.time())),
        )
        self.watch.start()

    async def _probe(self) -> None:
        await asyncio.sleep(self.probe_takes_s)
        if self.probe_fails:
            raise OSError("no")


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with SimWorld(1) as made:
        yield made


def test_a_flush_that_does_not_end_shows_a_hung_disk_and_a_quick_probe_a_well_one(world: SimWorld) -> None:
    async def main() -> None:
        disk = Disk(world.loop)
        disk.since_s = began_s = world.loop.time()
        await asyncio.sleep(5)
        [(is_hung, at_s)] = disk.told
        assert is_hung
        assert LIMIT_S <= at_s - began_s <= 1.5 * LIMIT_S
        disk.since_s, disk.probe_takes_s = None, LIMIT_S
        await asyncio.sleep(20)
        assert disk.watch.is_hung, "it ends its syncs, but takes too long for them"
        disk.probe_takes_s, disk.probe_fails = 0.01, True
        await asyncio.sleep(2)
        assert not disk.watch.is_hung, "who fails at once does not hang"
        disk.watch.stop()

    world.run(main())


def test_a_flush_that_waits_for_its_turn_is_given_longer(world: SimWorld) -> None:
    async def main() -> None:
        disk = Disk(world.loop)
        disk.since_s = began_s = world.loop.time()
        while not disk.told:
            disk.ended_s = world.loop.time()
            await asyncio.sleep(0.1)
        [(is_hung, at_s)] = disk.told
        assert is_hung
        assert PATIENCE * LIMIT_S <= at_s - began_s <= (PATIENCE + 0.5) * LIMIT_S
        disk.watch.stop()

    world.run(main())


def test_a_queue_that_moves_does_not_show_a_hung_disk(world: SimWorld) -> None:
    async def main() -> None:
        disk = Disk(world.loop)
        began_s = world.loop.time()
        while world.loop.time() < began_s + 20 * LIMIT_S:
            disk.since_s = max(began_s, world.loop.time() - 10 * LIMIT_S)  # the oldest has waited for so long
            disk.ended_s, disk.ended_age_s = world.loop.time(), world.loop.time() - disk.since_s
            await asyncio.sleep(0.1)
        assert not disk.told, "one after the other ends"
        disk.ended_age_s = 0.1
        for _ in range(20):
            disk.ended_s = world.loop.time()
            await asyncio.sleep(0.1)
        assert [is_hung for is_hung, _ in disk.told] == [True], "only young ones end"
        disk.watch.stop()

    world.run(main())
