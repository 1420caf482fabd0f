"""Exactly once out of Spark, while drivers, tasks, executors and brokers are killed at every step of the protocol.

The short form is a part of `make test`. `make sink-crashes CRASHES=200` has many more crashes, also of executors, and
`BROKER=kafka` crashes the same against Apache Kafka. With `DELIVERY=at-least-once` the test shows that it would find
rows that come twice.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from copied_rows import Row, compare, rows
from crash_brokers import CrashBrokers, KafkaBroker, PenstockBrokers
from crash_deck import Crashes, rounds, rounds_without_steps
from crash_run import CrashRun

from penstock.spark.sink.steps import Step

SHORT = 19
ROWS_PER_CRASH = 500
CRASHES = int(os.environ.get("PENSTOCK_CRASHES", SHORT))
ROWS = int(os.environ.get("PENSTOCK_CRASHES_ROWS", CRASHES * ROWS_PER_CRASH))
BROKER = os.environ.get("PENSTOCK_CRASHES_BROKER", "penstock")
DELIVERY = os.environ.get("PENSTOCK_CRASHES_DELIVERY", "exactly-once")
SEED = int(os.environ.get("PENSTOCK_CRASHES_SEED", 1))


def brokers(directory: Path) -> CrashBrokers:
    assert BROKER in ("penstock", "kafka"), f"BROKER={BROKER}: use penstock or kafka"
    return KafkaBroker(directory) if BROKER == "kafka" else PenstockBrokers(directory)


def test_every_row_once_whatever_crashes(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    is_exact = DELIVERY != "at-least-once"
    begin = time.monotonic()
    with brokers(tmp_path / "brokers") as running:
        run = CrashRun(tmp_path, running, rows=ROWS, crashes=CRASHES, delivery=DELIVERY, seed=SEED)
        verdict = run.run(rounds(chance) if is_exact else rounds_without_steps(chance))
        print(
            f"\n{ROWS} rows in {run.batches} batches, {DELIVERY}, {running.label}, seed {SEED}: {run.crashes.total} "
            f"crashes, {run.driver_count} drivers, {time.monotonic() - begin:.0f} s\n{run.crashes.table()}\n"
            f"partitions of the target in the end: {run.partitions}\nfailed runs of the query: {dict(run.failures())}\n"
            f"verdict: {verdict}"
        )
    assert run.crashes.total >= CRASHES
    if is_exact:
        assert verdict.is_exactly_once, str(verdict)
        assert run.crashes.steps() == set(Step) or CRASHES < SHORT
    else:
        assert verdict.repeated, "at-least-once delivery has repeated nothing: the crashes have missed their moments"
        lost = verdict.missing + verdict.foreign
        assert not lost, str(verdict)


def test_the_verdict_finds_each_fault() -> None:
    expected = Counter(rows(100))
    assert compare(expected, Counter(rows(100))).is_exactly_once
    first, second, *_ = rows(100)
    changed = Row(second.key, second.value, second.headers, second.timestamp_ms + 1)
    verdict = compare(expected, expected - Counter([second]) + Counter([first, changed]))
    assert (verdict.repeated, verdict.missing, verdict.foreign) == ([first], [second], [changed])
    assert "1 rows missing" in str(verdict)


@pytest.mark.parametrize("seed", range(5))
def test_the_first_round_has_every_step(seed: int) -> None:
    crashes = Crashes()
    for crash in next(rounds(random.Random(seed))).crashes:
        crashes.add(crash)
    assert crashes.steps() == set(Step)
    assert len(crashes.table().splitlines()) == len(Step) + 3
