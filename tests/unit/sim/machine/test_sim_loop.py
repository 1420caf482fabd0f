"""The loop with virtual time: order, time, errors that say what waits."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from penstock.sim.machine.loop import Deadlock, NoThreads, SimError, SimLoop, StepLimit, TimeLimit, UnhandledError
from penstock.sim.machine.process import SimProcess, current_process


@pytest.fixture
def loop():
    made = SimLoop()
    yield made
    made.close()


def test_time_jumps_to_the_next_timer(loop: SimLoop) -> None:
    async def main() -> float:
        await asyncio.sleep(86_400)
        return loop.time()

    began = time.perf_counter()
    assert loop.run_until_complete(main()) == pytest.approx(86_400, abs=0.001)
    assert time.perf_counter() - began < 0.5


def test_every_turn_moves_the_clock_so_polling_ends(loop: SimLoop) -> None:
    async def main() -> int:
        polls = 0
        while loop.time() < 0.001:
            polls += 1
            await asyncio.sleep(0)
        return polls

    assert 500 < loop.run_until_complete(main()) < 1500


def test_callbacks_run_in_order_and_timers_by_time_and_then_by_age(loop: SimLoop) -> None:
    order: list[str] = []

    async def main() -> None:
        loop.call_later(2, order.append, "late")
        loop.call_later(1, order.append, "first of two")
        loop.call_later(1, order.append, "second of two")
        loop.call_later(0.5, order.append, "cancelled").cancel()
        loop.call_soon(order.append, "soon")
        loop.call_soon_threadsafe(order.append, "then")
        await asyncio.sleep(3)

    loop.run_until_complete(main())
    assert order == ["soon", "then", "first of two", "second of two", "late"]


def test_asyncio_itself_works_on_it(loop: SimLoop) -> None:
    async def double(queue: asyncio.Queue[int], lock: asyncio.Lock) -> int:
        async with lock:
            await asyncio.sleep(1)
            return 2 * await queue.get()

    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        lock = asyncio.Lock()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await queue.get()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(double(queue, lock)) for _ in range(3)]
            for number in range(3):
                queue.put_nowait(number)
        return [task.result() for task in tasks]

    assert loop.run_until_complete(main()) == [0, 2, 4]
    assert loop.time() == pytest.approx(8, abs=0.01)


def test_a_deadlock_names_who_waits_and_where(loop: SimLoop) -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(waits_for_ever(), name="the culprit")

    with pytest.raises(Deadlock, match=r"the culprit in .*waits_for_ever:\d+"):
        loop.run_until_complete(main())


def test_a_run_is_bounded_in_time_and_steps() -> None:
    async def ticks() -> None:
        for _ in range(100_000):
            await asyncio.sleep(1)

    loop = SimLoop(max_steps=500)
    with pytest.raises(TimeLimit, match=r"ticks:\d+"):
        loop.run_until_complete(ticks(), timeout_s=60)
    with pytest.raises(StepLimit):
        loop.run_until_complete(ticks())
    loop.close()


def test_what_a_callback_raises_ends_the_run(loop: SimLoop) -> None:
    async def main() -> None:
        loop.call_later(1, lambda: 1 // 0)
        await asyncio.sleep(10)

    with pytest.raises(UnhandledError, match="ZeroDivisionError") as caught:
        loop.run_until_complete(main())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert loop.time() < 2


def test_a_task_that_fails_unseen_ends_the_run(loop: SimLoop) -> None:
    async def fails() -> None:
        raise ValueError("nobody looks")

    async def main() -> None:
        task = asyncio.create_task(fails())
        await asyncio.sleep(1)
        del task
        gc.collect()
        await asyncio.sleep(1)

    with pytest.raises(UnhandledError, match="nobody looks"):
        loop.run_until_complete(main())


def test_there_are_no_threads_and_no_descriptors(loop: SimLoop) -> None:
    async def main() -> None:
        with pytest.raises(NoThreads):
            await asyncio.to_thread(print)
        with pytest.raises(NotImplementedError):
            loop.add_reader(0, print)
        with pytest.raises(SimError):
            await loop.create_connection(asyncio.Protocol, "nowhere", 1)

    loop.run_until_complete(main())


def test_a_dead_process_does_nothing_more_not_even_clean_up(loop: SimLoop) -> None:
    process = SimProcess("node-1", 1)
    done: list[str] = []

    async def work() -> None:
        assert current_process() is process
        loop.call_later(5, done.append, "timer")
        try:
            await asyncio.sleep(5)
        finally:
            done.append("finally")

    async def main() -> None:
        assert current_process() is None
        loop.create_task(work(), context=process.context)
        await asyncio.sleep(1)
        process.is_alive = False
        await asyncio.sleep(60)

    loop.run_until_complete(main())
    assert done == []
    assert len(loop.tasks_of(process)) == 1


def test_an_abandoned_generator_is_closed_on_the_loop(loop: SimLoop) -> None:
    closed: list[bool] = []

    async def numbers():
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)
            closed.append(True)

    async def main() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(2)

    loop.run_until_complete(main())
    assert closed == [True]
