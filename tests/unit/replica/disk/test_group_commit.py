"""Group commit with a flusher that finishes when the test says so."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import pytest

from penstock.ports.disk import File
from penstock.storage.durability import Flush, FlushPutOff, Position
from penstock.storage.group_commit import IDLE, PUT_OFF_S, GroupCommit


class ManualFlusher:
    def __init__(self) -> None:
        self.started: list[tuple[list[File], list[str], Callable[[OSError | None], None]]] = []

    def flush(
        self,
        files: Sequence[File],
        directories: Sequence[str],
        on_stable: Callable[[OSError | None], None],
    ) -> None:
        self.started.append((list(files), list(directories), on_stable))


class FakeLog:
    def __init__(self, name: str, files: int = 1) -> None:
        self.flush_state = IDLE
        self.name = name
        self.files = files
        self.ended: list[OSError | None] = []
        self.has_work = True
        self.has_descriptor = True

    def begin_flush(self) -> Flush | None:
        if not self.has_descriptor:
            raise FlushPutOff(OSError(errno.EMFILE, "Too many open files"))
        if not self.has_work:
            return None
        return Flush([object()] * self.files, [self.name], Position(0, 0, 0), 0)  # type: ignore[list-item]

    def put_off_flush(self, ticket: Flush) -> None:
        self.has_descriptor = False

    def end_flush(self, flush: Flush, error: OSError | None) -> None:
        self.ended.append(error)


class Loop:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], None], /) -> None:
        self.later.append(callback)

    def wait(self) -> None:
        """A flush that was put off is tried again."""
        self.now_s += PUT_OFF_S
        later, self.later = self.later, []
        self.soon += later
        self.settle()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def settle(self) -> None:
        while self.soon:
            self.turn()


def make() -> tuple[Loop, ManualFlusher, GroupCommit]:
    loop, flusher = Loop(), ManualFlusher()
    return loop, flusher, GroupCommit(loop.call_soon, flusher)


def test_what_is_dirty_in_one_turn_is_one_flush_a_log() -> None:
    loop, flusher, commit = make()
    one, other = FakeLog("one", files=2), FakeLog("other")
    for log in (one, other, one, one):
        commit.request(log)
    assert not flusher.started
    loop.settle()
    assert [(len(files), directories) for files, directories, _ in flusher.started] == [(2, ["one"]), (1, ["other"])]
    flusher.started[0][2](None)
    assert one.ended == [None]
    assert other.ended == []


def test_what_arrives_in_the_turn_after_the_first_comes_along() -> None:
    loop, flusher, commit = make()
    one, other = FakeLog("one"), FakeLog("other")
    commit.request(one)
    loop.turn()
    assert not flusher.started
    commit.request(other)
    loop.settle()
    assert [directories for _, directories, _ in flusher.started] == [["one"], ["other"]]
    assert commit.flushes == 2


def test_requests_during_a_flush_are_one_more_flush() -> None:
    loop, flusher, commit = make()
    log = FakeLog("log")
    commit.request(log)
    loop.settle()
    for _ in range(10):
        commit.request(log)
    loop.settle()
    assert len(flusher.started) == 1
    flusher.started[0][2](None)
    loop.settle()
    assert len(flusher.started) == 2
    flusher.started[1][2](None)
    loop.settle()
    assert len(flusher.started) == 2
    assert log.flush_state == IDLE


def test_a_slow_log_does_not_hold_another() -> None:
    loop, flusher, commit = make()
    slow, quick = FakeLog("slow"), FakeLog("quick")
    commit.request(slow)
    loop.settle()
    commit.request(quick)
    loop.settle()
    assert len(flusher.started) == 2
    flusher.started[1][2](None)
    assert quick.ended == [None]
    assert slow.ended == []


def test_an_error_goes_to_the_log_whose_file_it_was() -> None:
    loop, flusher, commit = make()
    good, bad = FakeLog("good"), FakeLog("bad", files=3)
    commit.request(good)
    commit.request(bad)
    loop.settle()
    error = OSError(5, "Input/output error")
    flusher.started[0][2](None)
    flusher.started[1][2](error)
    assert good.ended == [None]
    assert bad.ended == [error]


def test_nothing_to_flush_is_no_flush() -> None:
    loop, flusher, commit = make()
    log = FakeLog("log")
    log.has_work = False
    commit.request(log)
    loop.settle()
    assert not flusher.started
    assert log.flush_state == IDLE


def test_when_idle_waits_for_dirty_and_flushing_logs() -> None:
    loop, flusher, commit = make()
    log = FakeLog("log")
    told: list[str] = []
    commit.when_idle(lambda: told.append("at once"))
    assert told == ["at once"]
    commit.request(log)
    commit.when_idle(lambda: told.append("later"))
    loop.settle()
    commit.request(log)
    flusher.started[0][2](None)
    assert told == ["at once"]
    loop.settle()
    flusher.started[1][2](None)
    assert told == ["at once", "later"]


@pytest.mark.parametrize("fails_at", ["begin", "sync"])
def test_a_flush_that_is_put_off_does_not_wait_for_the_disk(fails_at: str) -> None:
    loop, flusher = Loop(), ManualFlusher()
    commit = GroupCommit(loop.call_soon, flusher, loop)
    log = FakeLog("new")
    log.has_descriptor = fails_at == "sync"
    commit.request(log)
    loop.settle()
    if fails_at == "sync":
        flusher.started.pop()[2](OSError(errno.EMFILE, "Too many open files"))
    told: list[str] = []
    commit.when_idle(lambda: told.append("idle"))
    for _ in range(10):
        assert commit.waiting_since_s() is None
        loop.wait()
    assert not told, "it is still to be made stable"
    log.has_descriptor = True
    loop.wait()
    assert commit.waiting_since_s() == loop.now_s, "it waits for the disk from now on"
    flusher.started.pop()[2](None)
    assert log.ended == [None]
    assert told == ["idle"]


def test_a_flush_that_ended_is_known_by_how_long_it_took() -> None:
    loop, flusher = Loop(), ManualFlusher()
    commit = GroupCommit(loop.call_soon, flusher, loop)
    for number, took_s in enumerate((30.0, 0.01)):
        commit.request(FakeLog(f"{number}"))
        loop.settle()
        loop.now_s += took_s
        flusher.started.pop()[2](None)
    assert commit.last_ended_s() == 30.01
    assert commit.last_ended_s(0.01) == 30.01
    assert commit.last_ended_s(1.0) == 30.0
    assert commit.last_ended_s(30.0) == 30.0
    assert commit.last_ended_s(60.0) == 0.0
    assert commit.last_ended_s(1e9) == 0.0
