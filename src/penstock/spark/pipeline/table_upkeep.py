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
from penstock.spark.tables.writing import QUERY_PREFIX
from penstock.tables import Table, TableError

logger = logging.getLogger(__name__)

KEEP = timedelta(hours=1)
"""How long a reader may read a version that was replaced. Runs come every few seconds."""
VIEW_KEEP = timedelta(minutes=5)
"""Of a materialized view: each run replaces all of it, and no stream can read it."""
EVERY_S = 60.0


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
            table = Table.open(directory)
            if any(stream.startswith(QUERY_PREFIX) for stream in table.positions):
                table.expire(keep, keep_from=oldest_needed(project, directory))
            else:
                table.expire(min(keep, VIEW_KEEP))
        except TableError as error:
            logger.warning("%s: old versions do not expire: %s", name, error)


def oldest_needed(project: PipelineProject, directory: Path) -> int | None:
    """The version from which on a flow reads the table, or may read it; None if none does."""
    if project.checkpoints is None:
        return 0  # on another machine: what flows have read is not known here
    versions = (one.version_read(directory) for one in flow_checkpoints(project.checkpoints))
    return min((max(version, 0) for version in versions if version is not None), default=None)
