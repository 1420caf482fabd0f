"""The sink: `write.format("penstock-table")` and `writeStream.format("penstock-table")`.

Tasks stage Parquet files, flushed to disk. The driver's commit makes one version of all of them. For a stream the
version also has the query's position: its id, and the next batch. A batch that Spark repeats is recognised by that,
whatever was killed. Files of batches that failed are in no version, and are deleted when old versions expire.

Spark creates a writer for each batch on the driver, pickles it to the workers, and creates another one for the commit,
in another process. So a writer has no open table.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.spark.options.known import InvalidOption
from penstock.spark.plain_errors import plain_errors
from penstock.spark.sink.writers import current_slice
from penstock.spark.source.columns import arrow_schema
from penstock.spark.tables.options import WriteOptions
from penstock.spark.tables.truncating import asked_for
from penstock.spark.tables.upkeep import keep_up
from penstock.spark.worker import spare_the_heap
from penstock.tables import NoTable, PositionsMoved, SchemaMismatch, Span, StagedRows, Table, stage
from penstock.tables.files import TARGET_BYTES
from penstock.tables.schema import ArrowSchema, evolution, stored_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

QUERY_PREFIX = "spark-"
"""Of the streams that queries write, by their ids."""

RecordBatch = Any  # pyarrow has no types


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """What rows are written for."""

    schema: ArrowSchema
    partition_by: tuple[str, ...]
    is_new_schema: bool = False
    """The table gets it with the rows, which replace all others."""

    def staged(self, parts: Sequence[StagedRows]) -> StagedRows:
        return parts[0].with_all(parts[1:]) if parts else StagedRows(self.schema, self.partition_by)


@dataclass(frozen=True)
class TaskStaged(WriterCommitMessage):
    staged: StagedRows
    query_id: str | None = None


@plain_errors
class TableWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = WriteOptions.parse(options)
        self._overwrite = overwrite
        self._target = prepare(self._options, arrow_schema(schema), overwrite=overwrite)

    def write(self, iterator: Iterator[RecordBatch]) -> TaskStaged:
        return stage_rows(self._options, self._target, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        rows = self._target.staged(staged_by(messages))
        table = Table.open(self._options.directory)
        truncated = asked_for(table)
        if self._overwrite or truncated:
            done = table.replace(rows, truncated, schema=rows.schema if self._target.is_new_schema else None)
        else:
            done = table.append(rows)
        logger.info("%s: %d rows in version %d", table.directory, done.rows, done.version)
        keep_up(table, done.version, self._options.compact_interval, self._options.keep)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Also called after `commit` raised, when files may be in a version: so they stay until they expire."""


@plain_errors
class TableStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """overwrite: output mode complete, where each batch replaces all rows."""
        self._options = WriteOptions.parse(options)
        self._overwrite = overwrite
        empty_if_asked(self._options, arrow_schema(schema))
        self._target = prepare(self._options, arrow_schema(schema), overwrite=overwrite)

    def write(self, iterator: Iterator[RecordBatch]) -> TaskStaged:
        return stage_rows(self._options, self._target, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        rows = self._target.staged(staged_by(messages))
        if not rows.rows and not self._overwrite:
            return  # there is nothing to recognise if the batch is repeated
        table = Table.open(self._options.directory)
        positions = position_of(table, messages, batchId)
        if self._overwrite:
            done = table.replace(rows, positions, rows.schema if self._target.is_new_schema else None)
        else:
            done = table.append(rows, positions)
        if done.is_replay:
            logger.info("%s: batch %d is in the table already", table.directory, batchId)
            return
        logger.info("%s: batch %d, %d rows, is version %d", table.directory, batchId, done.rows, done.version)
        keep_up(table, done.version, self._options.compact_interval, self._options.keep)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Also called after `commit` raised, when files may be in a version: so they stay until they expire."""


def prepare(options: WriteOptions, rows: ArrowSchema, *, overwrite: bool) -> WriteTarget:
    """Makes the table, or makes it fit. Raises SchemaMismatch, InvalidOption, TableError."""
    stored = stored_schema(rows)
    try:
        table = Table.open(options.directory)
    except NoTable:
        table = Table.open_or_create(options.directory, _nullable(stored), options.partition_by)
    if options.partition_by and options.partition_by != table.partition_by:
        raise InvalidOption(
            f"option 'partitionBy' is '{','.join(options.partition_by)}', and {options.directory} is partitioned by "
            f"{', '.join(table.partition_by) or 'no column'}: write to another directory, or leave the option out"
        )
    found = evolution(table.schema, stored)
    is_anew = (overwrite and options.overwrites_schema) or bool(asked_for(table))
    if is_anew and table.schema != _nullable(stored):  # also with fewer columns
        return WriteTarget(_nullable(stored), table.partition_by, is_new_schema=True)
    if found.added or found.widened or found.breaking:
        if options.merges_schema:
            found = table.evolve(rows)
        elif not found.breaking:
            names = ", ".join((*found.added, *found.widened))
            raise SchemaMismatch(
                f"{options.directory} does not fit for column {names} of the rows: set the option mergeSchema=true to "
                "add columns and to widen types"
            )
        if found.breaking:
            hint = " (with overwriteSchema=true, mode overwrite gives the table a new schema)"
            raise SchemaMismatch(f"{options.directory}: {'; '.join(map(str, found.breaking))}{hint}")
    return WriteTarget(table.schema, table.partition_by)


def empty_if_asked(options: WriteOptions, rows: ArrowSchema) -> None:
    """Before the first batch of a stream that begins anew. Raises TableError."""
    with suppress(NoTable):
        table = Table.open(options.directory)
        if truncated := asked_for(table):
            with suppress(PositionsMoved):  # another stream into this table was faster
                table.replace([], truncated, _nullable(stored_schema(rows)))


def _nullable(schema: ArrowSchema) -> ArrowSchema:
    return pa.schema([field.with_nullable(True) for field in schema])


def position_of(table: Table, messages: Sequence[WriterCommitMessage | None], batch: int) -> dict[str, Span]:
    """The query's position after this batch. Batches without rows make no version, so the last may be any before it."""
    query_id = next((one.query_id for one in messages if isinstance(one, TaskStaged) and one.query_id), None)
    if query_id is None:  # no task has run
        return {}
    stream = f"{QUERY_PREFIX}{query_id}"
    return {stream: Span(min(batch, table.positions.get(stream, batch)), batch + 1)}


def staged_by(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    return [message.staged for message in messages if isinstance(message, TaskStaged)]


def stage_rows(options: WriteOptions, target: WriteTarget, batches: Iterator[RecordBatch]) -> TaskStaged:
    size = options.target_bytes or TARGET_BYTES
    staged = stage(options.directory, target.schema, target.partition_by, batches, size)
    spare_the_heap("write table")
    return TaskStaged(staged, current_slice().query_id)
