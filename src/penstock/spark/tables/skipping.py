"""Files that a query's filters exclude: by their partition, and by the limits of their columns in the log.

Spark applies all filters again, so a file may be kept that need not be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from penstock.tables.actions import AddFile
from penstock.tables.files import partition_scalar
from penstock.tables.schema import ArrowSchema

Comparison = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual | In
_MILLISECOND = timedelta(milliseconds=1)


class FileFilter:
    """The filters of a read."""

    def __init__(self) -> None:
        self._filters: list[tuple[str, Comparison]] = []

    def take(self, pushed: Filter) -> bool:
        """Takes a filter. False: Spark applies it, too."""
        if isinstance(pushed, Comparison) and len(pushed.attribute) == 1:
            self._filters.append((pushed.attribute[0], pushed))
        return False

    def keep(self, files: Iterable[AddFile], schema: ArrowSchema) -> list[AddFile]:
        return [file for file in files if self._may_match(file, schema)]

    def _may_match(self, file: AddFile, schema: ArrowSchema) -> bool:
        if not self._filters:
            return True
        told = json.loads(file.stats) if file.stats else {}
        for name, pushed in self._filters:
            index = schema.get_field_index(name)
            if index < 0:
                continue
            kind = schema.field(index).type
            if name in file.partition_values:
                low = high = partition_scalar(file.partition_values[name], kind).as_py()
            else:
                low = _limit(kind, told.get("minValues", {}).get(name))
                high = _limit(kind, told.get("maxValues", {}).get(name))
                if isinstance(high, datetime):
                    high += _MILLISECOND  # some writers cut off what is below it
            if not _overlaps(pushed, low, high):
                return False
        return True


def _limit(kind: Any, told: Any) -> Any:
    """As Python has values of the type. The log has times and dates as text."""
    if not isinstance(told, str):
        return told
    try:
        if pa.types.is_timestamp(kind):
            return datetime.fromisoformat(told)
        if pa.types.is_date(kind):
            return date.fromisoformat(told)
    except ValueError:  # a year beyond Python's
        return None
    return told


def _overlaps(pushed: Comparison, low: Any, high: Any) -> bool:
    wanted = list(pushed.value) if isinstance(pushed, In) else [pushed.value]
    if not all(_are_comparable(value, low) and _are_comparable(value, high) for value in wanted):
        return True
    if isinstance(pushed, EqualTo | In):
        return any(low <= value <= high for value in wanted)
    if isinstance(pushed, GreaterThan):
        return bool(high > wanted[0])
    if isinstance(pushed, GreaterThanOrEqual):
        return bool(high >= wanted[0])
    if isinstance(pushed, LessThan):
        return bool(low < wanted[0])
    return bool(low <= wanted[0])


def _are_comparable(value: Any, limit: Any) -> bool:
    is_known = type(value) is type(limit) and isinstance(value, int | str | date) and not isinstance(value, bool)
    return is_known and not (isinstance(value, datetime) and (value.tzinfo is None) != (limit.tzinfo is None))
