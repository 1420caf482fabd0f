"""Stacks of other threads, while these threads run and end."""

from __future__ import annotations

import threading
import time

from penstock.runtime.thread_stack import Place, ThreadStack, places_of

DUMP = b"""Thread 0x00007f32a1ffb6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/srv/a b/job.py", line 7 in run

Thread 0x00000000000000ff [worker] (most recent call first):
  <no Python frame>

Current thread 0x00007f32a2d75740 (most recent call first):
  File "/srv/main.py", line 3 in <module>
  ...
"""


def test_the_frames_of_one_thread_are_cut_from_a_dump() -> None:
    wait, run = places_of(DUMP, 0x7F32A1FFB6C0)
    assert wait == Place("/usr/lib/python3.11/threading.py", 324, "wait")
    assert run == Place("/srv/a b/job.py", 7, "run")
    assert places_of(DUMP, 0x7F32A2D75740) == [Place("/srv/main.py", 3, "<module>")]
    assert places_of(DUMP, 0xFF) == []
    assert places_of(DUMP, 0x1) == []


def test_the_innermost_place_of_a_waiting_thread_comes_first() -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def inner() -> None:
        has_begun.set()
        may_end.wait()

    def outer() -> None:
        inner()

    thread = threading.Thread(target=outer)
    thread.start()
    stack = ThreadStack(thread.ident or 0)
    try:
        assert has_begun.wait(10)
        functions = [place.function for place in stack.read()]
        assert functions.index("inner") + 1 == functions.index("outer")
    finally:
        may_end.set()
        thread.join()
    assert stack.read() == []
    stack.close()


def test_reading_while_the_thread_runs_and_returns() -> None:
    def down(depth: int) -> int:
        return down(depth - 1) if depth else 0

    is_over = threading.Event()
    stack = ThreadStack(threading.get_ident())
    seen: set[str] = set()

    def look() -> None:
        for _ in range(500):
            seen.update(place.function for place in stack.read())
        is_over.set()

    reader = threading.Thread(target=look)
    reader.start()
    limit_s = time.monotonic() + 60
    while not is_over.is_set() and time.monotonic() < limit_s:
        down(20)
    reader.join()
    stack.close()
    assert "down" in seen
