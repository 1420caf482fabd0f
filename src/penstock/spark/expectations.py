"""Expectations on the rows of a data frame, with counts of the rows that violate them.

    from penstock.spark.expectations import expect, quarantine

    expect(rows, {"positive price": "price > 0"})                          # rows stay and are counted
    expect(rows, {"positive price": "price > 0"}, on_violation="drop")     # rows leave and are counted
    expect(rows, {"positive price": "price > 0"}, on_violation="fail")     # the flow fails
    good, bad = quarantine(rows, {"positive price": "price > 0"})          # `bad` has the column `reason`

Counts are Spark's observed metrics: computed with the rows of a batch, and reported when the batch is committed. So a
batch that is repeated after a failure counts once. `violations_in` reads them from such a report.

Only the server parses SQL, and its errors do not tell which of several expressions is wrong. They do tell the line.
So each expectation begins at a line of its own, far behind those of other SQL (`Declared`).
Importing this module does not import Spark.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ACTIONS = ("keep", "drop", "fail")
METRIC = "penstock-expectations-"  # no flow has such a metric: they begin with penstock_
REASON = "reason"
FIRST_LINE = 1000
_EXAMPLE = "_penstock_example"
_LINE = re.compile(r"\bline (\d+),? pos")

F = TypeVar("F", bound="DataFrame")


@dataclass(slots=True)
class Declared:
    """The expectations of one reading of the definitions: name and SQL by line."""

    lines: dict[int, tuple[str, str]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def add(self, name: str, sql: str) -> int:
        line = FIRST_LINE + len(self.lines)
        self.lines[line] = (name, sql)
        return line

    def named_in(self, error: str) -> str | None:
        """The name of the expectation whose SQL is wrong according to Spark's message; None if it is another error."""
        found = (self.lines.get(int(line)) for line in _LINE.findall(error))
        return next((name for name, _ in filter(None, found)), None)

    def said(self, error: str, cause: str) -> str:
        """The cause in Spark's message, with the name of the expectation if its SQL is wrong."""
        name = self.named_in(error)
        return cause if name is None else f'expectation "{name}": {cause}'


_declared: ContextVar[Declared | None] = ContextVar("declared expectations", default=None)
_of_plain_queries = Declared()


@contextmanager
def declared() -> Iterator[Declared]:
    """Collects the expectations that are declared meanwhile."""
    found = Declared()
    before = _declared.set(found)
    try:
        yield found
    finally:
        _declared.reset(before)


class Halves(NamedTuple):
    good: DataFrame
    bad: DataFrame
    """With the reason."""


def expect(rows: F, expectations: Mapping[str, str], *, on_violation: str = "keep") -> F:
    """The rows, checked. `expectations`: SQL conditions by name. A row for which one is not true violates it.

    `on_violation`: `keep`, `drop`, or `fail`, where the first such row ends the flow with an error that shows it.
    """
    if on_violation == "quarantine":
        raise ValueError('on_violation="quarantine" gives two data frames: good, bad = quarantine(rows, expectations)')
    if on_violation not in ACTIONS:
        raise ValueError(f"on_violation={on_violation!r}: write one of {', '.join(ACTIONS)}")
    checks = _checks("expect", expectations)
    counted: Any = _counted(rows, checks)
    if on_violation == "drop":
        for check in checks:
            counted = counted.where(check.holds())
    if on_violation == "fail":
        counted = _failing(counted, checks)
    return counted  # type: ignore[no-any-return]


def quarantine(rows: DataFrame, expectations: Mapping[str, str], *, reason: str = REASON) -> Halves:
    """The rows that fulfil all expectations, and the others with the names of what they violate in a column `reason`.

    The flow that takes the bad half counts, so that a row counts once if each half has a flow.
    """
    from pyspark.sql import functions

    checks = _checks("quarantine", expectations)
    good: Any = rows
    for check in checks:
        good = good.where(check.holds())
    names = [functions.when(~check.holds(), functions.lit(check.name)) for check in checks]
    bad = _counted(rows, checks).select("*", functions.concat_ws("; ", *names).alias(reason))
    return Halves(good, bad.where(functions.col(f"`{reason}`") != ""))


def violations_in(observed: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """The number of violations by expectation, from the observed metrics of a batch."""
    found: dict[str, int] = {}
    for metric, counts in observed.items():
        if metric.startswith(METRIC):
            for name, count in counts.items():
                found[name] = found.get(name, 0) + int(count or 0)
    return found


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    sql: str
    line: int

    def holds(self) -> Column:
        return self._expression("{}")

    def violations(self) -> Column:
        return self._expression("count_if(NOT {})").alias(self.name)

    def _expression(self, form: str) -> Column:
        """The condition on its line; the line after it ends a comment in it."""
        from pyspark.sql import functions

        condition = form.format(f"coalesce(({self.sql}\n), false)")
        return functions.expr("\n" * (self.line - 1) + condition)


def _checks(what: str, expectations: Mapping[str, str]) -> list[_Check]:
    if not isinstance(expectations, Mapping) or not expectations:
        raise ValueError(f'{what} needs conditions by name, for example {{"positive price": "price > 0"}}')
    for name, sql in expectations.items():
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"{name!r} is no name of an expectation: write text")
        if not isinstance(sql, str) or not sql.strip():
            raise ValueError(f'expectation "{name}" is {sql!r}: write a condition in SQL, for example "price > 0"')
    into = _declared.get() or _of_plain_queries
    return [_Check(name, sql, into.add(name, sql)) for name, sql in expectations.items()]


def _counted(rows: Any, checks: list[_Check]) -> Any:
    into = _declared.get() or _of_plain_queries
    return rows.observe(f"{METRIC}{next(into.numbers)}", *(check.violations() for check in checks))


def _failing(rows: Any, checks: list[_Check]) -> Any:
    """Spark evaluates the example only for a row that violates.

    `withColumn` and `drop` would not do: they need the columns at once, and tables of a pipeline have none yet.
    """
    from pyspark.sql import functions

    shown = rows.select("*", functions.to_json(functions.struct("*")).alias(_EXAMPLE))
    for check in checks:
        what = functions.lit(f'expectation "{check.name}" ({" ".join(check.sql.split())}) is violated by ')
        failure = functions.raise_error(functions.concat(what, functions.col(_EXAMPLE)))
        shown = shown.where(functions.when(check.holds(), functions.lit(True)).otherwise(failure))
    return shown.select(functions.expr(f"* EXCEPT ({_EXAMPLE})"))
