"""The computation of an aggregate: its columns from JSON values, and the rules for bad records.

A record is bad if its value is not a JSON object, if its event time is missing or not a time, or if a field to be
summed is present and not a number. A missing group-by field is null, which is a group like any other. A missing field
to be summed adds nothing. Must not know: brokers, sinks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.spark.jobs.errors import WrongJob

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DURATION = re.compile(r"(\d+) (millisecond|second|minute|hour|day|week)s?")
UNITS_MS = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
FIELD = re.compile(r"[^.'\"\[\]\s]+(\.[^.'\"\[\]\s]+)*")
REASON, EVENT_TIME, PARSED = "_reason", "_event_time", "_parsed"


def duration_ms(option: str, text: str) -> int:
    """Parses a duration in Spark's form: 1 minute, 30 seconds. Raises WrongJob."""
    found = DURATION.fullmatch(" ".join(text.lower().split()))
    if found is None or not int(found[1]):
        raise WrongJob(f"{option} is '{text}': write a number and a unit, for example 1 minute or 30 seconds")
    return int(found[1]) * UNITS_MS[found[2]]


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    window: str
    slide: str | None = None
    watermark: str = "30 seconds"
    group_by: tuple[str, ...] = ()
    """Fields of the value as paths: user.country."""
    sums: tuple[str, ...] = ()
    has_count: bool = True
    event_time: str | None = None
    """A field in milliseconds since 1970 or ISO 8601. None: the record's timestamp."""

    def check(self) -> None:
        """Raises WrongJob."""
        window_ms = duration_ms("--window", self.window)
        if self.slide is not None and duration_ms("--slide", self.slide) > window_ms:
            raise WrongJob(
                f"--slide is '{self.slide}', so records between two windows would be lost: write at most {self.window}"
            )
        if self.watermark != "0 seconds":
            duration_ms("--watermark", self.watermark)
        if not self.has_count and not self.sums:
            raise WrongJob("nothing to compute: give --count, --sum FIELD or both")
        for option, fields in (("--group-by", self.group_by), ("--sum", self.sums), ("--event-time", self._time_field)):
            for field in fields:
                if not FIELD.fullmatch(field):
                    raise WrongJob(f"{option} has '{field}': write fields, with dots between levels: user.country")
        names = self.columns
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise WrongJob(f"two columns of the result would be named {twice[0]}: rename a field first")

    @property
    def _time_field(self) -> tuple[str, ...]:
        return () if self.event_time is None else (self.event_time,)

    @property
    def columns(self) -> list[str]:
        """The columns of the result, in order."""
        counts = ["count"] if self.has_count else []
        return ["window_start", "window_end", *map(_name, self.group_by), *counts, *map(_sum_name, self.sums)]

    def judged(self, rows: DataFrame) -> DataFrame:
        """Adds the parsed value, the event time, and the reason why the record is bad, or null."""
        from pyspark.sql import functions as f

        parsed = rows.withColumn(PARSED, f.try_parse_json(f.col("value").cast("string")))
        timed = parsed.withColumn(EVENT_TIME, self._time())
        is_object = f.schema_of_variant(PARSED).startswith("OBJECT")
        reason = f.when(~f.coalesce(is_object, f.lit(False)), f.lit("the value is not a JSON object"))
        if self.event_time is not None:
            reason = reason.when(f.col(EVENT_TIME).isNull(), f.lit(f"field {self.event_time} is not a time"))
        for field in self.sums:
            is_wrong = _get(field, "string").isNotNull() & _get(field, "double").isNull()
            reason = reason.when(is_wrong, f.lit(f"field {field} is not a number"))
        return timed.withColumn(REASON, reason)

    def _time(self) -> Column:
        from pyspark.sql import functions as f

        if self.event_time is None:
            return f.col("timestamp")
        number = f.timestamp_millis(_get(self.event_time, "double").cast("long"))
        return f.coalesce(number, _get(self.event_time, "timestamp"))

    def results(self, judged: DataFrame) -> DataFrame:
        """One row per window and group, after the watermark has passed the window's end."""
        from pyspark.sql import functions as f

        good = judged.where(f.col(REASON).isNull()).withWatermark(EVENT_TIME, self.watermark)
        groups = [_get(field, "string").alias(_name(field)) for field in self.group_by]
        window = f.window(EVENT_TIME, self.window, self.slide)
        counts = [f.count(f.lit(1)).alias("count")] if self.has_count else []
        sums = [f.sum(_get(field, "double")).alias(_sum_name(field)) for field in self.sums]
        edges = {"window_start": f.col("window.start"), "window_end": f.col("window.end")}
        return good.groupBy(window, *groups).agg(*counts, *sums).withColumns(edges).select(*self.columns)

    def key(self) -> Column:
        """The key of a result's record: the group's value, or a JSON array of several values."""
        from pyspark.sql import functions as f

        names = [_name(field) for field in self.group_by]
        if not names:
            return f.lit(None).cast("string")
        return f.col(names[0]) if len(names) == 1 else f.to_json(f.array(*names))


def _get(field: str, kind: str) -> Column:
    from pyspark.sql import functions as f

    return f.try_variant_get(f.col(PARSED), "$" + "".join(f"['{name}']" for name in field.split(".")), kind)


def _name(field: str) -> str:
    return field.replace(".", "_")


def _sum_name(field: str) -> str:
    return f"sum_{_name(field)}"
