"""Turns of the event loop: each is measured whatever began it, and what held one is named."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from penstock.runtime.loop import TurnLoop
from penstock.runtime.loop_watchdog import LoopWatchdog

STALL_S = 0.02
PATIENCE_S = 30
TASKS: list[asyncio.Task[None]] = []
Begin = Callable[[TurnLoop, Callable[[], None]], Awaitable[None]]


class Clock:
    """Time passes only where a test says so, however busy the machine is."""

    def __init__(self) -> None:
        self.now_s = 1.0

    def __call__(self) -> float:
        return self.now_s

    def stall(self) -> None:
        self.now_s += STALL_S * 2


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("penstock.runtime.loop.perf_counter", clock)
    monkeypatch.setattr("penstock.runtime.loop_watchdog.perf_counter", clock)
    return clock


def run(main: Callable[[TurnLoop], Awaitable[None]]) -> TurnLoop:
    async def on_loop() -> TurnLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TurnLoop)
        loop.turns.stall_s = STALL_S
        await main(loop)
        await asyncio.sleep(0.01)
        return loop

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        return runner.run(on_loop())


async def by_timer(loop: TurnLoop, work: Callable[[], None]) -> None:
    loop.call_later(0.001, work)


async def by_time_of_day(loop: TurnLoop, work: Callable[[], None]) -> None:
    loop.call_at(loop.time() + 0.001, work)


async def by_thread(loop: TurnLoop, work: Callable[[], None]) -> None:
    threading.Timer(0.001, lambda: loop.call_soon_threadsafe(work)).start()


async def by_executor(loop: TurnLoop, work: Callable[[], None]) -> None:
    loop.run_in_executor(None, time.sleep, 0.001).add_done_callback(lambda _: work())


async def by_task(loop: TurnLoop, work: Callable[[], None]) -> None:
    async def later() -> None:
        await asyncio.sleep(0.001)
        work()

    TASKS.append(loop.create_task(later()))


async def by_socket(loop: TurnLoop, work: Callable[[], None]) -> None:
    ours, theirs = socket.socketpair()

    def readable() -> None:
        loop.remove_reader(theirs)
        work()
        ours.close()
        theirs.close()

    loop.add_reader(theirs, readable)
    threading.Timer(0.001, lambda: ours.send(b"x")).start()


async def by_connection(loop: TurnLoop, work: Callable[[], None]) -> None:
    class Peer(asyncio.BufferedProtocol):
        def get_buffer(self, sizehint: int) -> bytearray:
            return bytearray(16)

        def buffer_updated(self, nbytes: int) -> None:
            work()

    listener = socket.create_server(("127.0.0.1", 0))
    _, peer = await loop.create_connection(Peer, *listener.getsockname())
    assert isinstance(peer, Peer)
    other, _ = listener.accept()
    await asyncio.sleep(0.005)  # idle
    threading.Timer(0.001, lambda: other.send(b"x")).start()
    loop.call_later(0.05, other.close)
    loop.call_later(0.05, listener.close)


@pytest.mark.parametrize("begin", [by_timer, by_time_of_day, by_thread, by_executor, by_task, by_socket, by_connection])
def test_a_turn_is_measured_whatever_begins_it(begin: Begin, clock: Clock) -> None:
    async def main(loop: TurnLoop) -> None:
        done = asyncio.Event()

        def work() -> None:
            clock.stall()
            loop.call_later(0.001, done.set)

        await begin(loop, work)
        await done.wait()

    turns = run(main).turns
    assert turns.stalled == 1
    assert turns.longest_s == pytest.approx(STALL_S * 2)
    assert sum(turns.counts) == turns.number


def test_waiting_is_no_turn(clock: Clock) -> None:
    async def main(loop: TurnLoop) -> None:
        def stall_when_idle() -> None:
            while loop.turns.began_s:
                time.sleep(0.001)
            clock.stall()

        waiting = threading.Thread(target=stall_when_idle)
        loop.call_soon(waiting.start)
        await until(lambda: clock.now_s > 1, 0.2)
        waiting.join()

    assert run(main).turns.sum_s == 0


def test_short_turns_in_a_row_are_not_one_long_one(clock: Clock) -> None:
    async def main(loop: TurnLoop) -> None:
        for _ in range(20):
            clock.now_s += STALL_S / 5
            await asyncio.sleep(0)

    turns = run(main).turns
    assert turns.stalled == 0
    assert turns.sum_s == pytest.approx(STALL_S * 4)


async def until(condition: Callable[[], bool], pause_s: float = 0.001) -> None:
    for _ in range(round(PATIENCE_S / pause_s)):
        if condition():
            return
        await asyncio.sleep(pause_s)
    raise TimeoutError


def stall_until_seen(watchdog: LoopWatchdog, clock: Clock) -> None:
    clock.stall()
    limit_s = time.monotonic() + PATIENCE_S
    while not watchdog._seen and time.monotonic() < limit_s:
        time.sleep(0.001)


def test_the_line_names_what_held_the_loop_and_lines_are_few(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    async def main(loop: TurnLoop) -> None:
        watchdog = LoopWatchdog(loop, STALL_S)
        watchdog.started()
        await asyncio.sleep(0)
        for _ in range(3):
            stall_until_seen(watchdog, clock)
            await until(lambda: not (watchdog._seen or loop.turns.stalls))
        watchdog.close()

    with caplog.at_level(logging.WARNING):
        turns = run(main).turns
    assert turns.stalled == 3
    (line,) = [record.getMessage() for record in caplog.records if "event loop held" in record.getMessage()]
    assert line.startswith("event loop held for 40 ms by test_loop_turns.py:")
    assert " stall_until_seen" in line


def test_what_holds_the_loop_while_the_process_starts_is_counted_and_not_told(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    async def main(loop: TurnLoop) -> None:
        watchdog = LoopWatchdog(loop, STALL_S)
        stall_until_seen(watchdog, clock)
        await until(lambda: not (watchdog._seen or loop.turns.stalls))
        watchdog.started()
        stall_until_seen(watchdog, clock)  # the turn that says so is the last of the start
        await until(lambda: not (watchdog._seen or loop.turns.stalls))
        watchdog.close()

    with caplog.at_level(logging.WARNING):
        turns = run(main).turns
    assert turns.stalled == 2
    assert "event loop held" not in caplog.text


def test_native_code_that_cannot_be_looked_into_is_told_of_too(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    async def main(loop: TurnLoop) -> None:
        watchdog = LoopWatchdog(loop, STALL_S)
        watchdog.started()
        loop.turns.stalls.append((loop.turns.number + 1, 0.5))
        await until(lambda: not loop.turns.stalls)
        watchdog.close()

    with caplog.at_level(logging.WARNING):
        run(main)
    assert (
        "event loop held for 500 ms, by code that could not be sampled (a C extension, or no free CPU)" in caplog.text
    )


def test_a_turn_that_does_not_end_is_told_of(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr("penstock.runtime.loop_watchdog.HUNG_S", STALL_S)
    told = threading.Event()
    monkeypatch.setattr("penstock.runtime.loop_watchdog.log.error", lambda *_: told.set())

    async def main(loop: TurnLoop) -> None:
        watchdog = LoopWatchdog(loop, STALL_S)
        clock.stall()
        assert told.wait(PATIENCE_S)
        watchdog.close()

    run(main)
