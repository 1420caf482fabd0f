"""The broker's and the gateway's side of the processes that read record batches (`ports.workers.RecordWorkers`).

Python threads share one interpreter: a thread that reads a million records blocks the loop for as long. So small
processes do that. One is started when there is work and none is free; each does one call at a time, and a thread waits
for its answer. Producers have up to `MOST` of them, lookups by time one, and regular expressions one of a lower
priority, so they do not wait for each other. A call has `CALL_CPU_S` of processor time, and `CALL_S` of wall-clock
time. A process that dies or takes too long is killed, and the next call gets another. A process that was idle for
`IDLE_S` is ended. No process outlives its parent: it exits when its input ends.

A call and its answer are each a length of four bytes and a pickle; both ends are ours.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, NamedTuple, TypeVar

import penstock
from penstock.model.errors import ApiError, StorageError

T = TypeVar("T")
log = logging.getLogger(__name__)

MODULE = "penstock.runtime.record_worker"
PATIENT = "patient"  # its argument: selects the lower priority
MOST = 2
CALL_CPU_S = 10.0  # work within its bounds takes a fraction of that
CALL_S = 30.0  # wall-clock limit, for a starved process
IDLE_S = 60.0
LENGTH_BYTES = 4


class _Idle(NamedTuple):
    since: float
    process: subprocess.Popen[bytes]
    is_patient: bool


class RecordProcesses:
    def __init__(self, loop: asyncio.AbstractEventLoop, most: int = MOST) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="penstock-records")
        self._lookup_threads = ThreadPoolExecutor(1, thread_name_prefix="penstock-lookups")
        self._patient_threads = ThreadPoolExecutor(1, thread_name_prefix="penstock-patient")
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []  # the most recently used is last
        self._busy: dict[int, subprocess.Popen[bytes]] = {}
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self.started = 0

    @property
    def pids(self) -> list[int]:
        with self._lock:
            return sorted([one.process.pid for one in self._idle] + [one.pid for one in self._busy.values()])

    def call(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        return self._submit(self._threads, work, args)

    def look_up(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        return self._submit(self._lookup_threads, work, args)

    def call_patiently(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        return self._submit(self._patient_threads, work, args, is_patient=True)

    def _submit(
        self, threads: ThreadPoolExecutor, work: Callable[..., T], args: tuple[object, ...], *, is_patient: bool = False
    ) -> asyncio.Future[T]:
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_S, self._rest)
        return self._loop.run_in_executor(threads, self._call, work, args, is_patient)

    def close(self) -> None:
        """Calls under way fail."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._is_closed = True
            processes = [one.process for one in self._idle] + list(self._busy.values())
            self._idle = []
        for process in processes:
            process.kill()
        for threads in (self._threads, self._lookup_threads, self._patient_threads):
            threads.shutdown(wait=True, cancel_futures=True)
        for process in processes:
            _reap(process)

    def _rest(self) -> None:
        """Runs on the loop at intervals: an idle process costs only memory."""
        with self._lock:
            limit = time.monotonic() - IDLE_S
            ended = [one.process for one in self._idle if one.since < limit]
            self._idle = [one for one in self._idle if one.since >= limit]
            is_over = not self._idle and not self._busy
        self._timer = None if is_over else self._loop.call_later(IDLE_S, self._rest)
        for process in ended:
            process.kill()
            self._threads.submit(_reap, process)

    # -- in a thread ------------------------------------------------------------------------

    def _call(self, work: Callable[..., T], args: tuple[object, ...], is_patient: bool) -> T:
        process = self._take(is_patient=is_patient)
        is_well = False
        try:
            body = pickle.dumps((work, args, CALL_CPU_S), pickle.HIGHEST_PROTOCOL)
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                _write(process.stdin.fileno(), len(body).to_bytes(LENGTH_BYTES, "big") + body)
                answer = _receive(process.stdout, time.monotonic() + CALL_S)
            except (OSError, EOFError, TimeoutError) as error:
                log.warning("a process for records was lost in %s: %s", work.__name__, error or "it died")
                raise StorageError(f"records could not be read: {error or 'the process died'}") from error
            is_well = True
        finally:
            self._give_back(process, is_patient=is_patient, is_well=is_well)
        outcome, failure = pickle.loads(answer)
        if isinstance(failure, ApiError):
            raise failure
        if failure is not None:
            raise StorageError(f"records could not be read: {failure}")
        result: T = outcome
        return result

    def _take(self, *, is_patient: bool) -> subprocess.Popen[bytes]:
        with self._lock:
            for one in [one for one in reversed(self._idle) if one.is_patient == is_patient and not self._is_closed]:
                self._idle.remove(one)
                if one.process.poll() is None:
                    self._busy[one.process.pid] = one.process
                    return one.process
                _reap(one.process)
        process = self._start(is_patient=is_patient)
        with self._lock:
            if self._is_closed:
                process.kill()
                _reap(process)
                raise StorageError("the broker is stopping")
            self._busy[process.pid] = process
            self.started += 1
        return process

    def _give_back(self, process: subprocess.Popen[bytes], *, is_patient: bool, is_well: bool) -> None:
        with self._lock:
            self._busy.pop(process.pid, None)
            if is_well and not self._is_closed:
                self._idle.append(_Idle(time.monotonic(), process, is_patient))
                return
        process.kill()
        _reap(process)

    def _start(self, *, is_patient: bool) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise StorageError("the broker is stopping")
        source = os.path.dirname(os.path.dirname(os.path.abspath(penstock.__file__)))
        path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            return subprocess.Popen(
                [sys.executable, "-m", MODULE, *([PATIENT] if is_patient else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, "PYTHONPATH": path},
            )
        except OSError as error:  # no free descriptor, for example
            raise StorageError(f"cannot start a process for records: {error}") from error


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _receive(source: IO[bytes], deadline: float) -> bytes:
    size = int.from_bytes(_read(source.fileno(), LENGTH_BYTES, deadline), "big")
    return _read(source.fileno(), size, deadline)


def _read(descriptor: int, size: int, deadline: float) -> bytes:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    parts: list[bytes] = []
    while size:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise TimeoutError(f"no answer within {CALL_S:.0f} s")
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _reap(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.wait()
