"""Rows as text that is the same whoever has read them. Needs nothing but Python: the older Spark's has no Penstock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal


def plain_row(row: Mapping[str, object]) -> str:
    return json.dumps({name: plain(value) for name, value in row.items()}, sort_keys=True)


def plain(value: object) -> object:
    """Each type says its name, so that 1 is not 1.0 and a text not a time."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return f"time {moment.astimezone(UTC).isoformat(timespec='microseconds')}"
    if isinstance(value, date):
        return f"date {value.isoformat()}"
    if isinstance(value, float):
        return f"float {value!r}"
    if isinstance(value, Decimal):
        return f"decimal {value}"
    if isinstance(value, bytes | bytearray):
        return f"bytes {bytes(value).hex()}"
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, tuple):  # an entry of a map, in Arrow
        key, one = value
        return {"key": plain(key), "value": plain(one)}
    if isinstance(value, Iterable):
        return [plain(one) for one in value]
    raise TypeError(f"a {type(value).__name__} was not expected in a row")
