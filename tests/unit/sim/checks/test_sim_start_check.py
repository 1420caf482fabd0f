"""The judge of log starts: a compacted log that begins later than the others has lost its first segment."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from penstock.sim.checks.chains import ChainChecker
from penstock.sim.checks.starts import StartChecker
from penstock.sim.judges.history import Violation

KEY = (b"0123456789abcdef", 0)


class Config(NamedTuple):
    delete: bool


class Log(NamedTuple):
    log_start_offset: int
    config: Config = Config(delete=False)


@pytest.fixture
def chains() -> ChainChecker:
    """The partition is compacted."""
    checker = ChainChecker()
    checker.compacts(KEY)
    return checker


def test_equal_starts_are_good(chains: ChainChecker) -> None:
    starts = StartChecker(chains)
    starts.look("t-0", KEY, {1: Log(0), 2: Log(0)}, ())
    starts.look("t-0", KEY, {1: Log(7), 2: Log(7)}, ())
    starts.look("t-0", KEY, {}, ())


def test_a_later_start_is_told_with_both_offsets(chains: ChainChecker) -> None:
    with pytest.raises(Violation, match="t-0 on 2 begins at offset 7 and another in-sync replica at 0"):
        StartChecker(chains).look("t-0", KEY, {1: Log(0), 2: Log(7)}, ())


def test_a_damaged_replica_is_excused(chains: ChainChecker) -> None:
    StartChecker(chains).look("t-0", KEY, {1: Log(0), 2: Log(7)}, {2: None})


def test_where_records_were_ever_deleted_nothing_is_judged(chains: ChainChecker) -> None:
    starts = StartChecker(chains)
    starts.look("t-0", KEY, {1: Log(0), 2: Log(0, Config(delete=True))}, ())
    starts.look("t-0", KEY, {1: Log(0), 2: Log(7)}, ())
    starts = StartChecker(ChainChecker())
    starts.look("t-0", KEY, {1: Log(0), 2: Log(7)}, ())
