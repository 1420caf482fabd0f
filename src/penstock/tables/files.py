"""Data files: Parquet, one partition each, flushed to disk before anything names them.

A file has no partition columns: the log has their values, and so has its path.
Memory is bounded, whatever the number of partitions. A file of rows that arrived in order is in that order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.tables.actions import AddFile
from penstock.tables.durable import make_directory, sync_directories, sync_file
from penstock.tables.errors import SchemaMismatch, file_errors
from penstock.tables.schema import ArrowSchema

RecordBatch = Any
Values = Mapping[str, str | None]

TARGET_BYTES = 128 << 20
ROW_GROUP_BYTES = 16 << 20
BUFFERED_BYTES = 64 << 20
MAX_OPEN = 64
"""The number of partitions with open files. With more, the oldest file is closed; its partition may get another."""
LEVEL = 1
"""Of zstd. Higher levels cost more than the write itself, and compaction writes again anyway."""
MAX_STATISTICS_STRING = 64
NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
MAX_DIRECTORY_NAME = 255
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MS = 86_400_000
_TIMES_MS = range(-719_162 * _DAY_MS, 2_932_896 * _DAY_MS)  # the years 1 to 9999


def data_path(table: Path, file: AddFile) -> Path:
    return table / unquote(file.path)


def check_partitioning(schema: ArrowSchema, columns: Sequence[str]) -> None:
    """Raises SchemaMismatch."""
    for name in columns:
        index = schema.get_field_index(name)
        if index < 0:
            raise SchemaMismatch(f"cannot partition by {name!r}: the columns are {', '.join(schema.names)}")
        kind = schema.field(index).type
        if not (_is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind) or pa.types.is_boolean(kind)):
            raise SchemaMismatch(
                f"cannot partition by {name!r}, which is {kind}: take a column of strings, integers, dates or booleans"
            )
    if len(set(columns)) != len(columns):
        raise SchemaMismatch(f"cannot partition by a column twice: {', '.join(columns)}")
    if len(columns) == len(schema):
        raise SchemaMismatch("cannot partition by all columns: one must be left to be stored")


class FileSet:
    """The data files of one commit. `add` writes, `finish` flushes and returns them, `discard` deletes them."""

    def __init__(
        self, table: Path, schema: ArrowSchema, partition_by: Sequence[str], target_bytes: int = TARGET_BYTES
    ) -> None:
        self._table = table
        self._schema = schema
        self._partition_by = tuple(partition_by)
        self._target_bytes = target_bytes
        self._stored = pa.schema([field for field in schema if field.name not in self._partition_by])
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._closed: list[_OpenFile] = []
        self._count = 0
        self.rows = 0

    def add(self, batch: RecordBatch) -> None:
        """A batch with the schema of the table."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        for values, rows in _split(batch, self._partition_by):
            self._add(values, rows.select(self._stored.names) if self._partition_by else rows)

    def add_all(self, batches: Iterable[RecordBatch]) -> None:
        for batch in batches:
            self.add(batch)

    def _add(self, values: tuple[str | None, ...], rows: RecordBatch) -> None:
        file = self._open.get(values)
        if file is None:
            if len(self._open) >= MAX_OPEN:
                self._close(next(iter(self._open)))
            file = self._open[values] = self._new(values)
        file.add(rows)
        if sum(one.waiting_bytes for one in self._open.values()) > BUFFERED_BYTES:
            for one in self._open.values():
                one.flush()
        if file.size_bytes >= self._target_bytes:
            self._close(values)

    def _new(self, values: tuple[str | None, ...]) -> _OpenFile:
        named = dict(zip(self._partition_by, values, strict=True))
        for name, value in named.items():
            if value is None and not self._schema.field(name).nullable:  # readers would refuse the whole table
                raise SchemaMismatch(f"column {name} is null or empty in some rows, and its partitions cannot be null")
        place = "".join(_directory_name(name, value) + "/" for name, value in named.items())
        path = f"{place}part-{self._count:05d}-{uuid4().hex}.zstd.parquet"
        self._count += 1
        with file_errors(self._table, "write"):
            make_directory((self._table / path).parent)
            return _OpenFile(self._table, path, named, self._stored)

    def _close(self, values: tuple[str | None, ...]) -> None:
        file = self._open.pop(values)
        self._closed.append(file)
        file.close()

    def finish(self) -> list[AddFile]:
        for values in list(self._open):
            self._close(values)
        with file_errors(self._table, "write"):
            sync_directories({(self._table / file.path).parent for file in self._closed})
        return [file.action() for file in self._closed]

    @property
    def paths(self) -> list[str]:
        """As the log names them."""
        return [file.encoded_path for file in (*self._open.values(), *self._closed)]

    def discard(self) -> None:
        """Best effort: what is left is deleted when old versions expire."""
        for file in (*self._open.values(), *self._closed):
            # RuntimeError: pyarrow asks for the metadata of a file that it could not finish.
            with suppress(OSError, pa.ArrowException, RuntimeError):
                file.abandon()
        self._open, self._closed = {}, []


class _OpenFile:
    def __init__(self, table: Path, path: str, values: Values, schema: ArrowSchema) -> None:
        self.path = path
        self._place = table / path
        self._values = values
        self._schema = schema
        self._told: list[Any] = []
        self._sink = pa.OSFile(str(self._place), "wb")
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=LEVEL,
            use_dictionary=[field.name for field in schema if not _is_bytes(field.type)],
            write_statistics=[field.name for field in schema if not _is_bytes(field.type)],
            metadata_collector=self._told,
            store_schema=False,
        )
        self._waiting: list[RecordBatch] = []
        self.waiting_bytes = 0

    @property
    def encoded_path(self) -> str:
        return quote(self.path, safe="/=")

    @property
    def size_bytes(self) -> int:
        """Written so far."""
        size: int = self._sink.tell()
        return size

    def add(self, rows: RecordBatch) -> None:
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the waiting rows as a row group."""
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting, self._schema)
        with file_errors(self._place, "write"):
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self.waiting_bytes = [], 0

    def close(self) -> None:
        self.flush()
        with file_errors(self._place, "write"):
            self._writer.close()
            self._sink.close()
            sync_file(self._place)

    def abandon(self) -> None:
        self._waiting = []
        self._place.unlink(missing_ok=True)
        try:
            self._writer.close()
        finally:
            self._writer.is_open = False  # or its finalizer closes it once more, into a closed file
            self._sink.close()

    def action(self) -> AddFile:
        return AddFile(
            path=self.encoded_path,
            partition_values=dict(self._values),
            size=self._place.stat().st_size,
            modification_time=round(time.time() * 1000),
            data_change=True,
            stats=statistics(self._told[0], self._schema),
        )


# -- partitions -------------------------------------------------------------------------


def _split(batch: RecordBatch, columns: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], RecordBatch]]:
    """The rows of each combination of values; almost always there is only one."""
    if not columns:
        yield (), batch
        return
    column = batch.column(columns[0])
    values = column.unique()
    for value in values:
        rows = batch
        if len(values) > 1:
            rows = batch.filter(pc.equal(column, value) if value.is_valid else column.is_null())
        for others, inner in _split(rows, columns[1:]):
            yield (partition_value(value.as_py()), *others), inner


def partition_value(value: Any) -> str | None:
    """As the log has it. There an empty string is a null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def partition_scalar(text: str | None, kind: Any) -> Any:
    """The other way round, as an Arrow scalar."""
    if text is None or text == "":
        return pa.scalar(None, kind)
    if pa.types.is_boolean(kind):
        return pa.scalar(text == "true", kind)
    return pa.scalar(text).cast(kind)


def _directory_name(column: str, value: str | None) -> str:
    """As in Hive: some readers (Polars) take the value from there, and not from the log."""
    name = f"{quote(column, safe='')}={NULL_NAME if value is None else quote(value, safe='')}"
    if len(name) > MAX_DIRECTORY_NAME:
        raise SchemaMismatch(f"column {column}: {value[:40] if value else ''}... is too long for a partition")
    return name


def _is_integer(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind))


# -- statistics -------------------------------------------------------------------------


def statistics(told: Any, schema: ArrowSchema) -> str:
    """What the log says of a file, so that readers can skip it: rows, and for plain columns nulls and limits.

    A limit that is not exact is left out, and so are those of floats: NaN has no place in their order.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    columns = {told.schema.column(index).path: index for index in range(told.num_columns)}
    for field in schema:
        index = columns.get(field.name)
        if index is None or _is_bytes(field.type):
            continue
        found = [told.row_group(group).column(index).statistics for group in range(told.num_row_groups)]
        if any(one is None or not one.has_null_count for one in found):
            continue
        nulls[field.name] = sum(one.null_count for one in found)
        limits = [one for one in found if one.has_min_max]
        if not limits or len(limits) < sum(one.num_values > 0 for one in found):
            continue
        low, high = _limits(field.type, limits)
        if low is not None and high is not None:
            least[field.name], most[field.name] = low, high
    return json.dumps(
        {"numRecords": told.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}, separators=(",", ":")
    )


def _limits(kind: Any, found: Sequence[Any]) -> tuple[Any, Any]:
    if _is_integer(kind):
        return min(one.min for one in found), max(one.max for one in found)
    if pa.types.is_string(kind):
        low, high = min(one.min for one in found), max(one.max for one in found)
        return (low, high) if max(len(low), len(high)) <= MAX_STATISTICS_STRING else (None, None)
    if pa.types.is_date(kind):
        days = min(one.min_raw for one in found), max(one.max_raw for one in found)
        low, high = (_time(one * _DAY_MS) for one in days)
        return low and low[:10], high and high[:10]
    if pa.types.is_timestamp(kind):
        low_us, high_us = min(one.min_raw for one in found), max(one.max_raw for one in found)
        return _time(low_us // 1000), _time(-(-high_us // 1000))
    return None, None


def _time(since_epoch_ms: int) -> str | None:
    """None outside the years 1 to 9999."""
    if since_epoch_ms not in _TIMES_MS:
        return None
    when = _EPOCH + timedelta(milliseconds=since_epoch_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
