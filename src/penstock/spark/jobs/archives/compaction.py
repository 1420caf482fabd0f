"""Merging of an archive's small files into larger ones.

Only consecutive files of the same partition and day are merged, so that a merged file is also in the order of offsets.
While an archive grows, a file is merged with younger ones only if those are about as large together. So each record is
rewritten a few times at most (each time its file grows by half), not in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from penstock.spark.jobs.archives.manifest import Archive, ArchivedFile, Swap
from penstock.spark.jobs.archives.reading import read_in_order
from penstock.spark.jobs.archives.writing import FILE_SCHEMA, StagedWriter
from penstock.spark.jobs.errors import JobFailed

FULL = 0.75
"""A file of at least this share of the target size is left alone."""
SIMILAR = 2
"""A file is merged with all younger ones if it is at most this many times as large as they are together."""


def merges(
    files: Iterable[ArchivedFile], max_file_bytes: int, fan_in: int = 2, *, is_thorough: bool = False
) -> list[list[ArchivedFile]]:
    """Groups of files to be merged, each group in order.

    fan_in: the number of files that makes a merge worthwhile. is_thorough: as few files as possible, at any cost.
    """
    found = []
    group_up = _thorough if is_thorough else _lazy
    for _, same in groupby(sorted(files, key=_place), key=lambda file: _place(file)[:3]):
        groups = group_up(list(same), max_file_bytes)
        found += [group for group in groups if len(group) >= (2 if is_thorough else fan_in)]
    return found


def _place(file: ArchivedFile) -> tuple[str, str, int, int]:
    return file.topic, file.date, file.partition, file.first


def _thorough(files: list[ArchivedFile], max_file_bytes: int) -> list[list[ArchivedFile]]:
    groups: list[list[ArchivedFile]] = [[]]
    for file in files:
        if _size(groups[-1]) + file.size_bytes > max_file_bytes:
            groups.append([])
        groups[-1].append(file)
    return groups


def _lazy(files: list[ArchivedFile], max_file_bytes: int) -> list[list[ArchivedFile]]:
    """Groups files, beginning with the youngest."""
    groups: list[list[ArchivedFile]] = [[]]
    for file in reversed(files):
        younger = _size(groups[-1])
        is_full = file.size_bytes > FULL * max_file_bytes or younger + file.size_bytes > max_file_bytes
        if groups[-1] and (is_full or file.size_bytes > SIMILAR * younger):
            groups.append([])
        groups[-1].insert(0, file)
    return groups


def _size(files: Iterable[ArchivedFile]) -> int:
    return sum(file.size_bytes for file in files)


def compact(
    archive: Archive,
    max_file_bytes: int,
    fan_in: int = 2,
    *,
    is_thorough: bool = False,
    watch: Callable[[list[ArchivedFile], ArchivedFile], None] = lambda old, new: None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Returns by how many the number of files was reduced. Each merge is a separate swap, so it may stop after any."""
    fewer = 0
    for group in merges(archive.load().files, max_file_bytes, fan_in, is_thorough=is_thorough):
        if is_stopping():
            break
        merged = _merge(archive, group)
        watch(group, merged)
        fewer += len(group) - 1
    return fewer


def _merge(archive: Archive, group: list[ArchivedFile]) -> ArchivedFile:
    archive.staging.mkdir(parents=True, exist_ok=True)
    writer = StagedWriter(archive.staging, group[0].topic_partition, group[0].date)
    try:
        for batch in read_in_order(archive.directory, group, 0, group[-1].last + 1, FILE_SCHEMA.names):
            writer.add(batch)
        staged = writer.close()
        _check(archive, group, staged.file)
    except BaseException:
        writer.discard()
        raise
    archive.swap(Swap(staged, tuple(file.path for file in group)))
    return staged.file


def _check(archive: Archive, group: list[ArchivedFile], merged: ArchivedFile) -> None:
    """Checks a merged file before the originals are replaced."""
    wanted = (sum(file.rows for file in group), group[0].first, max(file.last for file in group))
    found = (merged.rows, merged.first, merged.last)
    if found != wanted:
        raise JobFailed(
            f"{len(group)} files of {archive.directory} are not merged, the first is {group[0].path}: by the manifest "
            f"they have {wanted[0]} records from {wanted[1]} to {wanted[2]}, and {found[0]} from {found[1]} to "
            f"{found[2]} were read. Nothing was changed"
        )
