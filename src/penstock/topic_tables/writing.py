"""How rows go into a table, with the positions, as one version: added, or in place of older ones with the same key."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.tables import Committed, Evolution, SchemaMismatch, Span, Table
from penstock.tables.conform import conforming
from penstock.topic_tables.keyed import KeyedShape
from penstock.topic_tables.newest import TOMBSTONES, newest
from penstock.topic_tables.shapes import Shape


class RowWriter:
    pause_s = 0.0
    """How long commits should be apart at least."""

    def __init__(self, table: Table, shape: Shape) -> None:
        self._table = table
        self._shape = shape
        self._known = shape.schema

    def evolve(self) -> Evolution | None:
        """Makes the table fit for the rows, if their schema has grown. Raises SchemaMismatch.

        This comes before dead letters and rows are written: whatever a crash leaves, records that fit now fit again.
        """
        if self._shape.schema is self._known:
            return None
        found = self._table.evolve(self._shape.schema)
        if found.breaking:  # another process changed it
            raise SchemaMismatch(f"{self._table.directory}: {'; '.join(map(str, found.breaking))}")
        self._known = self._shape.schema
        return found

    def write(self, rows: Sequence[Any], tombstones: Sequence[Any], spans: Mapping[str, Span]) -> Committed:
        if not isinstance(self._shape, KeyedShape):
            return self._table.append(rows, spans)
        began = time.monotonic()
        columns = self._shape.keyed_by
        self._table.refresh()  # another process may have compacted it, and deleted files
        changes = newest(
            pa.Table.from_batches(conforming(rows, self._shape.schema), self._shape.schema),
            pa.Table.from_batches(tombstones, TOMBSTONES),
            columns,
            self._table.find,
        )
        done = self._table.merge(columns.keys, changes.upserts, changes.deletes, spans)
        # Files are written anew: half of the time is left for reading, and for more changes of the same keys.
        self.pause_s = time.monotonic() - began
        return done
