"""When a disk counts as hung, and when as well again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from penstock.replica.disk_watch import PATIENCE, DiskWatch
from penstock.sim.world import SimWorld

LIMIT_S = 1.0


class Disk:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.since_s: float | None = None
        self.ended_s = 0.0
        self.probe_takes_s = 0.01
        self.probe_fails = False
        self.told: list[tuple[bool, float]] = []
        self._loop = loop
        self.watch = DiskWatch(
            loop,
            "/data",
            (lambda: None, lambda: self.since_s),
            lambda: self.ended_s,
            lambda: int(LIMIT_S * 1000),
            self._probe,
        )
        self.watch.on_change.append(lambda is_hung: self.told.append((is_hung, loop.time())))
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
