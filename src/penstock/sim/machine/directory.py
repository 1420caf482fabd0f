"""The names in one simulated directory: as seen by readers, as stored on the platter, and the changes in between.

A directory is an object independent of its name: after a rename it keeps its content, stable or not.
Must not know: paths, processes, when the power fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TypeAlias

from penstock.sim.machine.content import Content

Entry: TypeAlias = "Content | DiskDirectory"
NameChange: TypeAlias = "tuple[DiskDirectory, str, Entry | None]"  # None: the name is removed


class DiskDirectory:
    __slots__ = ("_changes", "_settled", "names", "stable", "version")

    def __init__(self) -> None:
        self.names: dict[str, Entry] = {}
        self.stable: dict[str, Entry] = {}
        self.version = 0
        """Grows when a stable name changes."""
        self._changes: list[tuple[NameChange, ...]] = []  # each is atomic
        self._settled = 0

    @property
    def mark(self) -> int:
        """For `sync`: every change of names so far."""
        return self._settled + len(self._changes)

    def change(self, *parts: NameChange) -> None:
        """Atomic; stable with this directory."""
        self._changes.append(parts)
        for directory, name, entry in parts:
            _put(directory.names, name, entry)

    def sync(self, mark: int | None = None) -> None:
        count = len(self._changes) if mark is None else max(0, mark - self._settled)
        for parts in self._changes[:count]:
            _keep(parts)
        self._forget(count)

    def settle(self, random: Random) -> None:
        """Decide what reached the platter, here and in every remaining directory; the rest is gone."""
        mode = random.randrange(3) if self._changes else 0
        count = random.randint(0, len(self._changes)) if mode == 0 else len(self._changes)
        for parts in self._changes[:count]:
            if mode < 2 or random.random() < 0.5:
                _keep(parts)
        self._forget(len(self._changes))
        for name in sorted(self.stable):
            entry = self.stable[name]
            entry.settle(random)
            if isinstance(entry, Content):
                entry.data = bytearray(entry.stable)
        self.names = dict(self.stable)

    def contents(self) -> Iterator[Content]:
        """The contents of all files here and below."""
        for entry in self.names.values():
            if isinstance(entry, Content):
                yield entry
            else:
                yield from entry.contents()

    def _forget(self, count: int) -> None:
        self._settled += count
        del self._changes[:count]


def _keep(parts: tuple[NameChange, ...]) -> None:
    for directory, name, entry in parts:
        _put(directory.stable, name, entry)
        directory.version += 1


def _put(names: dict[str, Entry], name: str, entry: Entry | None) -> None:
    if entry is None:
        names.pop(name, None)
    else:
        names[name] = entry
