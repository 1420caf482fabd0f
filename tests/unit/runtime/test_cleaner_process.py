"""The rewriting process: what it answers, and that it neither outlives the broker nor takes it along."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from penstock.model.errors import StorageError
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.runtime.cleaner_process import MODULE, CleanerProcess
from penstock.runtime.cleaner_worker import Throttle
from penstock.runtime.disk import OsDisk
from penstock.storage.cleaner.plan import Cleaned, CleanPlan, RewrittenSegment, Uncleanable
from penstock.storage.cleaner.survey import make_plan, survey
from penstock.storage.group_commit import flush_blocking
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

NOW_MS = 1_700_000_000_000
SLOW = 1_000_000.0  # bytes a second
FAST = 1e300


@pytest.fixture
async def cleaner() -> AsyncIterator[CleanerProcess]:
    process = CleanerProcess(asyncio.get_running_loop(), lambda: FAST)
    yield process
    process.stop()
    process.close()


def plan_of(directory: Path, *, batches: int = 40) -> CleanPlan:
    config = LogConfig(compact=True, segment_bytes=100_000)
    log = Log.open(OsDisk(), str(directory), config, now_ms=NOW_MS)
    for number in range(batches):
        data = build_batch([Record(b"%d" % (number % 7), bytes(10_000), (), NOW_MS)])
        log.append(read_header(data), data, 0, NOW_MS)
    log.roll(NOW_MS)
    flush_blocking(OsDisk(), log)
    plan = make_plan(log, survey(log, log.log_end_offset, NOW_MS), NOW_MS, 1000)
    log.close(clean=True)
    return plan


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_end(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.01)


async def test_segments_come_one_by_one_and_the_process_is_reused(cleaner: CleanerProcess, tmp_path: Path) -> None:
    assert cleaner.pid is None, "nothing to do, nothing started"
    plan = plan_of(tmp_path / "t-0")
    outcomes = [outcome async for outcome in cleaner.rewrite(plan)]
    *segments, done = outcomes
    assert len(segments) > 1
    assert all(isinstance(segment, RewrittenSegment) for segment in segments)
    assert isinstance(done, Cleaned)
    assert (done.end_offset, done.keys, done.records_read, done.records_kept) == (40, 7, 40, 7)
    pid = cleaner.pid
    assert [type(outcome) async for outcome in cleaner.rewrite(plan)][-1] is Cleaned
    assert cleaner.pid == pid
    await cleaner.rest()
    assert pid is not None
    await asyncio.to_thread(await_end, pid)


async def test_a_killed_process_is_reported_and_started_again(cleaner: CleanerProcess, tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "t-0")
    cleaner._max_bytes_per_second = lambda: SLOW

    async def rewrite_and_kill() -> None:
        async for _ in cleaner.rewrite(plan):
            assert cleaner.pid is not None
            os.kill(cleaner.pid, signal.SIGKILL)

    with pytest.raises(StorageError, match="died"):
        await rewrite_and_kill()
    cleaner._max_bytes_per_second = lambda: FAST
    assert isinstance([outcome async for outcome in cleaner.rewrite(plan)][-1], Cleaned)


async def test_who_stops_listening_ends_the_work(cleaner: CleanerProcess, tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "t-0")
    cleaner._max_bytes_per_second = lambda: SLOW
    async with aclosing(cleaner.rewrite(plan)) as outcomes:
        await anext(outcomes)
        pid = cleaner.pid
    assert pid is not None
    await asyncio.to_thread(await_end, pid)


async def test_stop_interrupts_the_work(cleaner: CleanerProcess, tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "t-0")
    cleaner._max_bytes_per_second = lambda: SLOW
    outcomes = cleaner.rewrite(plan)
    await anext(outcomes)
    asyncio.get_running_loop().call_later(0.05, cleaner.stop)
    started = time.monotonic()
    with pytest.raises(StorageError):
        [outcome async for outcome in outcomes]
    assert time.monotonic() - started < 1
    with pytest.raises(StorageError, match="stopping"):
        await anext(cleaner.rewrite(plan))


async def test_damage_and_missing_files_are_told(cleaner: CleanerProcess, tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "t-0")
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(Uncleanable, match=r"corrupt batch .* checksum"):
        await anext(cleaner.rewrite(plan))
    path.unlink()
    with pytest.raises(StorageError, match="No such file") as caught:
        await anext(cleaner.rewrite(plan))
    assert not isinstance(caught.value, Uncleanable)


def test_it_ends_with_the_broker_in_the_middle_of_its_work(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "t-0")
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, "1000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(plan.encode() + b"\n")
    process.stdin.flush()
    time.sleep(0.3)
    assert process.poll() is None, "at a thousand bytes a second"
    process.stdin.close()  # as when the broker is killed
    assert process.wait(5) == 0
    process.stdout.close()


def test_it_imports_little() -> None:
    code = f"import sys, {MODULE}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"asyncio", "uvloop", "kio", "click", "cramjam", "zstandard", "lz4", "subprocess"}
    assert not heavy & set(loaded)
    assert not [name for name in loaded if name.startswith(("penstock.wire", "penstock.config", "penstock.api"))]


def test_the_throttle_spends_no_more_than_it_may() -> None:
    throttle = Throttle(1_000_000.0)
    started = time.monotonic()
    for _ in range(6):
        throttle.spend(20_000)
    assert 0.1 <= time.monotonic() - started < 1
    free = Throttle(FAST)
    started = time.monotonic()
    free.spend(10**15)
    free.spend(10**15)
    assert time.monotonic() - started < 0.1
