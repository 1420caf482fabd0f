"""Rows in the types of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from penstock.tables.errors import SchemaMismatch
from penstock.tables.schema import ArrowSchema, Breaking, common_type, stored_schema

RecordBatch = Any
Rows = Any
"""A RecordBatch, a Table, or an iterable of record batches."""


def batches_of(rows: Rows) -> Iterator[RecordBatch]:
    if isinstance(rows, pa.RecordBatch):
        yield rows
    elif isinstance(rows, pa.Table):
        yield from rows.to_batches()
    else:
        yield from rows


def conforming(batches: Iterable[RecordBatch], schema: ArrowSchema) -> Iterator[RecordBatch]:
    """Raises SchemaMismatch for rows that the table cannot take."""
    for batch in batches:
        yield batch if batch.schema.equals(schema) and not _has_strays(batch) else conform(batch, schema)


def _has_strays(batch: RecordBatch) -> bool:
    """Whether there are nulls where the schema has none: Arrow itself does not mind."""
    return any(
        not field.nullable and column.null_count for field, column in zip(batch.schema, batch.columns, strict=True)
    )


def conform(batch: RecordBatch, schema: ArrowSchema) -> RecordBatch:
    """Columns by name, in the order and types of the table. A missing column is null."""
    given = {name.lower(): index for index, name in enumerate(batch.schema.names)}
    unknown = given.keys() - {name.lower() for name in schema.names}
    if unknown:
        raise SchemaMismatch(f"the table has no column {', '.join(sorted(unknown))}: evolve it first")
    arrays = []
    for field in schema:
        index = given.get(field.name.lower())
        if index is None:
            array = pa.nulls(batch.num_rows, field.type)
        else:
            array = _cast(batch.column(index), field)
        if not field.nullable and array.null_count:
            raise SchemaMismatch(
                f"column {field.name} is never null in the table, and {array.null_count} rows have none"
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: Any, field: Any) -> Any:
    if array.type == field.type:
        return array
    stored = stored_schema(pa.schema([pa.field(field.name, array.type)])).field(0).type
    if common_type(field.type, stored) != field.type:
        raise SchemaMismatch(f"{Breaking(field.name, str(field.type), str(array.type))}: evolve it first")
    try:
        # Not safe for times: those in nanoseconds lose their last digits.
        return array.cast(field.type, safe=not pa.types.is_timestamp(stored))
    except pa.ArrowException as error:
        raise SchemaMismatch(f"column {field.name} cannot become {field.type}: {error}") from None
