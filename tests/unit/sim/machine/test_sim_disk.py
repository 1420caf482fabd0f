"""The simulated disk: what a power failure may leave of writes and names, and what a flush is sure to cover."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from random import Random

import pytest

from penstock.sim.machine.content import SECTOR
from penstock.sim.machine.disk import CALLS, SimDisk, SimFile
from penstock.sim.machine.loop import SimLoop
from penstock.sim.machine.threads import DiskTimes, SimFlusher
from penstock.sim.machine.world import SimPorts, SimWorld


def stable_file(disk: SimDisk, path: str = "/file") -> SimFile:
    file = disk.open(path, create=True)
    disk.sync_directory(path.rpartition("/")[0])
    return file


def survivors(sectors: int, tries: int = 300) -> set[tuple[bool, ...]]:
    """Which sectors of one write, and of the file's size, are there after a power failure."""
    found = set()
    for seed in range(tries):
        disk = SimDisk(Random(seed))
        stable_file(disk).write(0, [b"x" * SECTOR * sectors])
        disk.crash()
        data = disk.open("/file").read(0, SECTOR * sectors)
        if len(data) % SECTOR == 0:
            found.add(tuple(data[at] == ord("x") for at in range(0, len(data), SECTOR)))
    return found


def test_a_write_may_keep_a_later_sector_without_an_earlier_one() -> None:
    found = survivors(2)
    assert found >= {(), (True,), (False, True), (True, True)}


def test_a_file_may_have_grown_by_zeros() -> None:
    assert (False, False) in survivors(2)


def test_what_was_synced_stays_whatever_is_written_after_it() -> None:
    for seed in range(100):
        disk = SimDisk(Random(seed))
        file = stable_file(disk)
        file.write(0, [b"a" * 700])
        file.sync()
        file.write(700, [b"b" * 2000])
        disk.crash()
        assert disk.open("/file").read(0, 700) == b"a" * 700


def test_a_renamed_directory_takes_along_what_is_stable_in_it_and_what_is_not() -> None:
    found = set()
    for seed in range(200):
        disk = SimDisk(Random(seed))
        disk.make_directory("/old")
        disk.sync_directory("")
        stable_file(disk, "/old/stable")
        disk.open("/old/pending", create=True)
        disk.rename("/old", "/new")
        assert disk.list_directory("/new") == ["pending", "stable"]
        disk.crash()
        [name] = disk.list_directory("")
        found.add((name, *disk.list_directory(f"/{name}")))
    assert found == {
        ("new", "stable"),
        ("new", "pending", "stable"),
        ("old", "stable"),
        ("old", "pending", "stable"),
    }


def test_a_name_synced_in_a_renamed_directory_is_kept_under_either_name() -> None:
    for seed in range(50):
        disk = SimDisk(Random(seed))
        disk.make_directory("/old")
        disk.sync_directory("")
        disk.rename("/old", "/new")
        stable_file(disk, "/new/file")
        disk.crash()
        [name] = disk.list_directory("")
        assert disk.list_directory(f"/{name}") == ["file"]


def test_a_full_disk_has_no_room_for_names_either_sooner_or_later() -> None:
    disk = SimDisk(Random(2), capacity=100)

    def fails(change: Callable[[int], object]) -> int:
        failures = []
        for number in range(40):
            names = disk.list_directory("")
            try:
                change(number)
            except OSError as error:
                failures.append((error.errno, disk.list_directory("") == names))
        assert set(failures) <= {(errno.ENOSPC, True)}
        return len(failures)

    assert 0 < fails(lambda number: disk.open(f"/file-{number}", create=True)) < 40
    assert 0 < fails(lambda number: disk.make_directory(f"/directory-{number}")) < 40
    name = disk.list_directory("")[0]
    assert 0 < fails(lambda _: disk.rename(f"/{name}", f"/{name}")) < 40
    disk.capacity = None
    assert not fails(lambda number: disk.open(f"/more-{number}", create=True))


def test_a_write_that_fails_may_have_done_any_part_of_it() -> None:
    sizes = set()
    for seed in range(40):
        disk = SimDisk(Random(seed))
        file = stable_file(disk)
        disk.fail_write = lambda path: path == "/file"
        with pytest.raises(OSError, match="input/output"):
            file.write(0, [b"abc"])
        sizes.add(file.size())
    assert sizes == {0, 1, 2, 3}


def flushed(disk: SimDisk, loop: SimLoop, files: list[SimFile], directories: list[str]) -> list[OSError | None]:
    told: list[OSError | None] = []
    SimFlusher(loop, disk, Random(5), DiskTimes()).flush(files, directories, told.append)
    return told


def test_a_flush_covers_what_was_there_when_it_was_asked_for() -> None:
    with SimWorld(3) as world:

        async def main() -> None:
            machine = world.machine("node-1")
            await machine.start(program)

        async def program(ports: SimPorts) -> None:
            disk = ports.disk
            disk.make_directory("/data")
            disk.sync_directory("")
            file = disk.open("/data/one", create=True)
            file.write(0, [b"before"])
            told = flushed(disk, ports.loop, [file], ["/data"])
            file.write(6, [b" and after"])
            disk.open("/data/two", create=True)
            await asyncio.sleep(1)
            assert told == [None]
            directory = disk.stable_directory("/data")
            assert directory is not None
            assert list(directory.stable) == ["one"]
            assert disk.stable_size("/data/one") == len("before")

        world.run(main())


def test_a_flush_is_on_the_platter_before_anybody_hears_of_it() -> None:
    with SimWorld(3) as world:

        async def main() -> None:
            await world.machine("node-1").start(program)

        async def program(ports: SimPorts) -> None:
            file = stable_file(ports.disk)
            file.write(0, [b"before"])
            told = flushed(ports.disk, ports.loop, [file], [])
            unheard = 0
            while not told:
                unheard += ports.disk.stable_size("/file") > 0
                await asyncio.sleep(0.00001)
            assert unheard

        world.run(main())


def test_a_call_can_fail_by_itself_and_pass() -> None:
    """Nothing is done then, but for a write, of which any part is; and the next one is well again."""
    disk = SimDisk(Random(0))
    disk.make_directory("/logs")
    file = disk.open("/logs/a", create=True)
    file.write(0, [b"a" * 100])
    attempts: dict[str, Callable[[], object]] = {
        "write": lambda: file.write(100, [b"b" * 100]),
        "truncate": lambda: file.truncate(10),
        "sync": file.sync,
        "open": lambda: disk.open("/logs/a"),
        "list": lambda: disk.list_directory("/logs"),
        "make": lambda: disk.make_directory("/logs/more"),
        "rename": lambda: disk.rename("/logs/a", "/logs/b"),
        "remove": lambda: disk.remove("/logs/a"),
        "sync directory": lambda: disk.sync_directory("/logs"),
    }
    assert tuple(attempts) == CALLS
    for call, attempt in attempts.items():
        disk.fail_call = lambda asked, path, call=call: errno.EMFILE if asked == call else None  # type: ignore[misc]
        with pytest.raises(OSError, match="too many open files") as caught:
            attempt()
        assert caught.value.errno == errno.EMFILE
    disk.fail_call = None
    assert disk.list_directory("/logs") == ["a"]
    assert disk.open("/logs/a").read(0, 100) == b"a" * 100


def test_what_needs_the_platter_waits_for_a_disk_that_hangs() -> None:
    with SimWorld(3) as world:
        machine = world.machine("node-1")

        async def main() -> list[float]:
            done: list[float] = []

            async def program(ports: SimPorts) -> None:
                file = ports.disk.open("/file", create=True)
                machine.disk_times.is_hung = True
                ports.flusher.flush([file], [], lambda error: done.append(ports.loop.time()))
                work = asyncio.ensure_future(ports.workers.run(lambda: done.append(ports.loop.time())))
                await asyncio.sleep(5)
                assert not done
                machine.disk_times.is_hung = False
                await work
                await asyncio.sleep(1)

            await machine.start(program)
            return done

        assert [at_s > 5 for at_s in world.run(main())] == [True, True]
