"""Old versions of a pipeline's tables expire, but not those that a flow has yet to read.

Compaction is done by the commits themselves (`spark.tables.upkeep`). Expiry needs the checkpoints of the flows that
read a table, so runs do it, once in a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from penstock.spark.pipeline.checkpoints import flow_checkpoints
from penstock.spark.pipeline.locations import TableLocations
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.tables import is_open
from penstock.tables import Table, TableError

logger = logging.getLogger(__name__)

KEEP = timedelta(hours=1)
"""How long a reader may read a version that was replaced. Runs come every few seconds."""
EVERY_S = 600.0


class TableSize(NamedTuple):
    version: int
    files: int
    size_bytes: int


class TableUpkeep:
    """`clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = 0.0

    def after_run(self, project: PipelineProject) -> None:
        if self._clock() >= self._due:
            expire_tables(project)
            self._due = self._clock() + EVERY_S


def open_tables(project: PipelineProject) -> Iterator[tuple[str, Path]]:
    """Those in the open format that a run has recorded, with their directories."""
    locations = TableLocations(project)
    for name in locations.tables():
        directory = locations.directory(name.split("."))
        if directory is not None and is_open(directory):
            yield name, directory


def table_sizes(project: PipelineProject) -> dict[str, TableSize]:
    """Without those that a reset is deleting just now."""
    found = {}
    for name, directory in open_tables(project):
        with suppress(TableError):
            table = Table.open(directory)
            found[name] = TableSize(table.version, table.files, table.size_bytes)
    return found


def expire_tables(project: PipelineProject, keep: timedelta = KEEP) -> None:
    """What fails here is tried again later: the run counts without it."""
    for name, directory in open_tables(project):
        try:
            Table.open(directory).expire(keep, keep_from=oldest_needed(project, directory))
        except TableError as error:
            logger.warning("%s: old versions do not expire: %s", name, error)


def oldest_needed(project: PipelineProject, directory: Path) -> int | None:
    """The version from which on a flow reads the table; None if none does."""
    if project.checkpoints is None:
        return None
    versions = (one.version_read(directory) for one in flow_checkpoints(project.checkpoints))
    return min((max(version, 0) for version in versions if version is not None), default=None)
