"""The event loop's thread asks for short slices, for itself alone."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from penstock.runtime import scheduling
from penstock.runtime.scheduling import SLICE_NS, ask_for_short_slices

NICE = 3


def of_own_thread() -> tuple[bool, int, int, str]:
    """Asked in a thread, so that the one that runs the tests keeps what it has."""
    seen: list[tuple[bool, int, int, str]] = []

    def ask() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
        is_granted = ask_for_short_slices()
        facts = Path("/proc/thread-self/sched")
        seen.append(
            (
                is_granted,
                os.sched_getscheduler(0),
                os.getpriority(os.PRIO_PROCESS, 0),
                facts.read_text() if facts.exists() else "",
            )
        )

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return seen[0]


def test_the_thread_keeps_its_priority_and_its_children_get_ordinary_slices() -> None:
    is_granted, policy, nice, facts = of_own_thread()
    assert nice == NICE
    assert policy == (os.SCHED_OTHER | os.SCHED_RESET_ON_FORK if is_granted else os.SCHED_OTHER)
    slices = [line.split(":")[1].strip() for line in facts.splitlines() if line.startswith("se.slice ")]
    if is_granted and slices:  # kernels from 6.12 on say so
        assert slices == [str(SLICE_NS)]


def test_a_machine_without_the_call_goes_on_as_it_is(monkeypatch) -> None:
    monkeypatch.setattr(scheduling, "_SCHED_SETATTR", {})
    is_granted, policy, nice, _ = of_own_thread()
    assert (is_granted, policy, nice) == (False, os.SCHED_OTHER, NICE)
