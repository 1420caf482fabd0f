"""fdatasync by the kernel: outcomes on the loop, errors as errors, and threads for everything it does not take."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.ports.disk import File
from penstock.runtime import kernel_flusher
from penstock.runtime.disk import OsDisk
from penstock.runtime.flusher import ThreadFlusher
from penstock.runtime.kernel_flusher import KernelAio, KernelFlusher, open_flusher


class CountingThreads(ThreadFlusher):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, OsDisk(), 1)
        self.jobs = 0

    def flush(self, files, directories, on_stable) -> None:  # type: ignore[no-untyped-def]
        self.jobs += 1
        super().flush(files, directories, on_stable)


class ClosedFile:
    """Its descriptor is none: the kernel says EBADF."""

    path = "gone"

    def fileno(self) -> int:
        return 1_000_000

    def sync(self) -> None:
        raise OSError(errno.EBADF, "closed")


@pytest.fixture
def aio() -> KernelAio:
    try:
        return KernelAio()
    except OSError as error:
        # Threads flush there, and tests/unit/runtime/test_flusher.py holds for them.
        pytest.skip(f"this kernel has no asynchronous I/O: {error}")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"")
    return path


@pytest.fixture
def file(data: Path) -> Iterator[File]:
    opened = OsDisk().open(str(data))
    yield opened
    opened.close()


@pytest.fixture
async def threads() -> CountingThreads:
    return CountingThreads(asyncio.get_running_loop())


@pytest.fixture
async def flusher(aio: KernelAio, threads: CountingThreads) -> AsyncIterator[KernelFlusher]:
    made = KernelFlusher(asyncio.get_running_loop(), aio, threads)
    yield made
    made.close()


async def _flush(flusher: KernelFlusher | ThreadFlusher, file: object, *directories: str) -> OSError | None:
    outcome: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    flusher.flush([file], directories, outcome.set_result)  # type: ignore[list-item]
    return await asyncio.wait_for(outcome, 10)


async def test_flushes_one_after_the_other_take_no_thread(
    flusher: KernelFlusher, threads: CountingThreads, file: File
) -> None:
    for number in range(200):
        os.pwrite(file.fileno(), b"x" * 100, number * 100)
        assert await _flush(flusher, file) is None
    assert threads.jobs == 0


async def test_more_at_once_than_are_taken_at_once(
    flusher: KernelFlusher, threads: CountingThreads, tmp_path: Path
) -> None:
    files = []
    for number in range(3 * kernel_flusher.EVENTS_AT_ONCE):
        path = tmp_path / str(number)
        path.write_bytes(b"x")
        files.append(OsDisk().open(str(path)))
    assert await asyncio.gather(*(_flush(flusher, file) for file in files)) == [None] * len(files)
    assert threads.jobs == 0
    for file in files:
        file.close()


async def test_above_the_limit_threads_help(
    flusher: KernelFlusher, threads: CountingThreads, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_flusher, "IN_FLIGHT_LIMIT", 2)
    assert await asyncio.gather(*(_flush(flusher, file) for _ in range(5))) == [None] * 5
    assert threads.jobs == 3


async def test_names_in_directories_go_to_the_threads(
    flusher: KernelFlusher, threads: CountingThreads, file: File, data: Path
) -> None:
    assert await _flush(flusher, file, str(data.parent)) is None
    assert threads.jobs == 1


async def test_what_the_kernel_refuses_goes_to_the_threads_from_then_on(
    flusher: KernelFlusher, threads: CountingThreads, file: File
) -> None:
    error = await _flush(flusher, ClosedFile())
    assert error is not None
    assert error.errno == errno.EBADF
    assert await _flush(flusher, file) is None
    assert threads.jobs == 2


class FailingAio:
    """Ends every flush with the error given for it."""

    def __init__(self, codes: list[int]) -> None:
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK)
        self._codes = codes
        self._ended: list[tuple[int, int]] = []

    def fdatasync(self, fd: int, key: int) -> None:
        self._ended.append((key, self._codes[key]))
        os.eventfd_write(self.eventfd, 1)

    def done(self) -> list[tuple[int, int]]:
        os.eventfd_read(self.eventfd)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        os.close(self.eventfd)


async def test_a_failed_flush_is_told_with_its_file(threads: CountingThreads, file: File, data: Path) -> None:
    aio = FailingAio([errno.EIO, 0, errno.ENOSPC])
    flusher = KernelFlusher(asyncio.get_running_loop(), aio, threads)  # type: ignore[arg-type]
    failed, good, full = await asyncio.gather(*(_flush(flusher, file) for _ in range(3)))
    assert failed is not None
    assert (failed.errno, failed.filename) == (errno.EIO, str(data))
    assert good is None
    assert full is not None
    assert full.errno == errno.ENOSPC
    assert threads.jobs == 0
    flusher.close()


async def test_a_callback_that_raises_does_not_keep_the_others_waiting(threads: CountingThreads, file: File) -> None:
    loop = asyncio.get_running_loop()
    said: list[object] = []
    loop.set_exception_handler(lambda _, context: said.append(context["exception"]))
    flusher = KernelFlusher(loop, FailingAio([0, 0, errno.EIO]), threads)  # type: ignore[arg-type]
    mistake = RuntimeError("a mistake of the caller")

    def fail(_: OSError | None) -> None:
        raise mistake

    flusher.flush([file], (), fail)
    good, bad = await asyncio.gather(_flush(flusher, file), _flush(flusher, file))
    assert good is None
    assert bad is not None
    assert bad.errno == errno.EIO
    assert said == [mistake]
    flusher.close()


async def test_close_waits_for_what_is_under_way(aio: KernelAio, file: File) -> None:
    others = threading.enumerate()
    flusher = KernelFlusher(asyncio.get_running_loop(), aio, CountingThreads(asyncio.get_running_loop()))
    os.pwrite(file.fileno(), bytes(1 << 20), 0)
    flusher.flush([file], (), lambda _: None)
    flusher.close()
    assert [thread for thread in threading.enumerate() if thread not in others] == []


async def test_without_asynchronous_io_threads_flush(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_flusher, "_CALLS", {})
    flusher = open_flusher(asyncio.get_running_loop(), OsDisk(), 1)
    assert isinstance(flusher, ThreadFlusher)
    assert await _flush(flusher, file) is None
    flusher.close()
