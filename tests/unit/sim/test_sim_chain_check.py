"""The judge of committed batches: fed with logs that are as long as they should be, and different."""

from __future__ import annotations

from random import Random

import pytest

from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.sim.checks.chains import ChainChecker
from penstock.sim.disk import SimDisk
from penstock.sim.history import Violation
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

KEY = (b"0123456789abcdef", 0)
SMALL = LogConfig(segment_bytes=150)


class Replica:
    def __init__(self, node: int) -> None:
        self.node = node
        self.disk = SimDisk(Random(0))
        self.log = Log.open(
            self.disk, "/data/t-0", SMALL, recovery_point=0, log_start_offset=0, clean_shutdown=False, now_ms=0
        )

    def append(self, value: bytes, epoch: int) -> None:
        data = build_batch([Record(None, value, (), 1)])
        self.log.append(read_header(data), data, epoch, 0)

    def leads(self, checker: ChainChecker, high_watermark: int) -> None:
        checker.committed(self.node, "t-0", KEY, self.log, high_watermark, self.disk)


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
    with pytest.raises(Violation, match="what is committed stays what it is"):
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
