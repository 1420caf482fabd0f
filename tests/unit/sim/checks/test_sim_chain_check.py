"""The judge of committed batches: fed with logs that are as long as they should be, and different."""

from __future__ import annotations

from random import Random

import pytest

from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.sim.checks.chains import ChainChecker
from penstock.sim.judges.history import Violation
from penstock.sim.machine.disk import SimDisk
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

KEY = (b"0123456789abcdef", 0)
SMALL = LogConfig(segment_bytes=150)


class Replica:
    def __init__(self, node: int) -> None:
        self.node = node
        self.disk = SimDisk(Random(0))
        self.log = Log.open(self.disk, "/data/t-0", SMALL, now_ms=0)

    def append(self, value: bytes, epoch: int) -> None:
        data = build_batch([Record(None, value, (), 1)])
        self.log.append(read_header(data), data, epoch, 0)

    def leads(self, checker: ChainChecker, high_watermark: int) -> None:
        checker.committed(self.node, "t-0", KEY, self.log, high_watermark, self.disk)

    def follows(self, checker: ChainChecker, high_watermark: int, *, is_excused: bool = False) -> None:
        checker.holds(self.node, "t-0", KEY, self.log, high_watermark, self.disk, is_excused=is_excused)

    def is_sound(self, checker: ChainChecker, end: int = 5, max_epoch: int = 1) -> bool:
        paths = [segment.path for segment in self.log.segments]
        return checker.is_sound(KEY, self.disk, paths, range(end), max_epoch)


@pytest.fixture
def two() -> tuple[Replica, Replica]:
    """With six batches, of two epochs, in several segments."""
    pair = Replica(1), Replica(2)
    for number in range(6):
        for replica in pair:
            replica.append(b"v%d" % number, number // 3)
    assert len(pair[0].log.segments) > 2
    return pair


def test_leaders_that_have_the_same(two: tuple[Replica, Replica]) -> None:
    checker = ChainChecker()
    for high_watermark in (1, 2, 5):
        two[0].leads(checker, high_watermark)
    two[1].leads(checker, 3)
    two[1].leads(checker, 6)
    two[0].leads(checker, 6)


@pytest.mark.parametrize("changed", [(b"other", 1), (b"v5", 2)])
def test_a_leader_as_long_and_different(two: tuple[Replica, Replica], changed: tuple[bytes, int]) -> None:
    checker = ChainChecker()
    two[0].leads(checker, 6)
    two[1].leads(checker, 4)
    two[1].log.truncate_to(5)
    two[1].append(*changed)
    with pytest.raises(Violation, match="committed records do not change"):
        two[1].leads(checker, 6)


def test_what_was_not_committed_may_differ(two: tuple[Replica, Replica]) -> None:
    checker = ChainChecker()
    two[0].leads(checker, 5)
    two[1].log.truncate_to(5)
    two[1].append(b"other", 2)
    two[1].leads(checker, 6)
    with pytest.raises(Violation):
        two[0].leads(checker, 6)


def test_a_log_that_begins_later(two: tuple[Replica, Replica]) -> None:
    checker = ChainChecker()
    two[0].leads(checker, 5)
    two[1].log.advance_log_start(4)
    two[1].log.apply_retention(0, 5)
    two[1].leads(checker, 6)


# -- in-sync replicas -------------------------------------------------------------------


def test_a_follower_that_lacks_what_is_committed(two: tuple[Replica, Replica]) -> None:
    """As long as the others, with a segment missing in the middle."""
    checker = ChainChecker()
    two[0].leads(checker, 6)
    two[1].follows(checker, 6)
    third = Replica(3)
    for number in range(6):
        third.append(b"v%d" % number, number // 3)
    del third.log._segments.items[1], third.log._segments.bases[1]
    third.follows(checker, 1)
    with pytest.raises(Violation, match="in-sync replicas hold committed records"):
        third.follows(checker, 6)
    with pytest.raises(Violation, match="in-sync replicas hold committed records"):
        third.follows(checker, 6, is_excused=True)


def test_a_follower_that_holds_something_else(two: tuple[Replica, Replica]) -> None:
    checker = ChainChecker()
    two[0].leads(checker, 6)
    two[1].log.truncate_to(5)
    two[1].append(b"other", 1)
    with pytest.raises(Violation, match="committed records do not change"):
        two[1].follows(checker, 6)


def test_a_rotten_batch(two: tuple[Replica, Replica]) -> None:
    checker = ChainChecker()
    two[0].leads(checker, 6)
    segment = two[1].log.segments[1]
    two[1].disk.flip_bit(segment.path, segment.size - 3)
    with pytest.raises(Violation, match="committed records do not change"):
        two[1].follows(checker, 6)
    two[1].follows(checker, 6, is_excused=True)


def test_leader_epochs_that_were_lost(two: tuple[Replica, Replica]) -> None:
    checker = ChainChecker()
    two[0].leads(checker, 6)
    two[1].log.epochs.truncate_from_end(3)
    with pytest.raises(Violation, match="leader epochs are those of the batches"):
        two[1].follows(checker, 6)


# -- compacted logs ---------------------------------------------------------------------


class Keyed(Replica):
    def put(self, offset: int, *records: tuple[bytes, bytes | None]) -> None:
        """With gaps where records are missing, as a leader that has compacted sends them."""
        batch = build_batch([Record(key, value, (), 1) for key, value in records], base_offset=offset, leader_epoch=1)
        self.log.append_replicated(batch, 0, 1)


@pytest.fixture
def keyed() -> tuple[ChainChecker, Keyed]:
    """a, b, a, c gone, d are committed."""
    checker, leader = ChainChecker(), Keyed(1)
    leader.log.config = LogConfig(segment_bytes=1 << 20, compact=True)
    for offset, record in enumerate([(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", None), (b"d", b"1")]):
        leader.put(offset, record)
    checker.compacts(KEY)
    leader.leads(checker, 5)
    return checker, leader


def compacted(*offsets: int) -> Keyed:
    records = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", None), (b"d", b"1")]
    replica = Keyed(2)
    replica.log.config = LogConfig(segment_bytes=1 << 20, compact=True)
    for offset in offsets:
        replica.put(offset, records[offset])
    return replica


def test_what_is_superseded_or_deleted_may_be_missing(keyed: tuple[ChainChecker, Keyed]) -> None:
    compacted(1, 2, 4).follows(keyed[0], 5)


@pytest.mark.parametrize("offsets", [(0, 2, 3, 4), (0, 1, 3, 4), (1, 4)])
def test_the_last_of_a_key_may_not(keyed: tuple[ChainChecker, Keyed], offsets: tuple[int, ...]) -> None:
    with pytest.raises(Violation, match=r"in-sync replicas hold committed records.* last of its key"):
        compacted(*offsets).follows(keyed[0], 5)


def test_a_log_that_nobody_compacts_has_no_gaps(keyed: tuple[ChainChecker, Keyed]) -> None:
    checker, leader = ChainChecker(), keyed[1]
    leader.leads(checker, 5)
    with pytest.raises(Violation, match="lacks the record at offset 0"):
        compacted(1, 2, 4).follows(checker, 5)


# -- what a repair takes for damaged ----------------------------------------------------


def test_a_sound_log_with_gaps(keyed: tuple[ChainChecker, Keyed]) -> None:
    checker = keyed[0]
    assert compacted(1, 2, 4).is_sound(checker)
    assert compacted(0, 1, 2).is_sound(checker, 3)
    assert not compacted(0, 1, 2).is_sound(checker)  # it has lost its end
    assert not compacted(0, 2, 4).is_sound(checker)
    assert not compacted(1, 2, 4).is_sound(checker, max_epoch=0)


def test_a_damaged_log(keyed: tuple[ChainChecker, Keyed]) -> None:
    replica = compacted(0, 1, 2, 3, 4)
    replica.disk.flip_bit(replica.log.segments[0].path, replica.log.segments[0].size - 3)
    assert not replica.is_sound(keyed[0])


def test_what_was_excused_is_judged_when_all_of_it_is_checked_again() -> None:
    """A repair that leaves a deleted record without its tombstone is judged when the node is no longer excused."""
    checker, leader, other = ChainChecker(), Keyed(1), Keyed(2)
    for replica, offsets in ((leader, (0, 1, 2, 3)), (other, (0, 1, 3))):
        replica.log.config = LogConfig(segment_bytes=1 << 20, compact=True)
        for offset in offsets:
            replica.put(offset, ((b"c", b"1"), (b"b", b"1"), (b"c", None), (b"d", b"1"))[offset])
    checker.compacts(KEY)
    leader.leads(checker, 4)
    other.follows(checker, 4, is_excused=True)
    checker.forget(1)
    other.follows(checker, 4)  # nothing in it is new
    checker.forget(2)
    with pytest.raises(Violation, match="a replica with a deleted record has its tombstone"):
        other.follows(checker, 4)
