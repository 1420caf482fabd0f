"""Upserts and deletes by key: the files that have one of the keys are rewritten without it, new rows go to new files.

Only the key columns of other files are read, and files whose limits exclude all keys are not even opened. Memory is the
keys, and a row group at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.tables.actions import AddFile
from penstock.tables.errors import SchemaMismatch
from penstock.tables.files import FileSet
from penstock.tables.reading import read_file
from penstock.tables.schema import ArrowSchema

ArrowTable = Any
RecordBatch = Any

_AT = "__at"


class Keys:
    """The keys of a merge, to look for."""

    def __init__(self, columns: Sequence[str], rows: ArrowTable) -> None:
        """`rows` has the key columns in the types of the table. Raises SchemaMismatch for a null."""
        self.columns = tuple(columns)
        for name in self.columns:
            if rows.column(name).null_count:
                raise SchemaMismatch(f"key column {name} is null in {rows.column(name).null_count} rows")
        self._rows = rows.select(list(self.columns)).group_by(list(self.columns)).aggregate([])
        first = self._rows.column(self.columns[0])
        self._values = pa.chunked_array([first]).combine_chunks() if len(self.columns) == 1 else None
        self._limits = {name: _limits(self._rows.column(name)) for name in self.columns}

    def may_be_in(self, file: AddFile) -> bool:
        """By the limits of the file."""
        told = json.loads(file.stats) if file.stats else {}
        least, most = told.get("minValues", {}), told.get("maxValues", {})
        for name, limits in self._limits.items():
            low, high = least.get(name), most.get(name)
            if limits is None or type(low) is not type(limits[0]) or type(high) is not type(limits[1]):
                continue
            if limits[1] < low or limits[0] > high:
                return False
        return True

    def found_in(self, batch: RecordBatch) -> Any:
        """A mask of the rows that have one of the keys."""
        if self._values is not None:
            return pc.is_in(batch.column(self.columns[0]), value_set=self._values)
        numbered = pa.table({name: batch.column(name) for name in self.columns}).append_column(
            _AT, pa.array(range(batch.num_rows), pa.int64())
        )
        hits = numbered.join(self._rows, list(self.columns), join_type="left semi").column(_AT)
        return pc.is_in(numbered.column(_AT).combine_chunks(), value_set=hits.combine_chunks())


def _limits(column: Any) -> tuple[Any, Any] | None:
    """Of the types whose limits the log has as they are."""
    if not len(column) or not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
        return None
    found = pc.min_max(column).as_py()
    return found["min"], found["max"]


def check_unique(columns: Sequence[str], rows: ArrowTable) -> None:
    """Raises SchemaMismatch: which row of a key would win?"""
    distinct = rows.select(list(columns)).group_by(list(columns)).aggregate([]).num_rows
    if distinct != rows.num_rows:
        raise SchemaMismatch(f"{rows.num_rows - distinct} rows have the same {', '.join(columns)} as another one")


def files_with(keys: Keys, table: Path, files: Sequence[AddFile], schema: ArrowSchema) -> list[AddFile]:
    return [file for file in files if keys.may_be_in(file) and _is_in(keys, table, file, schema)]


def _is_in(keys: Keys, table: Path, file: AddFile, schema: ArrowSchema) -> bool:
    return any(pc.any(keys.found_in(batch)).as_py() for batch in read_file(table, file, schema, keys.columns))


def rows_with(
    keys: Keys, table: Path, files: Sequence[AddFile], schema: ArrowSchema, found: ArrowSchema
) -> Iterator[RecordBatch]:
    """Only the columns of `found`, and of the keys, are read."""
    names = list(dict.fromkeys((*found.names, *keys.columns)))
    for file in files:
        if keys.may_be_in(file):
            for batch in read_file(table, file, schema, names):
                yield batch.filter(keys.found_in(batch)).select(found.names)


def rewrite_without(keys: Keys, table: Path, files: Sequence[AddFile], schema: ArrowSchema, into: FileSet) -> int:
    """Copies the other rows. Returns the number of those left out."""
    gone = 0
    for file in files:
        for batch in read_file(table, file, schema):
            kept = batch.filter(pc.invert(keys.found_in(batch)))
            gone += batch.num_rows - kept.num_rows
            into.add(kept)
    return gone
