"""The bytes of one simulated file: as seen by readers, as stored on the platter, and the changes in between.

Must not know: names, processes, when the power fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

SECTOR = 512


class Content:
    __slots__ = ("_settled", "changes", "data", "rewritten", "stable")

    def __init__(self) -> None:
        self.data = bytearray()
        self.stable = bytearray()
        self.changes: list[tuple[int, bytes | None]] = []  # (position, bytes) or (new size, None)
        self.rewritten = 0
        """Grows when stable bytes change, but not when bytes are appended."""
        self._settled = 0

    @property
    def mark(self) -> int:
        """For `sync`: everything done to the file so far."""
        return self._settled + len(self.changes)

    def change(self, position: int, data: bytes | None) -> None:
        self.changes.append((position, data))
        apply(self.data, position, data)

    def sync(self, mark: int | None = None) -> None:
        """Make changes before `mark` stable, or all."""
        for position, data in self._take(mark):
            self._keep(position, data)

    def settle(self, random: Random, mark: int | None = None) -> None:
        """Decide which changes reached the platter; the others are lost."""
        changes = self._take(mark)
        mode = random.randrange(4)
        count = random.randint(0, len(changes)) if mode == 0 else len(changes)
        for position, data in changes[:count]:
            if mode < 2:
                self._keep(position, data)
                continue
            fate = random.randrange(5)
            if fate == 1 and data:
                keep = random.randrange(len(data))
                if random.random() < 0.5:
                    keep = max(0, (position + keep) // SECTOR * SECTOR - position)
                self._keep(position, data[:keep])
            elif fate == 2 and data:
                self._scatter(position, data, random)
            elif fate:
                self._keep(position, data)

    def _scatter(self, position: int, data: bytes, random: Random) -> None:
        """Keep any of its sectors, in any order; a growing file may have grown without the bytes."""
        if random.random() < 0.5 and len(self.stable) < position + len(data):
            self._keep(position + len(data), b"")
        end = position + len(data)
        starts = [position, *range((position // SECTOR + 1) * SECTOR, end, SECTOR)]
        for start, after in zip(starts, [*starts[1:], end], strict=True):
            if random.random() < 0.5:
                self._keep(start, data[start - position : after - position])

    def flip_bit(self, position: int, bit: int) -> None:
        self.data[position] ^= 1 << bit
        if position < len(self.stable):
            self.stable[position] ^= 1 << bit
            self.rewritten += 1

    def _take(self, mark: int | None) -> Sequence[tuple[int, bytes | None]]:
        count = len(self.changes) if mark is None else max(0, mark - self._settled)
        taken = self.changes[:count]
        del self.changes[:count]
        self._settled += len(taken)
        return taken

    def _keep(self, position: int, data: bytes | None) -> None:
        if position < len(self.stable):
            self.rewritten += 1
        apply(self.stable, position, data)


def apply(target: bytearray, position: int, data: bytes | None) -> None:
    if len(target) < position:
        target += bytes(position - len(target))
    if data is None:
        del target[position:]
    elif data:
        target[position : position + len(data)] = data
