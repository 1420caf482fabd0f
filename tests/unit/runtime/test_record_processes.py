"""The processes for records: started for work, replaced when they are lost, gone with whoever started them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator

import pytest

from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.records import examine
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.runtime import record_processes
from penstock.runtime.record_processes import RecordProcesses

PATIENCE_S = 30


@pytest.fixture
async def processes() -> AsyncIterator[RecordProcesses]:
    processes = RecordProcesses(asyncio.get_running_loop())
    yield processes
    processes.close()
    assert processes.pids == []


def refuse(text: str) -> None:
    raise ApiError(ErrorCode.INVALID_RECORD, text)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_one_is_started_for_the_first_call_and_kept(processes: RecordProcesses) -> None:
    assert processes.pids == []
    first = await processes.call(os.getpid)
    assert first != os.getpid()
    assert await processes.call(os.getpid) == first
    assert processes.pids == [first]
    assert processes.started == 1


async def test_calls_at_the_same_time_have_a_few_of_them(processes: RecordProcesses) -> None:
    await asyncio.gather(*(processes.call(time.sleep, 0.01) for _ in range(10)))
    assert 1 <= processes.started <= record_processes.MOST


async def test_patient_calls_have_a_lower_priority(processes: RecordProcesses) -> None:
    hasty = await processes.call(os.getpid)
    patient = await processes.call_patiently(os.getpid)
    assert patient != hasty
    assert await processes.call_patiently(os.getpid) == patient
    assert await processes.look_up(os.getpid) == hasty
    lower, lowest = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (hasty, patient))
    assert os.getpriority(os.PRIO_PROCESS, 0) < lower < lowest


async def test_a_producers_batch_does_not_wait_for_lookups(processes: RecordProcesses) -> None:
    lookups = [asyncio.ensure_future(processes.look_up(time.sleep, 600)) for _ in range(8)]
    await asyncio.sleep(0.05)
    assert await asyncio.wait_for(processes.call(os.getpid), PATIENCE_S)
    assert not any(lookup.done() for lookup in lookups)
    processes.close()
    for lookup in lookups:
        with pytest.raises((StorageError, asyncio.CancelledError)):
            await lookup


async def test_what_takes_too_much_processor_time_is_refused_for_good(
    processes: RecordProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code that producers try again with would bring it back again and again."""
    poison = build_batch([Record(b"k", b"v", (), 1)] * 100_000)
    pid = await processes.call(os.getpid)
    monkeypatch.setattr(record_processes, "CALL_CPU_S", 0.001)
    with pytest.raises(ApiError, match="too long") as refused:
        await processes.call(examine.keyless, read_header(poison), poison)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    monkeypatch.undo()
    assert await processes.call(os.getpid) == pid, "the process lives on"
    assert await processes.call(examine.keyless, read_header(poison), poison) == []


async def test_what_the_work_raises_comes_back(processes: RecordProcesses) -> None:
    with pytest.raises(ApiError, match="more than") as refused:
        await processes.call(examine.keyless, *bomb_of(examine.MAX_RECORDS + 1))
    assert refused.value.code is ErrorCode.INVALID_RECORD
    with pytest.raises(StorageError, match="ZeroDivisionError"):
        await processes.call(divmod, 1, 0)
    assert processes.started == 1


def bomb_of(count: int) -> tuple[object, ...]:
    data = build_batch([Record(b"k", b"v", (), 1)])
    return read_header(data)._replace(record_count=count, last_offset_delta=count - 1), data


async def test_one_that_dies_is_replaced(processes: RecordProcesses) -> None:
    first = await processes.call(os.getpid)
    with pytest.raises(StorageError):
        await processes.call(os._exit, 3)
    assert await processes.call(os.getpid) != first
    os.kill(processes.pids[0], signal.SIGKILL)
    for _ in range(2):  # whether or not its end was seen in time
        try:
            await processes.call(os.getpid)
        except StorageError:
            continue
    assert len(processes.pids) == 1


async def test_one_that_takes_too_long_is_ended(processes: RecordProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = await processes.call(os.getpid)
    monkeypatch.setattr(record_processes, "CALL_S", 0.05)
    with pytest.raises(StorageError, match="no answer"):
        await processes.call(time.sleep, 60)
    assert not is_there(pid)


async def test_one_with_nothing_to_do_is_ended(processes: RecordProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_processes, "IDLE_S", 0.05)
    pid = await processes.call(os.getpid)
    for _ in range(PATIENCE_S * 100):
        if not is_there(pid):
            break
        await asyncio.sleep(0.01)
    assert not is_there(pid)
    assert await processes.call(os.getpid) != pid


async def test_closing_ends_the_work_under_way() -> None:
    processes = RecordProcesses(asyncio.get_running_loop())
    pid = await processes.call(os.getpid)
    call = asyncio.ensure_future(processes.call(time.sleep, 60))
    await asyncio.sleep(0.05)
    processes.close()
    with pytest.raises((StorageError, asyncio.CancelledError)):
        await call
    assert not is_there(pid)
    with pytest.raises((StorageError, RuntimeError)):
        await processes.call(os.getpid)


async def test_it_does_not_outlive_who_started_it() -> None:
    """Not even one that is killed, while it is at work."""
    program = (
        "import asyncio, os, time\n"
        "from penstock.runtime.record_processes import RecordProcesses\n"
        "async def main():\n"
        "    processes = RecordProcesses(asyncio.get_running_loop())\n"
        "    print(await processes.call(os.getpid), flush=True)\n"
        "    await processes.call(time.sleep, 600)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    parent.kill()
    await parent.wait()
    for _ in range(PATIENCE_S * 100):
        if not is_there(pid):
            break
        await asyncio.sleep(0.01)
    assert not is_there(pid)
