"""Rows of a data file, as the table has them now: with partition columns, and with columns that the file lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.tables.actions import AddFile
from penstock.tables.conform import conform
from penstock.tables.errors import TableDamaged
from penstock.tables.files import data_path, partition_scalar
from penstock.tables.schema import ArrowSchema

RecordBatch = Any

BATCH_ROWS = 16 << 10


def read_file(
    table: Path, file: AddFile, schema: ArrowSchema, columns: Sequence[str] | None = None
) -> Iterator[RecordBatch]:
    """In the order of the file. Raises TableDamaged."""
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    path = data_path(table, file)
    try:
        with pq.ParquetFile(path) as parquet:
            there = set(parquet.schema_arrow.names)
            stored = [name for name in wanted.names if name in there and name not in file.partition_values]
            if not stored:
                yield from _without_columns(parquet.metadata.num_rows, file, wanted)
                return
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=stored):
                yield _with_partition(batch, file, wanted)
    except (OSError, pa.ArrowInvalid) as error:
        raise TableDamaged(f"{path} of the table cannot be read: {error}") from error


def _without_columns(rows: int, file: AddFile, schema: ArrowSchema) -> Iterator[RecordBatch]:
    for first in range(0, rows, BATCH_ROWS):
        empty = pa.RecordBatch.from_struct_array(pa.array([{}] * min(BATCH_ROWS, rows - first), pa.struct([])))
        yield _with_partition(empty, file, schema)


def _with_partition(batch: RecordBatch, file: AddFile, schema: ArrowSchema) -> RecordBatch:
    arrays, fields = list(batch.columns), list(batch.schema)
    for name, value in file.partition_values.items():
        index = schema.get_field_index(name)
        if index >= 0:
            field = schema.field(index)
            arrays.append(pa.repeat(partition_scalar(value, field.type), batch.num_rows))
            fields.append(field)
    if not arrays:
        return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, field.type) for field in schema], schema=schema)
    return conform(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), schema)
