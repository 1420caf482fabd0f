"""The judges of compacted topics, fed with histories and logs that are right and wrong."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest

from penstock.records.batch import TRANSACTIONAL_BIT
from penstock.records.builder import Record, build_batch
from penstock.records.control import ABORT, COMMIT, build_marker
from penstock.sim.checks.files import check_equal_keys
from penstock.sim.checks.keyed import check_keyed
from penstock.sim.judges.history import History, Outcome, Place, Seen, Violation, Write
from penstock.sim.machine.disk import SimDisk
from penstock.sim.workload.writers.keyed import is_tombstone, key_of

PLACE = Place("keyed", 0)
HOT = [number for number in range(1, 200) if number % 3 and number % 5 == 1 and number % 7 != 6]
"""Numbers of one key; none is a tombstone."""
DELETES = next(number for number in count(HOT[3]) if number % 3 and number % 5 == 1 and number % 7 == 6)


def write(history: History, number: int, offset: int, outcome: Outcome = Outcome.ACKNOWLEDGED) -> Write:
    """Written, and read if it has an offset."""
    made = history.begin_write(PLACE, "lane", number, -1, is_idempotent=True)
    history.end_write(made, outcome, offset if outcome is Outcome.ACKNOWLEDGED else -1)
    if offset >= 0:
        history.saw(PLACE, offset, made.value, "reader", 1, 1)
    return made


def history(*numbers: int) -> History:
    """Records of one lane, acknowledged and read at offsets 0, 1, 2, ..."""
    made = History(lambda: 1.0)
    for offset, number in enumerate(numbers):
        write(made, number, offset)
    return made


def final(of: History, *offsets: int) -> dict[int, Seen]:
    return {offset: of.seen[PLACE][offset] for offset in offsets}


def broken(of: History, there: dict[int, Seen], *, tombstones_may_go: bool = True) -> str:
    with pytest.raises(Violation) as caught:
        check_keyed(of, PLACE, there, tombstones_may_go=tombstones_may_go)
    return caught.value.what


def good(of: History, *offsets: int) -> None:
    check_keyed(of, PLACE, final(of, *offsets), tombstones_may_go=True)


def test_the_numbers_are_what_they_should_be() -> None:
    keys = {key_of(entry) for entry in history(*HOT, DELETES).writes}
    assert len(keys) == 1
    assert [entry.number for entry in history(*HOT, DELETES).writes if is_tombstone(entry)] == [DELETES]


def test_older_records_of_a_key_may_go() -> None:
    of = history(*HOT[:4])
    good(of, 3)
    good(of, 0, 1, 2, 3)


def test_the_last_record_of_a_key_must_not() -> None:
    of = history(*HOT[:4])
    assert broken(of, final(of, 0, 1, 2)) == "compaction keeps the last record of a key"
    assert broken(of, {}) == "compaction keeps the last record of a key"


def test_what_is_not_acknowledged_may_go() -> None:
    of = history(HOT[0])
    write(of, HOT[1], -1, Outcome.UNKNOWN)
    good(of, 0)


def test_a_tombstone_may_go_with_all_before_it() -> None:
    of = history(*HOT[:2], DELETES)
    good(of, 2)
    good(of)
    assert broken(of, {}, tombstones_may_go=False) == "compaction keeps the last record of a key"


def test_what_was_deleted_must_not_come_back() -> None:
    of = history(HOT[0], DELETES)
    assert broken(of, final(of, 0)) == "deleted records do not return"


def test_a_record_after_the_tombstone_must_stay() -> None:
    of = history(HOT[0], DELETES, next(number for number in HOT if number > DELETES))
    assert broken(of, {}) == "compaction keeps the last record of a key"


def test_a_tombstone_nobody_heard_of_may_have_been_there() -> None:
    of = history(HOT[0])
    write(of, DELETES, -1, Outcome.UNKNOWN)
    good(of)


def test_records_that_move_come_again_or_from_nowhere() -> None:
    of = history(1, 2, 3)
    of.writes[1].offset = 2
    assert broken(of, {}) == "acknowledged records keep their offset"
    of = history(1, 2, 3)
    of.writes[1].outcome = Outcome.UNKNOWN
    of.saw(PLACE, 3, of.writes[1].value, "reader", 1, 1)
    assert broken(of, {}) == "a lane stays in order"
    of = history(1, 2, 3)
    of.saw(PLACE, 3, b"lane/77", "reader", 1, 1)
    assert broken(of, {}) == "every record was written"


# -- replicas ---------------------------------------------------------------------------


def log_of(*records: tuple[int, bytes, bytes | None]) -> tuple[SimDisk, str]:
    """(offset, key, value) each, a batch of its own."""
    return log_with(*(build_batch([Record(key, value)], base_offset=offset) for offset, key, value in records))


def log_with(*batches: bytes) -> tuple[SimDisk, str]:
    disk = SimDisk(Random(0))
    disk.make_directory("/log")
    file = disk.open("/log/00000000000000000000.log", create=True)
    at = 0
    for data in batches:
        file.write(at, [data])
        at += len(data)
    return disk, "/log"


WHOLE = ((0, b"a", b"1"), (1, b"b", b"1"), (2, b"a", b"2"), (3, b"b", None))


@pytest.mark.parametrize("compacted", [WHOLE[1:], WHOLE[2:], WHOLE[2:3]])
def test_replicas_may_have_compacted_more_or_less(compacted: tuple[tuple[int, bytes, bytes | None], ...]) -> None:
    check_equal_keys(PLACE, {1: log_of(*WHOLE), 2: log_of(*compacted)}, 4)


@pytest.mark.parametrize("other", [WHOLE[:2], WHOLE[1:3], WHOLE[:3], (WHOLE[0], WHOLE[3])])
def test_replicas_must_have_the_same_last_records(other: tuple[tuple[int, bytes, bytes | None], ...]) -> None:
    with pytest.raises(Violation, match="replicas have the same last record of a key"):
        check_equal_keys(PLACE, {1: log_of(*WHOLE), 2: log_of(*other)}, 4)


def test_what_is_not_committed_may_differ() -> None:
    check_equal_keys(PLACE, {1: log_of(*WHOLE), 2: log_of(*WHOLE, (4, b"a", b"3"))}, 4)


def transactional(offset: int, value: bytes, producer_id: int = 7) -> bytes:
    return build_batch(
        [Record(b"a", value)],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        attributes=TRANSACTIONAL_BIT,
    )


def marker(offset: int, kind: int, producer_id: int = 7) -> bytes:
    made = bytearray(build_marker(producer_id, 0, kind, 0, 0))
    made[:8] = offset.to_bytes(8, "big")  # the checksum does not cover the base offset
    return bytes(made)


BEFORE = build_batch([Record(b"a", b"1")], base_offset=0)
OTHER = transactional(2, b"3", producer_id=8)
ABORTED = (transactional(1, b"2"), marker(3, ABORT))


@pytest.mark.parametrize("left", [ABORTED, ABORTED[1:], ()])
def test_compaction_may_have_removed_what_was_aborted_and_its_marker(left: tuple[bytes, ...]) -> None:
    whole = log_with(BEFORE, *ABORTED)
    check_equal_keys(PLACE, {1: whole, 2: log_with(BEFORE, *left)}, 4)


def test_records_of_committed_transactions_are_the_last_of_their_key() -> None:
    """An abort ends the transaction of one producer only."""
    whole = log_with(BEFORE, ABORTED[0], OTHER, ABORTED[1], marker(4, COMMIT, producer_id=8))
    check_equal_keys(PLACE, {1: whole, 2: log_with(OTHER, marker(4, COMMIT, producer_id=8))}, 5)
    with pytest.raises(Violation, match=r"b'a' is at 2 on 1, and at 0 on 2"):
        check_equal_keys(PLACE, {1: whole, 2: log_with(BEFORE, *ABORTED)}, 5)
