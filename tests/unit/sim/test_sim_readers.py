"""Readers of the simulation see what a broker must not send, whatever others have read before."""

from __future__ import annotations

from random import Random

import pytest
from crc32c import crc32c

from penstock.records.batch import CRC_START, read_header
from penstock.records.builder import Record, build_batch
from penstock.sim.judges.history import History, Place, Violation
from penstock.sim.workload.caller import Caller, KnownLeader
from penstock.sim.workload.reading.readers import WITH_HOLES, Reader
from penstock.wire.messages.fetch import PartitionData

PLACE = Place("data", 0)
LEADER = KnownLeader(1, 3, bytes(16))
LAST_OFFSET_DELTA_AT = 23


@pytest.fixture
def reader() -> Reader:
    return Reader(Caller([("node-1", 9092)], "r0", Random(0), 1.0), History(lambda: 0.0), [PLACE])


def batch(count: int, last_offset_delta: int) -> bytes:
    """Says that it has records up to `last_offset_delta`, whatever is in it."""
    data = bytearray(build_batch([Record(None, b"p/%d" % n, (), 0) for n in range(count)]))
    data[LAST_OFFSET_DELTA_AT : LAST_OFFSET_DELTA_AT + 4] = last_offset_delta.to_bytes(4, "big")
    data[CRC_START - 4 : CRC_START] = crc32c(data[CRC_START:]).to_bytes(4, "big")
    assert read_header(data).next_offset == last_offset_delta + 1
    return bytes(data)


def answer(records: bytes) -> PartitionData:
    return PartitionData(high_watermark=10, records=records)


def test_it_moves_to_the_end_of_a_whole_batch(reader: Reader) -> None:
    assert reader._take(PLACE, LEADER, 0, answer(batch(3, 2))) == 3


def test_a_batch_that_lost_its_last_records(reader: Reader) -> None:
    with pytest.raises(Violation, match="offsets have no holes"):
        reader._take(PLACE, LEADER, 0, answer(batch(2, 2)))


def test_compaction_may_have_taken_the_last_records() -> None:
    caller = Caller([("node-1", 9092)], "keys", Random(0), 1.0)
    reader = Reader(caller, History(lambda: 0.0), [PLACE], manner=WITH_HOLES)
    assert reader._take(PLACE, LEADER, 0, answer(batch(2, 2))) == 3


def test_a_high_watermark_that_is_shown_and_goes_back(reader: Reader) -> None:
    reader._was_shown(PLACE, LEADER, 8, (5, 2))
    with pytest.raises(Violation, match="does not go back"):
        reader._was_shown(PLACE, LEADER, 7, (8, 3))
