"""A partition whose oldest records may go: what may be missing, and what may not."""

from __future__ import annotations

import pytest

from penstock.sim.checks.trimmed import check_trimmed
from penstock.sim.judges.history import History, Outcome, Place, Seen, Violation

PLACE = Place("trimmed", 0)


def history(*, trimmed_to: int, records: int = 6) -> History:
    told = History(lambda: 0.0)
    for number in range(records):
        write = told.begin_write(PLACE, "lane", number, -1, is_idempotent=True)
        told.end_write(write, Outcome.ACKNOWLEDGED, number)
    told.end_admin(told.begin_admin("trim", PLACE.topic, value=str(trimmed_to)), Outcome.UNKNOWN)
    return told


def log(*offsets: int, lane: str = "lane") -> dict[int, Seen]:
    return {offset: Seen(f"{lane}/{offset}".encode(), "r", 0.0, 1, 0) for offset in offsets}


@pytest.mark.parametrize(
    ("final", "kept_bytes", "retention_bytes", "broken"),
    [
        (log(2, 3, 4, 5), 10, None, ""),
        (log(1, 2, 3, 4, 5), 10, None, ""),  # what was not acknowledged need not be done
        (log(3, 4, 5), 10, None, "only permitted records are deleted"),
        (log(3, 4, 5), 10, 10, ""),
        (log(3, 4, 5), 9, 10, "only permitted records are deleted"),
        (log(2, 3, 5), 10, None, "acknowledged records are kept"),
        (log(2, 3, 4), 10, None, "acknowledged records are kept"),
        (log(2, 3, 4, 5) | log(6, lane="nobody"), 10, None, "every record was written"),
    ],
)
def test_what_may_be_missing(final: dict[int, Seen], kept_bytes: int, retention_bytes: int | None, broken: str) -> None:
    if not broken:
        check_trimmed(history(trimmed_to=2), PLACE, final, kept_bytes, retention_bytes)
        return
    with pytest.raises(Violation, match=broken):
        check_trimmed(history(trimmed_to=2), PLACE, final, kept_bytes, retention_bytes)


def test_what_was_read_is_kept() -> None:
    told = history(trimmed_to=2)
    told.saw(PLACE, 1, b"something", "r", 1, 0)
    check_trimmed(told, PLACE, log(2, 3, 4, 5), 10, None)
    told.saw(PLACE, 7, b"something", "r", 1, 0)
    with pytest.raises(Violation, match="records that were read are kept"):
        check_trimmed(told, PLACE, log(2, 3, 4, 5), 10, None)
