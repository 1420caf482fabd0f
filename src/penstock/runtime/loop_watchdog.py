"""Reports which code blocks the event loop: a thread samples the loop's stack during a long turn and logs one line.

    event loop held for 312 ms by storage/log_files.py:184 _drop_from < storage/log_files.py:169 begin_anew < ...

The innermost frame comes first. The thread samples a few times during a turn and names the most frequent place. A turn
that held the interpreter itself (native code) cannot be sampled, and the line says so. At most one line in `QUIET_S`.

A starting process imports modules and opens files, and no client waits for it yet. So no stall is reported before
`started`, except a turn that does not end. All stalls are counted.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from math import inf
from time import perf_counter

import penstock
from penstock.runtime.loop import TurnLoop
from penstock.runtime.thread_stack import Place, ThreadStack

log = logging.getLogger(__name__)

QUIET_S = 10.0
HUNG_S = 5.0  # a longer turn is reported before it ends
DEPTH = 6
UNNAMED = ", by code that could not be sampled (a C extension, or no free CPU)"
_PACKAGE = os.path.dirname(os.path.abspath(penstock.__file__)) + os.sep
_SELF = __file__.removesuffix("_watchdog.py") + ".py"


class LoopWatchdog:
    def __init__(self, loop: TurnLoop, stall_s: float) -> None:
        """Created on the loop's own thread."""
        self._turns = loop.turns
        self._turns.stall_s = stall_s
        self._stall_s = stall_s
        self._stack = ThreadStack(threading.get_ident())
        self._is_stopped = threading.Event()
        self._seen: dict[int, Counter[str]] = {}  # by turn
        self._told_hung = -1
        self._told_s = -QUIET_S
        self._starting_until: float = inf  # a turn's number
        self._untold = 0
        self._thread = threading.Thread(target=self._run, name="penstock-watchdog", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """Later turns are reported. Called on the loop."""
        self._starting_until = self._turns.number

    def close(self) -> None:
        self._is_stopped.set()
        self._thread.join()
        self._stack.close()

    def _run(self) -> None:
        while not self._is_stopped.wait(self._look()):
            pass

    def _look(self) -> float:
        """Return the seconds until the next look."""
        turns = self._turns
        began_s, number = turns.began_s, turns.number
        while turns.stalls:
            self._tell(*turns.stalls.popleft())
        for gone in [one for one in self._seen if one < number]:
            del self._seen[gone]
        if not began_s:
            return self._stall_s / 2
        taken_s = perf_counter() - began_s
        if taken_s < self._stall_s:
            return self._stall_s - taken_s if taken_s > self._stall_s / 2 else self._stall_s / 2
        places = self._stack.read()
        if places and turns.number == number:
            self._seen.setdefault(number, Counter())[_in_words(places)] += 1
        if taken_s > HUNG_S and self._told_hung != number:
            self._told_hung = number
            log.error("event loop held for %.1f s so far%s", taken_s, self._place_of(number))
        return max(self._stall_s / 4, taken_s / 20)

    def _tell(self, number: int, seconds: float) -> None:
        if number <= self._starting_until:
            return
        now = perf_counter()
        if now - self._told_s < QUIET_S:
            self._untold += 1
            return
        more = f"; {self._untold} more since the last line like this" if self._untold else ""
        self._told_s, self._untold = now, 0
        log.warning("event loop held for %.0f ms%s%s", seconds * 1000, self._place_of(number), more)

    def _place_of(self, number: int) -> str:
        seen = self._seen.get(number)
        return f" by {seen.most_common(1)[0][0]}" if seen else UNNAMED


def _in_words(places: list[Place]) -> str:
    """The innermost place of any code, and the places in this package that led there."""
    words: list[str] = []
    for at, (path, line, function) in enumerate(places):
        is_ours = path.startswith(_PACKAGE) and path != _SELF
        if is_ours or at == 0:
            name = path.removeprefix(_PACKAGE) if is_ours else os.path.basename(path)
            words.append(f"{name}:{line} {function}")
    return " < ".join(words[:DEPTH])
