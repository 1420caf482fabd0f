"""Progress that is committed beside the query: the newest of a second, and the last one before the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

import pytest
from fake_cluster import FakeCluster, FakeTime

from penstock.model.topic_partition import TopicPartition
from penstock.spark.source import background_progress
from penstock.spark.source.background_progress import BackgroundProgress
from penstock.spark.source.group_progress import GroupProgress
from penstock.spark.source.termination import RUNTIME, is_sparks
from penstock.wire_client.requests.errors import BrokerUnreachable

LONG_S = 60.0


def at(offset: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", 0): offset}


class Commits:
    """A coordinator that answers when it is told to."""

    def __init__(self) -> None:
        self.cluster, self.time = FakeCluster(), FakeTime()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_asked = threading.Event()
        self.cluster.before_commit = self._wait
        self.progress = BackgroundProgress(GroupProgress(self.cluster, self.time.clock), self.time.clock)

    def _wait(self) -> None:
        self.is_asked.set()
        assert self.may_answer.wait(LONG_S)

    def settled(self) -> list[int]:
        """The committed offsets, when no commit is under way."""
        done = self.progress._changed
        with done:
            assert done.wait_for(lambda: not self.progress._is_sending, LONG_S)
        return self.offsets

    @property
    def offsets(self) -> list[int]:
        return [offset for _, positions in self.cluster.commits for offset in positions.values()]


@pytest.fixture
def commits() -> Commits:
    return Commits()


def until(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(round(LONG_S / 0.01)):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("it did not happen")


def test_the_query_does_not_wait_for_a_silent_coordinator(commits: Commits) -> None:
    commits.may_answer.clear()
    commits.progress.report("g", at(1))
    assert commits.is_asked.wait(LONG_S)
    commits.progress.report("g", at(2))
    assert commits.offsets == []
    commits.may_answer.set()
    commits.progress.flush()
    assert commits.offsets == [1, 2]


def test_one_commit_a_second_has_the_newest(commits: Commits) -> None:
    commits.progress.report("g", at(1))
    until(lambda: commits.offsets == [1])
    for offset in range(2, 9):
        commits.progress.report("g", at(offset))
    assert commits.settled() == [1], "the second is not over"
    commits.time.sleep(1.1)
    commits.progress.report("g", at(9))
    until(lambda: commits.offsets == [1, 9])


def test_the_last_one_of_a_run_is_waited_for(commits: Commits) -> None:
    for offset in range(1, 6):
        commits.progress.report("g", at(offset))
    commits.progress.report("g", at(6), is_last=True)
    assert commits.offsets[-1] == 6
    assert len(commits.offsets) <= 2
    commits.progress.report("g", at(6), is_last=True)
    assert commits.offsets.count(6) == 1


def test_nothing_left_is_nothing_to_wait_for(commits: Commits) -> None:
    commits.progress.flush()
    commits.progress.report("g", at(1), is_last=True)
    commits.progress.flush()
    assert commits.offsets == [1]


def test_end_of_the_process_does_not_wait_long(commits: Commits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_progress, "ENDING_S", 0.05)
    commits.may_answer.clear()
    commits.progress.report("g", at(1))
    commits.progress.flush()
    assert commits.offsets == []
    commits.may_answer.set()
    until(lambda: commits.offsets == [1])


def test_failure_is_forgotten_for_the_last_one(commits: Commits, caplog: pytest.LogCaptureFixture) -> None:
    commits.cluster.refusal = BrokerUnreachable("nobody at a:1")
    commits.progress.report("g", at(1))
    until(lambda: "nobody at a:1" in caplog.text)
    commits.cluster.refusal = None
    commits.time.sleep(2)
    commits.progress.report("g", at(2))
    commits.progress.flush()
    assert commits.offsets == [], "not again within thirty seconds"
    commits.progress.report("g", at(3), is_last=True)
    assert commits.offsets == [3]


def test_failed_commit_is_repeated_while_the_query_is_idle(commits: Commits) -> None:
    commits.cluster.refusal = BrokerUnreachable("nobody at a:1")
    commits.progress.report("g", at(1))
    commits.settled()
    commits.cluster.refusal = None
    commits.time.sleep(31)
    commits.progress.report("g", at(1))
    until(lambda: commits.offsets == [1])


def test_thread_that_died_is_replaced(commits: Commits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def broken(group: str, positions: Mapping[TopicPartition, int], *, is_last: bool = False) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(commits.progress._progress, "report", broken)
        commits.progress.report("g", at(1))
        until(lambda: commits.progress._thread is not None and not commits.progress._thread.is_alive())
    commits.progress.report("g", at(2), is_last=True)
    assert commits.offsets == [2]


# -- the end of the process -------------------------------------------------------------------

ENDING = """
import sys, time
from penstock.spark.source.termination import before_termination
before_termination(lambda: print("last words", flush=True))
print("ready", flush=True)
sys.stdin.read()
"""


def test_signal_of_spark_is_preceded_by_the_last_words() -> None:
    child = subprocess.Popen([sys.executable, "-c", ENDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGTERM)
        assert child.stdout.read() == "last words\n"
        assert child.wait(LONG_S) == -signal.SIGTERM


def test_only_processes_of_spark_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUNTIME, raising=False)
    assert not is_sparks()
    monkeypatch.setenv(RUNTIME, "PYTHON_WORKER")
    assert is_sparks()
