"""Rows for tests of tables: events with ids that count up, and what a table has of them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.tables import Span, Table

EVENTS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("value", pa.binary()),
    ]
)
BEGIN = datetime(2026, 1, 31, 22, tzinfo=UTC)
STREAM = "clicks-0"


def events(first: int, end: int) -> Any:
    """One an hour: a day has 24 of them."""
    times = [BEGIN + timedelta(hours=one) for one in range(first, end)]
    columns = {
        "id": range(first, end),
        "name": [f"event {one}" for one in range(first, end)],
        "at": times,
        "day": [date(2026, 1, 31) + timedelta(days=(one + 22) // 24) for one in range(first, end)],
        "value": [b"v" * (one % 7) for one in range(first, end)],
    }
    return pa.table(columns, schema=EVENTS)


def append(table: Table, first: int, end: int, stream: str = STREAM) -> int:
    """Appends events with their ids as offsets. Returns the version."""
    return table.append(events(first, end), {stream: Span(first, end)}).version


def ids(table: Table | Path, version: int | None = None) -> list[int]:
    """In order: a reader may take files in any."""
    opened = table if isinstance(table, Table) else Table.open(table)
    found: list[int] = sorted(opened.at(version).arrow().column("id").to_pylist())
    return found


def parquet_files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*.parquet") if "_delta_log" not in path.parts}
