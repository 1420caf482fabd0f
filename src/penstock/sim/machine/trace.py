"""The events of a run, in order: one line per event, the same bytes for the same seed.

A line holds the virtual time in microseconds, the source, and the event. The digest covers every line; the text keeps
the last ones, so its size is bounded. Nothing that differs from run to run may appear here: no object addresses, no
real times, nothing from the order of a set.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

KEPT_LINES = 200_000
HASHED_TOGETHER = 256


class Trace:
    def __init__(self, seed: int, time: Callable[[], float], kept_lines: int = KEPT_LINES) -> None:
        self._time = time
        self._hash = hashlib.blake2b(digest_size=16)
        self._unhashed: list[str] = []
        self._lines: deque[str] = deque(maxlen=kept_lines)
        self.count = 0
        self.note("world", f"seed {seed}")

    def note(self, who: str, what: str) -> None:
        line = f"{round(self._time() * 1e6):>13} {who} {what}"
        self._lines.append(line)
        self._unhashed.append(line)
        if len(self._unhashed) == HASHED_TOGETHER:
            self._hash_lines()
        self.count += 1

    def remark(self, who: str, what: str) -> None:
        """For people only; not part of the digest."""
        self._lines.append(f"{round(self._time() * 1e6):>13} {who} {what}")

    @property
    def digest(self) -> str:
        """The digest of all lines, including lines that are no longer kept."""
        self._hash_lines()
        return self._hash.hexdigest()

    def _hash_lines(self) -> None:
        self._hash.update("".join(line + "\n" for line in self._unhashed).encode())
        self._unhashed.clear()

    def text(self) -> str:
        """The kept lines, oldest first."""
        return "".join(line + "\n" for line in self._lines)

    def tail(self, count: int) -> list[str]:
        return list(self._lines)[-count:]
