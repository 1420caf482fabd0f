"""Batch reads: the files of one version, divided among tasks.

Spark tells a Python source no columns. A schema with the wanted ones, given to the reader, spares the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.spark.options.cores import known_cores
from penstock.spark.plain_errors import plain_errors
from penstock.spark.source.columns import arrow_schema
from penstock.spark.source.pushdown import PushFilters
from penstock.spark.tables.options import ReadOptions
from penstock.spark.tables.skipping import FileFilter
from penstock.spark.worker import spare_the_heap
from penstock.tables import NoTable, SchemaMismatch, Snapshot, Table, read_file
from penstock.tables.actions import AddFile
from penstock.tables.schema import ArrowSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TASK_BYTES = 32 << 20
"""Of files in a task. More, if one file has more."""
LEAST_TASK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileGroup(InputPartition):
    """The work of a task. `schema`: the table's."""

    directory: Path
    schema: ArrowSchema
    files: tuple[AddFile, ...]


@plain_errors
class TableReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = ReadOptions.parse(options)
        self._wanted = arrow_schema(schema)
        self._filter = FileFilter()
        self.pushFilters = PushFilters(self._filter, is_taking=self._options.takes_filters)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        found = snapshot(self._options)
        if found is None:
            return []
        files = self._filter.keep(found.files, found.schema)
        share = sum(file.size for file in files) // known_cores()
        return grouped(self._options.directory, found.schema, files, min(TASK_BYTES, max(share, LEAST_TASK_BYTES)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark has a placeholder of its own when there is nothing to read.
        return read_group(partition, self._wanted) if isinstance(partition, FileGroup) else iter(())


def table_schema(options: Mapping[str, str]) -> StructType:
    """Raises NoTable, and other errors of tables."""
    from pyspark.sql.pandas.types import from_arrow_schema

    parsed = ReadOptions.parse(options)
    found = Table.open(parsed.directory).snapshot(parsed.version, parsed.when)
    return from_arrow_schema(found.schema)


def snapshot(options: ReadOptions) -> Snapshot | None:
    """None if nothing has been written yet: the caller knows the columns."""
    try:
        table = Table.open(options.directory)
    except NoTable:
        return None
    return table.snapshot(options.version, options.when)


def grouped(directory: Path, schema: ArrowSchema, files: Iterable[AddFile], size_bytes: int) -> list[FileGroup]:
    """Neighbours together, in the order of the table."""
    groups: list[list[AddFile]] = []
    filled = size_bytes
    for file in files:
        if filled + file.size > size_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(file)
        filled += file.size
    return [FileGroup(directory, schema, tuple(group)) for group in groups]


def read_group(group: FileGroup, wanted: ArrowSchema) -> Iterator[Any]:
    """Batches with exactly this schema, as Spark requires."""
    known = {name.lower(): name for name in group.schema.names}  # Spark ignores the case of names
    there = [known[name.lower()] for name in wanted.names if name.lower() in known]
    for file in group.files:
        for batch in read_file(group.directory, file, group.schema, there):
            yield fitted(batch, wanted)
    spare_the_heap("read table")


def fitted(batch: Any, wanted: ArrowSchema) -> Any:
    """A column that the table lacks is null. Raises SchemaMismatch."""
    arrays = []
    there = {name.lower(): index for index, name in enumerate(batch.schema.names)}
    for field in wanted:
        index = there.get(field.name.lower(), -1)
        try:
            array = pa.nulls(batch.num_rows, field.type) if index < 0 else batch.column(index)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        except pa.ArrowException as error:
            raise SchemaMismatch(f"column {field.name} cannot be read as {field.type}: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
