"""fdatasync in threads: every job is done once, by as many threads as there are, and its outcome told on the loop."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

from penstock.runtime.disk import OsDisk
from penstock.runtime.flusher import ThreadFlusher


class SlowFile:
    """A file whose sync waits until it may go on."""

    path = "slow"

    def __init__(self, gate: threading.Event, error: OSError | None = None) -> None:
        self._gate = gate
        self._error = error
        self.syncs = 0
        self.threads: list[str] = []

    def sync(self) -> None:
        self.syncs += 1
        self.threads.append(threading.current_thread().name)
        self._gate.wait()
        if self._error is not None:
            raise self._error


async def _flush(flusher: ThreadFlusher, file: object, directories: tuple[str, ...] = ()) -> OSError | None:
    outcome: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    flusher.flush([file], directories, outcome.set_result)  # type: ignore[list-item]
    return await outcome


async def test_more_jobs_than_threads_are_all_done(tmp_path: Path) -> None:
    flusher = ThreadFlusher(asyncio.get_running_loop(), OsDisk(), 2)
    gate = threading.Event()
    files = [SlowFile(gate) for _ in range(20)]
    flushes = [asyncio.ensure_future(_flush(flusher, file, (str(tmp_path),))) for file in files]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*flushes) == [None] * 20
    assert [file.syncs for file in files] == [1] * 20
    flusher.close()


async def test_jobs_one_after_the_other_wake_every_time() -> None:
    flusher = ThreadFlusher(asyncio.get_running_loop(), OsDisk(), 3)
    gate = threading.Event()
    gate.set()
    file = SlowFile(gate)
    for _ in range(300):
        assert await _flush(flusher, file) is None
    assert file.syncs == 300
    flusher.close()


async def test_jobs_that_come_while_threads_end_theirs_are_not_left_behind() -> None:
    flusher = ThreadFlusher(asyncio.get_running_loop(), OsDisk(), 2)
    gate = threading.Event()
    gate.set()
    file = SlowFile(gate)
    for _ in range(100):
        assert await asyncio.gather(*(_flush(flusher, file) for _ in range(5))) == [None] * 5
    assert file.syncs == 500
    flusher.close()


async def test_the_error_is_told_and_the_thread_goes_on() -> None:
    flusher = ThreadFlusher(asyncio.get_running_loop(), OsDisk(), 1)
    gate = threading.Event()
    gate.set()
    broken = OSError(errno.EIO, "broken")
    assert await _flush(flusher, SlowFile(gate, broken)) is broken
    assert await _flush(flusher, SlowFile(gate)) is None
    flusher.close()


async def test_close_ends_what_was_begun_and_every_thread() -> None:
    others = threading.enumerate()  # of brokers that other tests share
    flusher = ThreadFlusher(asyncio.get_running_loop(), OsDisk(), 2)
    gate = threading.Event()
    files = [SlowFile(gate) for _ in range(6)]
    for file in files:
        flusher.flush([file], (), lambda error: None)  # type: ignore[list-item]
    gate.set()
    flusher.close()
    assert [file.syncs for file in files] == [1] * 6
    assert [thread for thread in threading.enumerate() if thread not in others] == []
