"""Up to where a table has each stream, and what a commit is in view of that.

A stream is a sequence of rows with offsets, such as a partition of a topic. A table knows, for each stream, the next
offset: Delta keeps it as the version of an application transaction (`txn`), committed with the rows. So the table alone
tells what is in it. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from penstock.tables.errors import PositionsMoved


class Span(NamedTuple):
    """Rows with offsets from `start` to before `end`. Offsets may be missing in between."""

    start: int
    end: int


class Verdict(Enum):
    NEW = "new"
    REPLAY = "replay"


def judge(known: Mapping[str, int], offered: Mapping[str, Span]) -> Verdict:
    """Whether rows are new or already in the table. A stream that the table does not have may begin anywhere.

    Raises PositionsMoved if there is a gap, or if only a part is new.
    """
    for stream, span in offered.items():
        if not 0 <= span.start <= span.end < 2**63:
            raise ValueError(f"stream {stream}: {span} is not a range of offsets")
    if all(known.get(stream, span.start) == span.start for stream, span in offered.items()):
        return Verdict.NEW
    if all(known.get(stream, -1) >= span.end for stream, span in offered.items()):
        return Verdict.REPLAY
    stream, span = next((one, span) for one, span in offered.items() if known.get(one, span.start) != span.start)
    at = known[stream]
    what = "so rows are missing in between" if span.start > at else "so a part of the rows is already in it"
    raise PositionsMoved(
        f"stream {stream}: the table has everything up to offset {at}, and the commit has {span.start} to {span.end}, "
        f"{what}",
        {one: known[one] for one in offered if one in known},
    )
