"""Machines of the simulated world: what dies with a process, what with the power, and chance from the seed."""

from __future__ import annotations

import asyncio
import gc

import pytest

from penstock.ports.disk import File
from penstock.sim.machine.clock import EPOCH_MS
from penstock.sim.machine.disk import SimCrash
from penstock.sim.machine.loop import Deadlock, SimError, UnhandledError
from penstock.sim.machine.threads import DiskTimes
from penstock.sim.machine.trace import Trace
from penstock.sim.machine.world import ProcessDied, SimPorts, SimWorld


@pytest.fixture
def world():
    with SimWorld(11) as made:
        yield made


async def write(ports: SimPorts) -> File:
    file = ports.disk.open("/file", create=True)
    file.truncate(0)
    file.write(0, [b"stable"])
    file.sync()
    ports.disk.sync_directory("")
    file.write(6, [b" and not"])
    return file


async def read(ports: SimPorts) -> bytes:
    return ports.disk.open("/file").read(0, 100)


def test_a_killed_process_leaves_the_page_cache_and_a_crash_takes_it(world: SimWorld) -> None:
    async def main() -> None:
        machine = world.machine("node-1")
        file = await machine.start(write)
        machine.kill()
        with pytest.raises(OSError, match="closed"):
            file.size()
        assert await machine.start(read) == b"stable and not"
        survivors = set()
        for _ in range(20):
            machine.crash()
            survivors.add(await machine.start(read))
            machine.kill()
            await machine.start(write)
        assert len(survivors) > 1
        assert all(data.startswith(b"stable") for data in survivors)

    world.run(main())


def test_a_program_is_told_of_by_its_result_or_its_death(world: SimWorld) -> None:
    async def waits(ports: SimPorts) -> None:
        await asyncio.sleep(100)

    async def fails(ports: SimPorts) -> None:
        raise ValueError("no")

    async def main() -> None:
        machine = world.machine("node-1")
        starting = machine.start(waits)
        with pytest.raises(SimError, match="already running"):
            machine.start(waits)
        await asyncio.sleep(1)
        machine.kill()
        with pytest.raises(ProcessDied):
            await starting
        with pytest.raises(SimError, match="nothing runs"):
            machine.kill()
        with pytest.raises(ValueError, match="no"):
            await machine.start(fails)
        machine.exited()
        assert not machine.is_running

    world.run(main())


def test_the_machine_stops_at_a_change_of_its_disk(world: SimWorld) -> None:
    after: list[str] = []

    async def program(ports: SimPorts) -> None:
        file = ports.disk.open("/file", create=True)
        try:
            for number in range(100):
                file.write(number, [b"x"])
                await asyncio.sleep(0)
        except SimCrash:
            after.append("unwinding")
            ports.loop.call_soon(after.append, "a dead process does not get here")
            raise

    async def main() -> None:
        machine = world.machine("node-1")
        machine.crash_after(10)
        with pytest.raises(ProcessDied):
            await machine.start(program)
        await asyncio.sleep(1)
        assert not world.network.is_up("node-1")
        assert machine.disk.changes == 10
        assert machine.disk.crash_after is None
        await machine.start(write)

    world.run(main())
    assert after == ["unwinding"]


def test_a_machine_that_lost_its_power_can_be_started_by_whoever_notices_first(world: SimWorld) -> None:
    async def main() -> None:
        machine = world.machine("node-1")
        machine.crash_after(1)
        with pytest.raises(ProcessDied):
            await machine.start(write)
        await machine.start(write)
        assert machine.is_running
        assert world.network.is_up("node-1")
        await asyncio.sleep(1)
        assert world.network.is_up("node-1")

    world.run(main())


def test_a_paused_process_does_late_what_was_due(world: SimWorld) -> None:
    done: list[tuple[str, int]] = []

    async def program(ports: SimPorts) -> None:
        for number in range(4):
            ports.loop.call_later(number + 1, lambda n=number: done.append((f"{n}", round(ports.loop.time()))))

    async def main() -> None:
        machine = world.machine("node-1")
        await machine.start(program)
        await asyncio.sleep(1.5)
        machine.pause()
        await asyncio.sleep(10)
        machine.resume()
        await asyncio.sleep(1)
        assert done == [("0", 1), ("1", 12), ("2", 12), ("3", 12)]
        machine.pause()
        machine.kill()

    world.run(main())


def test_workers_and_flusher_take_their_time_a_few_at_once(world: SimWorld) -> None:
    async def program(ports: SimPorts) -> tuple[float, float]:
        loop = ports.loop
        began = loop.time()
        assert await asyncio.gather(*(ports.workers.run(lambda n=n: n * n) for n in range(40))) == [
            n * n for n in range(40)
        ]
        worked = loop.time() - began
        with pytest.raises(KeyError):
            await ports.workers.run(lambda: {}["missing"])

        began = loop.time()
        files = [ports.disk.open(f"/{n}", create=True) for n in range(10)]
        for file in files:
            file.write(0, [b"data"])
        stable = loop.create_future()
        ports.flusher.flush(files, ["", "/gone"], lambda error: stable.set_result(error))
        assert await stable is None
        return worked, loop.time() - began

    async def main() -> tuple[float, float]:
        return await world.machine("node-1", DiskTimes(0.001, 0.002, 0, 0)).start(program)

    worked, flushed = world.run(main())
    assert 0.01 < worked < 0.04  # forty pieces of work of about two milliseconds, four at a time
    assert 0.01 < flushed < 0.04


def test_a_failing_sync_reaches_whoever_asked(world: SimWorld) -> None:
    async def program(ports: SimPorts) -> None:
        file = ports.disk.open("/file", create=True)
        file.write(0, [b"data"])
        ports.disk.fail_sync = lambda path: path == "/file"
        stable = ports.loop.create_future()
        ports.flusher.flush([file], [""], stable.set_result)
        assert isinstance(await stable, OSError)

    async def main() -> None:
        await world.machine("node-1").start(program)

    world.run(main())


def test_clocks_disagree_drift_and_jump_but_never_the_monotonic_one(world: SimWorld) -> None:
    async def main() -> None:
        one, two = world.machine("node-1").clock, world.machine("node-2").clock
        assert one.now_ms() != two.now_ms()
        assert abs(one.now_ms() - EPOCH_MS) <= 500
        apart = one.now_ms() - two.now_ms()
        await asyncio.sleep(50_000)
        assert one.now_ms() - two.now_ms() != apart
        assert one.monotonic() == two.monotonic() == world.loop.time()
        before = one.now_ms(), one.monotonic()
        one.jump(-60_000)
        assert (one.now_ms(), one.monotonic()) == (before[0] - 60_000, before[1])

    world.run(main())


def test_chance_comes_from_the_seed_and_streams_do_not_mix() -> None:
    def draw(seed: int, also: bool = False) -> bytes:
        with SimWorld(seed) as world:

            async def program(ports: SimPorts) -> bytes:
                return ports.entropy.random_bytes(16)

            async def main() -> bytes:
                if also:
                    world.random("something else").random()
                    world.machine("node-0")
                machine = world.machine("node-1")
                first = await machine.start(program)
                machine.kill()
                return first + await machine.start(program)

            return world.run(main())

    assert draw(1) == draw(1) == draw(1, also=True) != draw(2)
    assert draw(1)[:16] != draw(1)[16:]


def test_a_failure_carries_the_seed_and_the_last_events() -> None:
    async def main() -> None:
        assert not gc.isenabled()
        await asyncio.Event().wait()

    assert gc.isenabled()
    with pytest.raises(Deadlock) as caught, SimWorld(1234) as world:
        world.run(main())
    assert gc.isenabled()
    notes = "\n".join(caught.value.__notes__)
    assert "seed 1234" in notes
    assert "world seed 1234" in notes


def test_a_defect_in_a_program_ends_the_run(world: SimWorld) -> None:
    async def program(ports: SimPorts) -> None:
        ports.loop.call_later(1, lambda: {}["defect"])

    async def main() -> None:
        await world.machine("node-1").start(program)
        await asyncio.sleep(10)

    with pytest.raises(UnhandledError, match="defect"):
        world.run(main())


def test_the_trace_keeps_the_last_lines_and_hashes_all() -> None:
    def trace(kept: int, last: str) -> Trace:
        made = Trace(1, lambda: 0.25, kept)
        for number in range(100):
            made.note("node-1", f"event {number}")
        made.note("node-1", last)
        return made

    short, long = trace(10, "end"), trace(1000, "end")
    assert short.digest == long.digest != trace(10, "another end").digest
    assert short.count == long.count == 102
    assert len(short.text().splitlines()) == 10
    assert short.tail(1) == ["       250000 node-1 end"]


def test_a_suspended_machine_does_not_know_that_time_went_on() -> None:
    with SimWorld(3) as world:
        machine, other = world.machine("a"), world.machine("b")
        seen: list[tuple[float, float, int]] = []

        async def look(ports: SimPorts) -> None:
            for _ in range(4):
                await asyncio.sleep(1.0)
                seen.append((ports.loop.time(), ports.clock.monotonic(), ports.clock.now_ms()))

        async def main() -> None:
            before_ms, began_s = other.clock.now_ms(), world.loop.time()
            outcome = machine.start(look)
            await asyncio.sleep(1.5)
            machine.suspend()
            await asyncio.sleep(10.0)
            assert len(seen) == 1
            machine.resume()
            await asyncio.sleep(3.0)
            await outcome
            assert world.loop.time() - began_s == pytest.approx(14.5, abs=0.1)  # the world's own clock went on
            assert other.clock.now_ms() - before_ms == pytest.approx(14_500, abs=100)

        world.run(main())
        assert [loop_s for loop_s, _, _ in seen] == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=0.01)
        assert [monotonic_s for _, monotonic_s, _ in seen] == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=0.01)
        assert seen[1][2] - seen[0][2] == pytest.approx(11_000, abs=100)  # its wall clock was set by the host


def test_nobody_reaches_a_suspended_machine_until_it_wakes() -> None:
    with SimWorld(4) as world:
        machine = world.machine("a")
        heard: list[tuple[float, bytes]] = []

        class Listens(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                heard.append((world.loop.world_time(), data))

        async def serve(ports: SimPorts) -> None:
            await ports.loop.create_server(Listens, None, 7)

        async def main() -> None:
            await machine.start(serve)
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "a", 7)
            machine.suspend()
            transport.write(b"hello")
            await asyncio.sleep(5.0)
            assert not heard
            machine.resume()
            await asyncio.sleep(1.0)

        world.run(main())
        assert [data for _, data in heard] == [b"hello"]
        assert heard[0][0] > 5.0
