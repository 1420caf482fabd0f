"""Records that are no rows, in a table of their own in `_dead_letters` beside the rows, with the reason.

This table is committed before that of the rows, and has positions of its own. If a crash comes between the two, the
records are read again, and those that this table has already are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.decode import KAFKA_SCHEMA
from penstock.arrow.values import Misfit
from penstock.tables import Span, Table

NAME: Final = "_dead_letters"
_OF_RECORD = ("partition", "offset", "timestamp", "key", "value", "headers")
SCHEMA: Any = pa.schema([*(KAFKA_SCHEMA.field(name) for name in _OF_RECORD), ("reason", pa.string())])


def dead_rows(records: Any, misfits: Sequence[Misfit]) -> Any:
    """`records`: the batch that the misfits are in."""
    rows = records.select(list(_OF_RECORD)).take(pa.array([one.at for one in misfits], pa.int64()))
    reasons = pa.array([one.reason for one in misfits], pa.string())
    return pa.RecordBatch.from_arrays([*rows.columns, reasons], schema=SCHEMA)


class DeadLetterPlace(Protocol):
    """Where records go that are no rows."""

    def append(self, rows: Mapping[int, list[Any]], streams: Mapping[int, str], reached: Mapping[int, int]) -> int:
        """By partition: rows, and the offsets up to which they are complete. Returns how many were new."""


class DeadLetters:
    def __init__(self, table: Path) -> None:
        self.directory = table / NAME
        self._table: Table | None = None

    def append(self, rows: Mapping[int, list[Any]], streams: Mapping[int, str], reached: Mapping[int, int]) -> int:
        if not rows:
            return 0
        if self._table is None:
            self._table = Table.open_or_create(self.directory, SCHEMA)
        self._table.refresh()
        known = self._table.positions
        new, spans = [], {}
        for partition, batches in sorted(rows.items()):
            stream, end = streams[partition], reached[partition]
            begin = known.get(stream, 0)
            if end <= begin:
                continue
            spans[stream] = Span(begin, end)
            new += [batch.filter(pc.greater_equal(batch.column("offset"), begin)) for batch in batches]
        return self._table.append(new, spans).rows if spans else 0

    def compact(self) -> None:
        if self._table is not None:
            self._table.compact()

    def expire(self, older_than: timedelta) -> None:
        if self._table is not None:
            self._table.expire(older_than)
