"""What the rows of a table look like: a shape turns decoded records into rows, and names those that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.values import Misfit

RecordBatch = Any
ArrowSchema = Any

DATE: Final = "date"
"""The column for partitioning by the day of the record's timestamp, in UTC."""
_EPOCH = date(1970, 1, 1)
_DAY_US = 86_400_000_000
FIRST_US = (date.min - _EPOCH).days * _DAY_US
LAST_US = (date.max - _EPOCH).days * _DAY_US
"""Timestamps may be any numbers: one outside the calendar, as in microseconds, is filed under the nearest day."""


class Shaped(NamedTuple):
    rows: RecordBatch
    misfits: Sequence[Misfit] = ()
    tombstones: RecordBatch | None = None
    """Keys whose rows go, with the places of their records (`newest.TOMBSTONES`)."""


class Shape(Protocol):
    @property
    def columns(self) -> ArrowSchema:
        """What is needed of the records, in the types of `arrow.decode`. It has `offset`, `timestamp` and `headers`."""

    @property
    def schema(self) -> ArrowSchema:
        """Of the rows."""

    @property
    def has_date(self) -> bool:
        """Whether rows have a column for the day of the record's timestamp."""

    def shape(self, records: RecordBatch) -> Shaped: ...


def shape_some(shape: Shape, records: RecordBatch, chosen: Any) -> Shaped:
    """`chosen` is a mask. The places of misfits are those in all records."""
    shaped = shape.shape(records.filter(chosen))
    places = pc.indices_nonzero(chosen)
    return shaped._replace(misfits=[Misfit(places[misfit.at].as_py(), misfit.reason) for misfit in shaped.misfits])


def dates_of(timestamps: Any) -> Any:
    numbers = timestamps.cast(pa.int64())
    bounded = pc.min_element_wise(pc.max_element_wise(numbers, FIRST_US), LAST_US)
    return bounded.cast(timestamps.type).cast(pa.date32())
