"""`Table`: a Delta table in a directory, and everything that changes it.

One committer at a time is what it is made for; several do no harm. Every change is one version: it is there as a whole
or not at all, also after kill -9 or a power failure, and readers see the version that they opened. Not thread safe.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from penstock.tables.actions import (
    READER_VERSION,
    WRITER_VERSION,
    Format,
    Metadata,
    Protocol,
)
from penstock.tables.changes import Changes
from penstock.tables.checkpoint import write_checkpoint
from penstock.tables.commits import Change, Committer
from penstock.tables.compaction import groups
from penstock.tables.conform import Rows
from penstock.tables.durable import make_directory
from penstock.tables.errors import (
    NoTable,
    NotATable,
    TableError,
    file_errors,
)
from penstock.tables.files import check_partitioning
from penstock.tables.log import NAME as LOG
from penstock.tables.log import TableLog
from penstock.tables.positions import Span
from penstock.tables.reading import read_file
from penstock.tables.retention import UNFINISHED_S, Expired, expire
from penstock.tables.schema import ArrowSchema, Evolution, evolution, from_delta, stored_schema, to_delta
from penstock.tables.snapshot import Additions, Snapshot, additions, snapshot_of
from penstock.tables.staging import StagedRows
from penstock.tables.state import TableState, check_writable, read_state
from penstock.tables.view import View

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL = "delta.checkpointInterval"
DEFAULTS = {
    CHECKPOINT_INTERVAL: "100",
    # How long a checkpoint lists files that were replaced. Our own expiry does not need that.
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}


@dataclass(frozen=True, slots=True)
class Committed:
    version: int
    """The version that has the rows; for a replay the newest one."""
    rows: int = 0
    """Written by this call."""
    is_replay: bool = False
    """The table had all of it before."""


@dataclass(frozen=True, slots=True)
class Compacted:
    merged: int
    """Files that were replaced by larger ones."""
    made: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    version: int
    when: datetime | None
    operation: str
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    positions: Mapping[str, Span]


class Table:
    def __init__(self, directory: Path, log: TableLog, state: TableState) -> None:
        self.directory = directory
        self._log = log
        self._committer = Committer(log, state)
        self._changes = Changes(directory, self._committer)

    # -- opening --------------------------------------------------------------------------

    @classmethod
    def open(cls, directory: Path | str) -> Table:
        """Raises NoTable, NotATable, TableDamaged, UnsupportedTable, TableFailed."""
        path = Path(directory)
        with file_errors(path, "open"):
            if path.exists() and not path.is_dir():
                raise NotATable(f"{path} is not a directory")
            log = TableLog(path)
            if not log.exists:
                if _other_names(path):
                    raise NotATable(f"{path} is a directory with other files, and not a table")
                raise NoTable(f"there is no table in {path}")
        state = read_state(log)
        check_writable(state, path)
        return cls(path, log, state)

    @classmethod
    def create(
        cls,
        directory: Path | str,
        schema: ArrowSchema,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """A new table in a directory that is missing or empty. Raises NotATable, SchemaMismatch, TableFailed."""
        path = Path(directory)
        stored = stored_schema(schema)
        check_partitioning(stored, partition_by)
        log = TableLog(path)
        with file_errors(path, "create"):
            if path.exists() and not path.is_dir():
                raise NotATable(f"{path} is not a directory")
            if _other_names(path):
                raise NotATable(f"{path} has other files: choose an empty directory")
            make_directory(log.directory)
        table = cls(path, log, TableState())
        metadata = Metadata(
            id=str(uuid4()),
            format=Format("parquet", {}),
            schema_string=to_delta(stored),
            partition_columns=list(partition_by),
            configuration={**DEFAULTS, **(properties or {})},
            created_time=round(time.time() * 1000),
        )
        table._create(metadata)
        return table

    def _create(self, metadata: Metadata) -> None:
        parameters = {"partitionBy": json.dumps(metadata.partition_columns)}
        change = Change("CREATE TABLE", parameters, [Protocol(READER_VERSION, WRITER_VERSION), metadata])
        if not self._committer.put(change):
            raise NotATable(f"{self.directory} has a table already")

    @classmethod
    def open_or_create(
        cls,
        directory: Path | str,
        schema: ArrowSchema,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """The table that is there, whatever its schema is, or a new one."""
        try:
            return cls.open(directory)
        except NoTable:
            return cls.create(directory, schema, partition_by, properties)

    # -- facts ----------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._state.version

    @property
    def id(self) -> str:
        """Given when the table was made."""
        return self._state.described.id

    @property
    def schema(self) -> ArrowSchema:
        return from_delta(self._state.described.schema_string)

    @property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(self._state.described.partition_columns)

    @property
    def properties(self) -> Mapping[str, str]:
        return self._state.described.configuration

    @property
    def positions(self) -> Mapping[str, int]:
        """The next offset of each stream that the table has."""
        return dict(self._state.positions)

    @property
    def files(self) -> int:
        return len(self._state.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self._state.files.values())

    @property
    def rows(self) -> int | None:
        """By what the log says of each file; None if it does not say it of all."""
        total = 0
        for file in self._state.files.values():
            told = json.loads(file.stats).get("numRecords") if file.stats else None
            if not isinstance(told, int):
                return None
            total += told
        return total

    @property
    def oldest_version(self) -> int:
        """That can be read."""
        return self._oldest_readable()

    @property
    def _state(self) -> TableState:
        return self._committer.state

    def refresh(self) -> None:
        """Takes in what others have committed."""
        self._committer.refresh()

    # -- changes --------------------------------------------------------------------------

    def append(self, rows: Rows | StagedRows, positions: Mapping[str, Span] | None = None) -> Committed:
        """Adds rows, or what `stage` has written, and moves the positions of their streams, in one version.

        If the table has all of it, nothing happens. Raises PositionsMoved if there is a gap or if only a part is new,
        SchemaMismatch, CommitConflict, TableFailed.
        """
        return self._changed(positions, lambda spans: self._changes.write(rows, spans, is_replacing=False), rows)

    def replace(
        self,
        rows: Rows | StagedRows,
        positions: Mapping[str, Span] | None = None,
        schema: ArrowSchema | None = None,
    ) -> Committed:
        """Replaces all rows, in one version. Readers see the old rows or the new ones. Raises like `append`.

        schema: that of the new rows, if it is not the table's. It may be any that has the partition columns.
        """
        stored = None if schema is None else stored_schema(schema)
        if stored is not None:
            check_partitioning(stored, self.partition_by)
        return self._changed(
            positions, lambda spans: self._changes.write(rows, spans, is_replacing=True, schema=stored), rows
        )

    def merge(
        self,
        keys: Sequence[str],
        upserts: Rows,
        deletes: Any = None,
        positions: Mapping[str, Span] | None = None,
    ) -> Committed:
        """Rows of `upserts` replace those with the same key or are added; the keys in `deletes` go. One version.

        `deletes` is an Arrow table that has the key columns. A key is in one of them, once, and not null. Raises like
        `append`.
        """
        return self._changed(positions, lambda spans: self._changes.merge(keys, upserts, deletes, spans))

    def scan(self) -> Iterator[Any]:
        """All rows of this `version`, as record batches. Raises TableDamaged if it has expired."""
        for file in list(self._state.files.values()):
            yield from read_file(self.directory, file, self.schema)

    def find(self, keys: Sequence[str], wanted: Any, columns: Sequence[str]) -> Any:
        """The rows whose `keys` are in the Arrow table `wanted`, as an Arrow table of `columns`. Of this `version`.

        Raises SchemaMismatch for a null among them, TableDamaged.
        """
        return self._changes.find(keys, wanted, columns)

    def _changed(
        self,
        positions: Mapping[str, Span] | None,
        change: Callable[[Mapping[str, Span]], tuple[bool, int]],
        rows: Rows | StagedRows = None,
    ) -> Committed:
        spans = positions or {}
        self.refresh()
        if self._changes.is_replay(spans):  # before anything is written
            if isinstance(rows, StagedRows):
                rows.discard(self.directory)
            return Committed(self.version, is_replay=True)
        is_new, rows = change(spans)
        if not is_new:
            return Committed(self.version, is_replay=bool(spans))
        self._checkpoint_if_due()
        return Committed(self.version, rows)

    def evolve(self, schema: ArrowSchema) -> Evolution:
        """Makes the table fit for rows of this schema: adds columns, widens types. All of it, or, if something is
        breaking, nothing.

        A wider type rewrites the files, because many readers refuse files of different types. Raises CommitConflict,
        TableFailed.
        """
        self.refresh()
        found = evolution(self.schema, stored_schema(schema))
        if not found.breaking and (found.added or found.widened):
            self._changes.evolve(found)
            self._checkpoint_if_due()
        return found

    # -- maintenance ----------------------------------------------------------------------

    def compact(
        self,
        target_bytes: int | None = None,
        *,
        is_thorough: bool = False,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> Compacted:
        """Merges small files of a partition; rows keep their order. Each merge is a version, and may be the last.

        is_thorough: as few files as possible; otherwise a row is rewritten only a few times, however often this runs.
        """
        self.refresh()
        merged = made = size_bytes = 0
        wanted = target_bytes or self._changes.target_bytes
        for group in groups(self._state.files.values(), wanted, is_thorough=is_thorough):
            if is_stopping():
                break
            added = self._changes.merge_files(group, wanted)
            if added:
                self._checkpoint_if_due()
                merged, made = merged + len(group), made + len(added)
                size_bytes += sum(file.size for file in added)
        return Compacted(merged, made, size_bytes)

    def expire(
        self, older_than: timedelta | datetime, unfinished_s: float = UNFINISHED_S, keep_from: int | None = None
    ) -> Expired:
        """Deletes versions that were replaced before then, and the files that only they need.

        keep_from: a version that stays, with all younger ones, however old they are.
        unfinished_s: the age at which a file that no version names can only be left by a writer that was killed.
        """
        before = _ago(older_than) if isinstance(older_than, timedelta) else older_than
        if before.tzinfo is None:
            raise ValueError("the time needs a time zone")
        self.refresh()
        return expire(self._log, round(before.timestamp() * 1000), unfinished_s, keep_from)

    def checkpoint(self) -> None:
        """Sums the log up in one file, so that it is quick to open. Commits do this by themselves once in a while."""
        if all(one.version != self.version for one in self._log.checkpoints()):
            write_checkpoint(self._log, self.version)

    def _checkpoint_if_due(self) -> None:
        interval = self.properties.get(CHECKPOINT_INTERVAL, DEFAULTS[CHECKPOINT_INTERVAL])
        if not interval.isdigit() or not int(interval) or self.version % int(interval):
            return
        try:
            self.checkpoint()
        except TableError as error:  # the commit counts without it
            logger.warning("%s: no checkpoint of version %d: %s", self.directory, self.version, error)

    # -- time -----------------------------------------------------------------------------

    def history(self, limit: int | None = None) -> Iterator[HistoryEntry]:
        """The versions whose entries are there, newest first."""
        self.refresh()
        for version in reversed(self._log.versions()[-limit:] if limit else self._log.versions()):
            told: dict[str, Any] = next(
                (line.commit_info for line in self._log.read(version) or () if line.commit_info), {}
            )
            stamp, positions = told.get("timestamp"), told.get("positions")
            yield HistoryEntry(
                version,
                datetime.fromtimestamp(stamp / 1000, UTC) if isinstance(stamp, int) else None,
                str(told.get("operation", "")),
                told.get("operationParameters") or {},
                told.get("operationMetrics") or {},
                {stream: Span(*span) for stream, span in positions.items()} if isinstance(positions, dict) else {},
            )

    def snapshot(self, version: int | None = None, when: datetime | None = None) -> Snapshot:
        """The files of a version: the newest, one by number, or that of a time. Raises NoTable."""
        self.refresh()
        if when is not None:
            version = self._version_at(when)
        return snapshot_of(self._state if version is None or version == self.version else self._state_at(version))

    def additions(self, after: int, until: int) -> Iterator[Additions]:
        """The files that the versions after `after` up to `until` added. Raises NoTable if one has expired."""
        return additions(self._log, after, until)

    def at(self, version: int | None = None, when: datetime | None = None) -> View:
        """A version to read: the newest, one by number, or the one that was current at a time. Raises NoTable."""
        self.refresh()
        if when is not None:
            version = self._version_at(when)
        if version is None or version == self.version:
            return View(self.directory, self.version, self.schema)
        return View(self.directory, version, from_delta(self._state_at(version).described.schema_string))

    def _state_at(self, version: int) -> TableState:
        oldest = self._oldest_readable()
        if not oldest <= version <= self.version:
            raise NoTable(f"{self.directory} has versions {oldest} to {self.version}, not {version}")
        return read_state(self._log, version)

    def _version_at(self, when: datetime) -> int:
        if when.tzinfo is None:
            raise ValueError("the time needs a time zone")
        for entry in self.history():
            if entry.when is not None and entry.when <= when:
                return entry.version
        raise NoTable(f"{self.directory} has no version from {when.isoformat()} or before (it may have expired)")

    def _oldest_readable(self) -> int:
        versions = self._log.versions()
        if versions and versions[0] == 0:
            return 0
        return min((one.version for one in self._log.checkpoints()), default=0)


def _ago(age: timedelta) -> datetime:
    """Not before 1970: an age may be longer than there are years."""
    now = datetime.now(UTC)
    return now - min(age, now - datetime.fromtimestamp(0, UTC))


def _other_names(path: Path) -> list[str]:
    """What else is in the directory. A log alone, without entries, is left by a creation that was killed."""
    return [name for name in os.listdir(path) if name != LOG] if path.is_dir() else []
