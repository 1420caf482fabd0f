"""Which small files are merged: neighbours of one partition, so that rows keep their order.

A table that grows is compacted again and again. A file is merged with younger ones only if those are about as large
together, so each row is rewritten a few times, not in every run. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from penstock.tables.actions import AddFile

FULL = 0.75
"""A file of at least this share of the target size is left alone."""
SIMILAR = 2
"""A file is merged with all younger ones if it is at most this many times as large as they are together."""
FAN_IN = 4
"""The number of files that makes a merge worthwhile."""

_Values = tuple[tuple[str, str], ...]


def groups(files: Iterable[AddFile], target_bytes: int, *, is_thorough: bool = False) -> list[list[AddFile]]:
    """Each group in order. is_thorough: as few files as possible, at any cost."""
    make = _thorough if is_thorough else _lazy
    found = []
    for _, same in groupby(sorted(files, key=_place), key=lambda file: _place(file)[0]):
        made = make(list(same), target_bytes)
        found += [group for group in made if len(group) >= (2 if is_thorough else FAN_IN)]
    return found


def _place(file: AddFile) -> tuple[_Values, int, str]:
    """Partition and age. A null is not a string: it sorts with the empty one, which does not occur."""
    values = tuple(sorted((name, value or "") for name, value in file.partition_values.items()))
    return values, file.modification_time, file.path.rpartition("/")[2]


def _thorough(files: list[AddFile], target_bytes: int) -> list[list[AddFile]]:
    made: list[list[AddFile]] = [[]]
    for file in files:
        if file.size > FULL * target_bytes:
            made += [[], []]
            continue
        if _size(made[-1]) + file.size > target_bytes:
            made.append([])
        made[-1].append(file)
    return made


def _lazy(files: list[AddFile], target_bytes: int) -> list[list[AddFile]]:
    """Groups files, beginning with the youngest."""
    made: list[list[AddFile]] = [[]]
    for file in reversed(files):
        younger = _size(made[-1])
        is_full = file.size > FULL * target_bytes or younger + file.size > target_bytes
        if made[-1] and (is_full or file.size > SIMILAR * younger):
            made.append([])
        made[-1].insert(0, file)
    return made


def _size(files: Iterable[AddFile]) -> int:
    return sum(file.size for file in files)
