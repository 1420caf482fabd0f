"""Rows with typed values: a task's record batches, with `value` decoded to columns of Arrow.

A tombstone is no bad value: its `value` is null, and it has no reason. Invariant: with `onBadValue=null` there is a row
for each record, with its fields, or with the reason and the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from penstock.arrow.decode import KAFKA_SCHEMA
from penstock.arrow.values import Misfit
from penstock.model.errors import PenstockError
from penstock.spark.source.value_options import BAD, DROP, ERROR, FAIL, NULL, ON_BAD, SCHEMA, VALUE, ValueOptions

RecordBatch = Any

_PLACE = ("topic", "partition", "offset")


class BadValue(PenstockError):
    """A value that does not fit, and `onBadValue=fail`."""


class TypedRows:
    """`schema`: the columns that Spark wants, as Arrow has them."""

    def __init__(self, options: ValueOptions, schema: Any) -> None:
        self._schema = schema
        self._on_bad = options.on_bad
        typed = {VALUE, ERROR, BAD}
        self.is_decoding = bool(typed & set(schema.names)) or options.on_bad != NULL
        """Columns that nobody asked for are not decoded."""
        needed = {name: schema.field(name) for name in schema.names if name not in typed}
        if self.is_decoding:
            extra = (VALUE, *_PLACE) if options.on_bad == FAIL else (VALUE,)
            needed = {name: KAFKA_SCHEMA.field(name) for name in extra} | needed
        self.columns: Any = pa.schema(list(needed.values()))
        """What the rows are made of, for the decoder of record batches."""
        self._struct = schema.field(VALUE).type if VALUE in schema.names else None
        self._values = options.decoder(self._struct and [field.type for field in self._struct])

    def rows(self, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        """Raises BadValue."""
        return map(self._typed, batches) if self.is_decoding else batches

    def _typed(self, records: RecordBatch) -> RecordBatch:
        values = records.column(VALUE)
        columns, misfits = self._values.decode_array(values)
        bad = [misfit for misfit in misfits if values[misfit.at].is_valid]
        if bad and self._on_bad == FAIL:
            raise _failure(records, bad[0])
        made: dict[str, Any] = {}
        if self._struct is not None:
            nulls = _flags(len(values), misfits) if misfits else None
            made[VALUE] = pa.StructArray.from_arrays(columns, fields=list(self._struct), mask=nulls)
        made[ERROR] = _sparse(len(values), [(misfit.at, misfit.reason) for misfit in bad], pa.string())
        made[BAD] = _sparse(len(values), [(misfit.at, values[misfit.at].as_py()) for misfit in bad], pa.binary())
        arrays = [made[name] if name in made else records.column(name) for name in self._schema.names]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return rows.filter(pa.compute.invert(_flags(len(values), bad))) if bad and self._on_bad == DROP else rows


@lru_cache(maxsize=16)
def typed_rows(options: ValueOptions, schema: Any) -> TypedRows:
    """Kept for the next task: small tasks would spend much of their time on it."""
    return TypedRows(options, schema)


def _flags(rows: int, places: Sequence[Misfit]) -> Any:
    flags = [False] * rows
    for misfit in places:
        flags[misfit.at] = True
    return pa.array(flags)


def _sparse(rows: int, found: Sequence[tuple[int, Any]], kind: Any) -> Any:
    if not found:
        return pa.nulls(rows, kind)
    cells: list[Any] = [None] * rows
    for at, cell in found:
        cells[at] = cell
    return pa.array(cells, kind)


def _failure(records: RecordBatch, misfit: Misfit) -> BadValue:
    topic, partition, offset = (records.column(name)[misfit.at].as_py() for name in _PLACE)
    return BadValue(
        f"the value at offset {offset} of partition {partition} of '{topic}' does not fit the option '{SCHEMA}': "
        f"{misfit.reason}. Without {ON_BAD}=fail the row is kept, with this reason in the column {ERROR}"
    )
