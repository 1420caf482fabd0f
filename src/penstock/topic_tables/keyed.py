"""Rows of a table that has the newest row of each key: records without a value delete, and records need a key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.values import Misfit
from penstock.model.errors import ConfigError
from penstock.topic_tables.newest import TOMBSTONES, KeyColumns
from penstock.topic_tables.shapes import Shape, Shaped, shape_some

NO_KEY = "the record has no key"


class KeyedShape:
    """`plain` makes the rows of records that have a value."""

    def __init__(self, plain: Shape, keyed_by: KeyColumns) -> None:
        self._plain = plain
        self.keyed_by = keyed_by
        self.columns: Any = plain.columns
        self.has_date = plain.has_date

    @property
    def schema(self) -> Any:
        return self._plain.schema

    def shape(self, records: Any) -> Shaped:
        is_tombstone = records.column("value").is_null()
        is_strange = records.column("key").is_null()
        if self.keyed_by.record_key not in self.keyed_by.keys:
            is_strange = pc.and_(is_strange, is_tombstone)
        is_row = pc.invert(pc.or_(is_tombstone, is_strange))
        if is_row.true_count == records.num_rows:
            return self._plain.shape(records)
        shaped = shape_some(self._plain, records, is_row)
        misfits = [*shaped.misfits, *(Misfit(at, NO_KEY) for at in pc.indices_nonzero(is_strange).to_pylist())]
        tombstones = records.filter(pc.and_not(is_tombstone, is_strange)).select(TOMBSTONES.names)
        return Shaped(shaped.rows, sorted(misfits), tombstones)


def check_key(schema: Any, names: tuple[str, ...]) -> None:
    """Raises ConfigError for columns that a key cannot be made of."""
    if len(set(names)) != len(names):
        raise ConfigError(f"--key names a column twice: {', '.join(names)}")
    for name in names:
        if name not in schema.names:
            raise ConfigError(f"--key {name}: the table's columns are {', '.join(schema.names)}")
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise ConfigError(f"--key {name}: it is {kind}, which cannot be a key: take strings, integers or times")
