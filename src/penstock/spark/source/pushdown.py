"""Filters that Spark pushes down to a batch read, as bounds of the fetched range.

    topic, partition   exact: = in < <= > >=
    offset             exact: = < <= > >=; `in` bounds it, and Spark filters the rest
    timestamp          = > >= set the start, by the broker's index; Spark filters the rest
    is not null        always true for these four

Spark applies all other filters.

Filters are taken only with the option `filterPushdown`. Spark 4.3 keeps one plan of reading for a DataFrame, however
many queries use it: the filters of the last one would also limit the next query without filters, and of two branches
of one query with different filters both would read what the last one asked for. Without the option nothing is taken;
then all that such a plan shares is the range of offsets.

Must not know: clusters; `batch_reader` looks up the offsets of `since_ms`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from penstock.model.topic_partition import TopicPartition

NEVER_NULL = frozenset(("topic", "partition", "offset", "timestamp"))
COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Bounds:
    """The bounds of a read."""

    first_offset: int = 0
    end_offset: int | None = None
    since_ms: int | None = None
    tests: list[tuple[str, Callable[[Any, Any], bool], Any]] = field(default_factory=list)
    """Filters on topic or partition: (column, comparison, value)."""

    def has(self, tp: TopicPartition) -> bool:
        return all(test(getattr(tp, column), value) for column, test, value in self.tests)

    def narrowed(self, start: int, end: int) -> tuple[int, int]:
        start = max(start, self.first_offset)
        return start, end if self.end_offset is None else min(end, self.end_offset)

    def take(self, pushed: Filter) -> bool:
        """Takes a filter. True if Spark no longer needs to apply it."""
        if isinstance(pushed, IsNotNull):
            return _column(pushed.attribute) in NEVER_NULL
        if isinstance(pushed, In):
            return self._take_in(_column(pushed.attribute), pushed.value)
        if not isinstance(pushed, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            return False
        column = _column(pushed.attribute)
        if not _is_of(column, pushed.value):
            return False
        if column == "timestamp":
            return self._take_timestamp(pushed, pushed.value)
        if column == "offset":
            self._take_offset(pushed, pushed.value)
        else:
            self.tests.append((column, COMPARISONS[type(pushed)], pushed.value))
        return True

    def _take_in(self, column: str, values: Iterable[Any]) -> bool:
        chosen = list(values)
        if column == "timestamp" or not chosen or not all(_is_of(column, value) for value in chosen):
            return False
        if column == "offset":
            self._at_least(min(chosen))
            self._below(max(chosen) + 1)
            return False
        self.tests.append((column, _is_in, frozenset(chosen)))
        return True

    def _take_offset(self, pushed: Filter, value: int) -> None:
        if isinstance(pushed, EqualTo | GreaterThanOrEqual):
            self._at_least(value)
        if isinstance(pushed, GreaterThan):
            self._at_least(value + 1)
        if isinstance(pushed, EqualTo | LessThanOrEqual):
            self._below(value + 1)
        if isinstance(pushed, LessThan):
            self._below(value)

    def _take_timestamp(self, pushed: Filter, value: datetime) -> bool:
        if isinstance(pushed, EqualTo | GreaterThan | GreaterThanOrEqual):
            since_ms = (value - EPOCH) // timedelta(milliseconds=1)
            if since_ms > 0:  # 0 leaves nothing out, and negative times have another meaning for brokers
                self.since_ms = since_ms if self.since_ms is None else max(self.since_ms, since_ms)
        return False

    def _at_least(self, offset: int) -> None:
        self.first_offset = max(self.first_offset, offset)

    def _below(self, offset: int) -> None:
        self.end_offset = offset if self.end_offset is None else min(self.end_offset, offset)


def _is_in(value: Any, chosen: Any) -> bool:
    return value in chosen


def _column(path: tuple[str, ...]) -> str:
    return path[0] if len(path) == 1 else ""


def _is_of(column: str, value: object) -> bool:
    """Whether the value fits the column, which must be one of the four."""
    if column == "topic":
        return isinstance(value, str)
    if column == "timestamp":
        return isinstance(value, datetime) and value.tzinfo is not None
    return column in ("partition", "offset") and isinstance(value, int) and not isinstance(value, bool)


class FilterTaker(Protocol):
    def take(self, pushed: Filter) -> bool:
        """Takes a filter. True if Spark no longer needs to apply it."""


class PushFilters:
    """A reader's `pushFilters`, in a form that Spark does not recognise as an override.

    With filter pushdown off (the default) Spark refuses readers whose `pushFilters` is not the inherited function. It
    checks `__func__`. So this object shows the inherited function, and is still called when pushdown is on.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, taker: FilterTaker, *, is_taking: bool) -> None:
        self._taker = taker
        self._is_taking = is_taking

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return [pushed for pushed in filters if not (self._is_taking and self._taker.take(pushed))]
