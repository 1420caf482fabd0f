"""The changes of a table's rows and schema, each one version.

Data files are written first. Then the change is decided in view of the newest state, as often as it takes
(`commits.py`). Files of a change that did not come about are deleted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.tables import merging
from penstock.tables.actions import Action, AddFile, RemoveFile, removal
from penstock.tables.commits import Change, Committer
from penstock.tables.conform import Rows, batches_of, conforming
from penstock.tables.errors import CommitConflict, SchemaMismatch, TableError, UnsupportedTable
from penstock.tables.files import TARGET_BYTES, FileSet
from penstock.tables.positions import Span, Verdict, judge
from penstock.tables.reading import read_file
from penstock.tables.schema import ArrowSchema, Evolution, from_delta, to_delta
from penstock.tables.staging import StagedRows, check_fit
from penstock.tables.state import TableState

Spans = Mapping[str, Span]

TARGET_SIZE = "delta.targetFileSize"
"""Ours are in bytes. Other writers may have "100mb" there, which does not concern us."""


class _StagedFiles:
    """Staged files of a table, to be discarded like those of a FileSet."""

    def __init__(self, table: Path, staged: StagedRows) -> None:
        self._table = table
        self._staged = staged
        self.paths = staged.paths

    def discard(self) -> None:
        self._staged.discard(self._table)


class Changes:
    """`committer` is the table's; its state is the newest that is known."""

    def __init__(self, directory: Path, committer: Committer) -> None:
        self._directory = directory
        self._committer = committer

    @property
    def _state(self) -> TableState:
        return self._committer.state

    @property
    def target_bytes(self) -> int:
        """Of a data file."""
        told = self._state.described.configuration.get(TARGET_SIZE, "")
        return int(told) if told.isdigit() and int(told) else TARGET_BYTES

    def is_replay(self, spans: Spans) -> bool:
        """Raises PositionsMoved."""
        return _is_replay(self._state, spans)

    def write(
        self, rows: Rows | StagedRows, spans: Spans, *, is_replacing: bool, schema: ArrowSchema | None = None
    ) -> tuple[bool, int]:
        """Adds rows, in place of all others if `is_replacing`. Returns whether it was new, and the number of rows.

        `schema`: the one that the table gets with the rows that replace all others.
        """
        if isinstance(rows, StagedRows):
            check_fit(rows, schema or self._schema, self._state.described.partition_columns)
            with self._discarding([_StagedFiles(self._directory, rows)]):
                is_new = self._write(rows.files, lambda: rows.discard(self._directory), spans, is_replacing, schema)
                return is_new, rows.rows
        with self._writing(schema=schema) as files:
            files.add_all(conforming(batches_of(rows), schema or self._schema))
            return self._write(files.finish(), files.discard, spans, is_replacing, schema), files.rows

    def _write(
        self,
        added: Sequence[AddFile],
        discard: Callable[[], None],
        spans: Spans,
        is_replacing: bool,
        schema: ArrowSchema | None,
    ) -> bool:
        schema_version = self._state.metadata_version

        def decide(state: TableState) -> Change | None:
            self._check(state, schema_version, removes=is_replacing)
            if _is_replay(state, spans):
                discard()
                return None
            if is_replacing:
                gone = removals(state.files.values(), data_change=True)
                return Change("WRITE", {"mode": "Overwrite"}, [*_new_schema(state, schema), *gone, *added], spans)
            if not added and not _moves(state, spans):
                return None
            return Change("WRITE", {"mode": "Append"}, added, spans, is_blind_append=True)

        return self._committer.commit(decide)

    def find(self, keys: Sequence[str], wanted: Any, columns: Sequence[str]) -> Any:
        schema = self._schema
        found = pa.schema([schema.field(name) for name in columns])
        if not wanted.num_rows:
            return found.empty_table()
        searched = merging.Keys(keys, wanted)
        files = list(self._state.files.values())
        return pa.Table.from_batches(merging.rows_with(searched, self._directory, files, schema, found), found)

    def merge(self, keys: Sequence[str], upserts: Rows, deletes: Any, spans: Spans) -> tuple[bool, int]:
        schema, schema_version = self._schema, self._state.metadata_version
        for name in keys:
            if name not in schema.names:
                raise SchemaMismatch(f"no column {name!r} to merge by: the columns are {', '.join(schema.names)}")
        new = pa.Table.from_batches(conforming(batches_of(upserts), schema), schema)
        key_schema = pa.schema([schema.field(name) for name in keys])
        gone = [] if deletes is None else list(conforming(batches_of(deletes.select(list(keys))), key_schema))
        touched = pa.concat_tables([new.select(list(keys)), pa.Table.from_batches(gone, key_schema)])
        merging.check_unique(keys, touched)
        wanted = merging.Keys(keys, touched)
        written: list[FileSet] = []

        def decide(state: TableState) -> Change | None:
            for files in written:  # another writer was faster: the rows to be kept may be others now
                files.discard()
            written.clear()
            self._check(state, schema_version, removes=True)
            if _is_replay(state, spans):
                return None
            hit = merging.files_with(wanted, self._directory, list(state.files.values()), schema)
            written.append(files := self._file_set(schema))
            merging.rewrite_without(wanted, self._directory, hit, schema, files)
            files.add_all(new.to_batches())
            actions = [*removals(hit, data_change=True), *files.finish()]
            if not actions and not _moves(state, spans):
                return None
            return Change("MERGE", {"predicate": json.dumps(list(keys))}, actions, spans)

        with self._discarding(written):
            return self._committer.commit(decide), new.num_rows

    def evolve(self, found: Evolution) -> None:
        """`found` was decided in view of the present state, and nothing in it is breaking."""
        old_schema, schema_version = self._schema, self._state.metadata_version
        rewritten: dict[str, list[AddFile]] = {}
        written: list[FileSet] = []
        parameters = {"columns": json.dumps([*found.added, *found.widened])}

        def decide(state: TableState) -> Change:
            self._check(state, schema_version)
            metadata = msgspec.structs.replace(state.described, schema_string=to_delta(found.schema))
            if not found.widened:
                return Change("CHANGE COLUMNS", parameters, [metadata])
            for file in state.files.values():
                if file.path not in rewritten:
                    written.append(files := self._file_set(found.schema))
                    files.add_all(conforming(read_file(self._directory, file, old_schema), found.schema))
                    rewritten[file.path] = [_in_place_of(file, one) for one in files.finish()]
            gone = removals(state.files.values(), data_change=False)
            added = [one for path in state.files for one in rewritten[path]]
            return Change("CHANGE COLUMNS", parameters, [metadata, *gone, *added])

        with self._discarding(written):
            self._committer.commit(decide)

    def merge_files(self, group: Sequence[AddFile], target_bytes: int) -> list[AddFile]:
        """Returns the files that took their place; none if another writer has replaced one of them."""
        schema, schema_version = self._schema, self._state.metadata_version
        with self._writing(target_bytes) as files:
            for file in group:
                files.add_all(read_file(self._directory, file, schema))
            added = [_in_place_of(group[-1], one) for one in files.finish()]

            def decide(state: TableState) -> Change | None:
                if state.metadata_version != schema_version or any(file.path not in state.files for file in group):
                    files.discard()
                    return None
                actions: list[Action] = [*removals(group, data_change=False), *added]
                return Change("OPTIMIZE", {"targetSize": str(target_bytes)}, actions)

            return added if self._committer.commit(decide) else []

    # -- files ----------------------------------------------------------------------------

    @property
    def _schema(self) -> ArrowSchema:
        return from_delta(self._state.described.schema_string)

    def _check(self, state: TableState, schema_version: int, *, removes: bool = False) -> None:
        if state.metadata_version != schema_version:
            raise CommitConflict(f"{self._directory}: another writer changed its schema or settings at the same time")
        if removes and state.is_append_only:
            raise UnsupportedTable(f"{self._directory} is append-only (delta.appendOnly): its rows cannot be changed")

    def _file_set(self, schema: ArrowSchema, target_bytes: int | None = None) -> FileSet:
        described = self._state.described
        return FileSet(self._directory, schema, described.partition_columns, target_bytes or self.target_bytes)

    @contextmanager
    def _writing(self, target_bytes: int | None = None, schema: ArrowSchema | None = None) -> Iterator[FileSet]:
        files = self._file_set(schema or self._schema, target_bytes)
        with self._discarding([files]):
            yield files

    @contextmanager
    def _discarding(self, written: Sequence[FileSet | _StagedFiles]) -> Iterator[None]:
        """Deletes the files of a change that failed, if it is certain that the log does not name them."""
        try:
            yield
        except BaseException:
            with suppress(TableError):
                self._committer.refresh()
                for files in written:
                    if not any(path in self._state.files for path in files.paths):
                        files.discard()
            raise


def _new_schema(state: TableState, schema: ArrowSchema | None) -> list[Action]:
    if schema is None or schema == from_delta(state.described.schema_string):
        return []
    return [msgspec.structs.replace(state.described, schema_string=to_delta(schema))]


def _is_replay(state: TableState, spans: Spans) -> bool:
    return bool(spans) and judge(state.positions, spans) is Verdict.REPLAY


def _moves(state: TableState, spans: Spans) -> bool:
    return any(state.positions.get(stream) != span.end for stream, span in spans.items())


def removals(files: Iterable[AddFile], *, data_change: bool) -> list[RemoveFile]:
    now_ms = round(time.time() * 1000)
    return [removal(file, now_ms, data_change=data_change) for file in files]


def _in_place_of(old: AddFile, file: AddFile) -> AddFile:
    """A rewritten file has the age of the old one, so that the order of files stays, and its rows are not new."""
    return msgspec.structs.replace(file, modification_time=old.modification_time, data_change=False)
