"""One table through everything that changes tables, and a copy of it after each change."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.tables import Span, Table

AT = pa.timestamp("us", "UTC")
BEGIN = datetime(2026, 1, 31, 22, tzinfo=UTC)
USER = [pa.field("country", pa.string()), pa.field("age", pa.int32())]
FIELDS = [
    pa.field("id", pa.int32()),
    pa.field("name", pa.string()),
    pa.field("at", AT),
    pa.field("day", pa.date32()),
    pa.field("price", pa.decimal128(10, 2)),
    pa.field("share", pa.float64()),
    pa.field("is_new", pa.bool_()),
    pa.field("value", pa.binary()),
    pa.field("user", pa.struct(USER)),
    pa.field("tags", pa.list_(pa.string())),
    pa.field("counts", pa.map_(pa.string(), pa.int64())),
]
STREAM = "events-0"
BATCH = 50


def rows(first: int, end: int, word: str = "event") -> list[dict[str, Any]]:
    return [_row(number, word) for number in range(first, end)]


def _row(number: int, word: str) -> dict[str, Any]:
    at = BEGIN + timedelta(minutes=5 * number, microseconds=number)
    return {
        "id": number,
        "name": None if number % 11 == 0 else f"{word} {number} \N{GREEK SMALL LETTER ALPHA}'\"%",
        "at": at,
        "day": None if number % 13 == 0 else at.date(),
        "price": Decimal(number) / 4,
        "share": number / 3,
        "is_new": number % 2 == 0,
        "value": bytes([number % 256, 0, 255]),
        "user": None if number % 7 == 0 else {"country": "NO", "age": number},
        "tags": [f"t{one}" for one in range(number % 4)],
        "counts": [(f"k{one}", one) for one in range(number % 3)],
    }


class Story:
    """`stages` yields a name for each change, and the directory of a copy of the table after it."""

    def __init__(self, directory: Path) -> None:
        self._copies = directory
        self._place = directory / "table"
        self._schema = pa.schema(FIELDS)
        self._written = 0
        self._table = Table.create(self._place, self._schema, ["day"], {"delta.checkpointInterval": "5"})

    def stages(self) -> Iterator[tuple[str, Path]]:
        steps: dict[str, Callable[[], None]] = {
            "appended": self._append,
            "merged by key": self._merge,
            "compacted": self._compact,
            "schema changed": self._change_schema,
            "merged after it": self._merge,
            "old versions gone": self._expire,
            "replaced": self._replace,
            "compacted again": self._compact,
        }
        for number, (name, step) in enumerate(steps.items()):
            step()
            copy = self._copies / f"stage-{number}"
            shutil.copytree(self._place, copy)
            yield name, copy

    def _append(self) -> None:
        for _ in range(6):
            first, self._written = self._written, self._written + BATCH
            self._table.append(self._arrow(rows(first, self._written)), {STREAM: Span(first, self._written)})

    def _merge(self) -> None:
        """Every fifth row changes, every seventh of the others goes, and some are new."""
        present = range(self._written)
        changed = [one for number in present if number % 5 == 0 for one in rows(number, number + 1, "changed")]
        gone = [number for number in present if number % 5 and number % 7 == 0]
        keys = pa.table({"id": pa.array(gone, self._schema.field("id").type)})
        new = rows(self._written, self._written + BATCH, "new")
        self._table.merge(["id"], self._arrow([*changed, *new]), keys)
        self._written += BATCH
        first, self._written = self._written, self._written + BATCH
        self._table.append(self._arrow(rows(first, self._written)))

    def _compact(self) -> None:
        self._append_more()
        self._table.compact(is_thorough=True)

    def _append_more(self) -> None:
        for _ in range(4):
            first, self._written = self._written, self._written + BATCH
            self._table.append(self._arrow(rows(first, self._written)))

    def _change_schema(self) -> None:
        """A wider integer, a column more, and a field more within a struct."""
        wider = {"id": pa.int64(), "user": pa.struct([*USER, pa.field("city", pa.string())])}
        fields = [field.with_type(wider.get(field.name, field.type)) for field in FIELDS]
        self._schema = pa.schema([*fields, pa.field("more", pa.float32())])
        found = self._table.evolve(self._schema)
        if found.breaking:
            raise RuntimeError(f"the schema cannot change: {found.breaking}")
        self._append_more()

    def _expire(self) -> None:
        self._append_more()
        self._table.expire(timedelta(0), unfinished_s=0)

    def _replace(self) -> None:
        self._table.replace(self._arrow(rows(0, 2 * BATCH, "other")))

    def _arrow(self, given: list[dict[str, Any]]) -> Any:
        return pa.Table.from_pylist(given, schema=self._schema)
