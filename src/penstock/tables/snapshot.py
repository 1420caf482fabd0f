"""The files of a version, and those that versions added: for readers that divide the work among processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.tables.actions import AddFile
from penstock.tables.errors import NoTable
from penstock.tables.log import TableLog
from penstock.tables.schema import ArrowSchema, from_delta
from penstock.tables.state import TableState


class Snapshot(NamedTuple):
    version: int
    schema: ArrowSchema
    files: tuple[AddFile, ...]


class Additions(NamedTuple):
    """What one version added. Files that compaction merged are not new."""

    version: int
    files: tuple[AddFile, ...]
    is_replacing: bool
    """It also changed or removed rows that had been there."""


def snapshot_of(state: TableState) -> Snapshot:
    return Snapshot(state.version, from_delta(state.described.schema_string), tuple(state.files.values()))


def additions(log: TableLog, after: int, until: int) -> Iterator[Additions]:
    """Of the versions after `after` up to `until`. Raises NoTable if one of them has expired."""
    for version in range(after + 1, until + 1):
        lines = log.read(version)
        if lines is None:
            raise NoTable(f"{log.table}: version {version} has expired")
        files = tuple(line.add for line in lines if line.add is not None and line.add.data_change)
        is_replacing = any(line.remove is not None and line.remove.data_change for line in lines)
        if files or is_replacing:
            yield Additions(version, files, is_replacing)
