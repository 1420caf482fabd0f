"""The judge of compacted topics, fed with histories that are right and wrong."""

from __future__ import annotations

import pytest

from penstock.sim.checks.keyed import check_keyed
from penstock.sim.history import History, Outcome, Place, Seen, Violation
from penstock.sim.workload.keyed import KEYS

PLACE = Place("keyed", 0)


def history(count: int) -> History:
    """So many records of one lane, acknowledged and read at offsets 0, 1, 2, ..."""
    made = History(lambda: 1.0)
    for number in range(count):
        write = made.begin_write(PLACE, "lane", number, -1, is_idempotent=True)
        made.end_write(write, Outcome.ACKNOWLEDGED, number)
        made.saw(PLACE, number, write.value, "reader", 1, 1)
    return made


def final(of: History, *offsets: int) -> dict[int, Seen]:
    return {offset: of.seen[PLACE][offset] for offset in offsets}


def broken(of: History, there: dict[int, Seen]) -> str:
    with pytest.raises(Violation) as caught:
        check_keyed(of, PLACE, there)
    return caught.value.what


def test_older_records_of_a_key_may_go() -> None:
    of = history(2 * KEYS)
    check_keyed(of, PLACE, final(of, *range(KEYS, 2 * KEYS)))
    check_keyed(of, PLACE, final(of, *range(2 * KEYS)))


def test_the_last_record_of_a_key_must_not() -> None:
    of = history(2 * KEYS)
    there = final(of, *range(2 * KEYS - 1))
    assert broken(of, there) == "compaction keeps the last record of a key"
    assert broken(of, {}) == "compaction keeps the last record of a key"


def test_what_is_not_acknowledged_may_go() -> None:
    of = history(1)
    of.end_write(of.begin_write(PLACE, "lane", KEYS, -1, is_idempotent=True), Outcome.UNKNOWN)
    check_keyed(of, PLACE, final(of, 0))


def test_records_that_move_come_again_or_from_nowhere() -> None:
    of = history(3)
    of.writes[1].offset = 2
    assert broken(of, {}) == "what is acknowledged is kept at its offset"
    of = history(3)
    of.writes[1].outcome = Outcome.UNKNOWN
    of.saw(PLACE, 3, of.writes[1].value, "reader", 1, 1)
    assert broken(of, {}) == "a lane is in order"
    of = history(3)
    of.saw(PLACE, 3, b"lane/77", "reader", 1, 1)
    assert broken(of, {}) == "nothing is made up"
