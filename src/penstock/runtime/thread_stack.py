"""Where another thread is in its code, read from a dump by faulthandler.

Invariant: no frame object of a running thread is touched. Python 3.11.2 has crashed while `f_back` of such a frame was
read. faulthandler walks the stacks in C, and holds the interpreter while it does.
"""

from __future__ import annotations

import faulthandler
import os
import re
from typing import NamedTuple

MOST_BYTES = 1 << 20
_THREAD = re.compile(rb"^(?:Thread|Current thread) 0x([0-9a-f]+)\b")
_FRAME = re.compile(rb'^  File "(.*)", line (\d+) in (.*)$')


class Place(NamedTuple):
    path: str
    line: int
    function: str


class ThreadStack:
    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._fd = os.memfd_create("penstock-stack", os.MFD_CLOEXEC)

    def close(self) -> None:
        os.close(self._fd)

    def read(self) -> list[Place]:
        """The innermost place first; empty if the thread runs no Python code."""
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        faulthandler.dump_traceback(self._fd, all_threads=True)
        return places_of(os.pread(self._fd, MOST_BYTES, 0), self._thread_id)


def places_of(dump: bytes, thread_id: int) -> list[Place]:
    places: list[Place] = []
    is_wanted = False
    for line in dump.splitlines():
        if begins := _THREAD.match(line):
            is_wanted = int(begins[1], 16) == thread_id
        elif is_wanted and (frame := _FRAME.match(line)):
            places.append(Place(os.fsdecode(frame[1]), int(frame[2]), frame[3].decode("utf-8", "replace")))
    return places
