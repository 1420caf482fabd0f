"""Work that production does in threads and processes, in virtual time: workers, the flusher, the segment rewriter.

Each takes some time before it touches the disk and some time before the loop learns of it, so every event in between
happens for some seed. A job never runs concurrently with other code: races inside the work itself are not simulated.
All work belongs to the process that started it and ends with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Generic, TypeAlias, TypeVar, cast

from penstock.model.errors import CorruptBatch, StorageError
from penstock.ports.disk import File
from penstock.ports.workers import Workers
from penstock.sim.machine.disk import SimDisk, SimFile
from penstock.sim.machine.loop import SimLoop
from penstock.storage.cleaner.plan import CleanPlan, Outcome, Uncleanable
from penstock.storage.cleaner.rewrite import clean

HUNG_POLL_S = 0.05
A = TypeVar("A")
T = TypeVar("T")
OnStable: TypeAlias = Callable[[OSError | None], None]


@dataclass(slots=True)
class DiskTimes:
    """Durations of work. One in a hundred is slow, as on a real disk. May change while a machine runs."""

    work_s: float = 0.0005
    sync_s: float = 0.0015
    slow_chance: float = 0.01
    slow_s: float = 0.15
    is_hung: bool = False
    """While set, no operation that needs the platter ends or fails."""

    def draw(self, random: Random, typical_s: float) -> float:
        taken_s = typical_s * (0.2 + 1.6 * random.random())
        if self.slow_chance and random.random() < self.slow_chance:
            taken_s += random.random() * self.slow_s
        return taken_s


class _Pool:
    """Runs a limited number of jobs at a time; the rest waits."""

    def __init__(self, threads: int) -> None:
        self._free = threads
        self._queue: deque[Callable[[], None]] = deque()

    def submit(self, begin: Callable[[], None]) -> None:
        if self._free:
            self._free -= 1
            begin()
        else:
            self._queue.append(begin)

    def release(self) -> None:
        if self._queue:
            self._queue.popleft()()
        else:
            self._free += 1


class _Job(Generic[T]):
    """A class instead of closures, which would form thousands of reference cycles until the world ends."""

    __slots__ = ("_work", "_workers", "future")

    def __init__(self, workers: SimWorkers, work: Callable[[], T], future: asyncio.Future[T]) -> None:
        self._workers = workers
        self._work = work
        self.future = future

    def begin(self) -> None:
        self._workers.later(self._do)

    def _do(self) -> None:
        if self._workers.is_hung(self._do):
            return
        result: T | None = None
        failure: Exception | None = None
        try:
            result = self._work()
        except Exception as error:  # belongs to the awaiting code, as with a thread pool
            failure = error
        self._workers.later(self._hand_over, result, failure)

    def _hand_over(self, result: T | None, failure: Exception | None) -> None:
        self._workers.release()
        if self.future.done():
            return
        if failure is not None:
            self.future.set_exception(failure)
        else:
            self.future.set_result(cast(T, result))


class SimWorkers:
    def __init__(self, loop: SimLoop, random: Random, times: DiskTimes, threads: int = 4) -> None:
        self._loop = loop
        self._random = random
        self._times = times
        self._pool = _Pool(threads)

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        job = _Job(self, work, self._loop.create_future())
        self._pool.submit(job.begin)
        return job.future

    def later(self, callback: Callable[..., None], *args: object) -> None:
        """Call back after the duration of work."""
        self._loop.call_later(self._times.draw(self._random, self._times.work_s), callback, *args)

    def is_hung(self, callback: Callable[[], None]) -> bool:
        """If the disk hangs, schedule another call and return True."""
        if self._times.is_hung:
            self._loop.call_later(HUNG_POLL_S, callback)
        return self._times.is_hung

    def release(self) -> None:
        self._pool.release()

    def each(self, work: Callable[[A], T], items: Sequence[A], threads: int) -> Iterator[T]:
        """One after the other, in place: no time passes while a process blocks."""
        for item in items:
            yield work(item)

    def close(self) -> None:
        """Nothing to join."""


class SimFlusher:
    def __init__(self, loop: SimLoop, disk: SimDisk, random: Random, times: DiskTimes, threads: int = 2) -> None:
        self._loop = loop
        self._disk = disk
        self._random = random
        self._times = times
        self._pool = _Pool(threads)

    def flush(self, files: Sequence[File], directories: Sequence[str], on_stable: OnStable) -> None:
        """Later writes and names are not covered, however long it takes: a real sync promises no more."""
        syncs: deque[Callable[[], None]] = deque()
        for file in files:
            assert isinstance(file, SimFile), "of a simulated disk"
            syncs.append(partial(file.sync_to, file.mark()))
        for directory in directories:
            if self._disk.is_directory(directory):
                mark = self._disk.names_mark(directory)
                syncs.append(partial(self._sync_directory, directory, mark))
        self._pool.submit(partial(self._proceed, syncs, on_stable))

    def _proceed(self, syncs: deque[Callable[[], None]], on_stable: OnStable) -> None:
        """The data reaches the platter some time before the caller is notified."""
        takes_s = self._times.draw(self._random, self._times.sync_s)
        reaches_s = takes_s * self._random.random()
        self._loop.call_later(reaches_s, self._sync, syncs, on_stable, takes_s - reaches_s)

    def _sync(self, syncs: deque[Callable[[], None]], on_stable: OnStable, rest_s: float) -> None:
        if self._times.is_hung:
            self._loop.call_later(HUNG_POLL_S, self._sync, syncs, on_stable, rest_s)
            return
        error: OSError | None = None
        try:
            if syncs:
                syncs.popleft()()
        except OSError as failure:
            error = failure
            syncs.clear()
        if syncs:
            self._loop.call_later(rest_s, self._proceed, syncs, on_stable)
        else:
            self._loop.call_later(rest_s, self._end, on_stable, error)

    def _end(self, on_stable: OnStable, error: OSError | None) -> None:
        self._pool.release()
        on_stable(error)

    def _sync_directory(self, directory: str, mark: int) -> None:
        if self._disk.is_directory(directory):  # otherwise the topic was deleted meanwhile
            self._disk.sync_directory(directory, mark)

    def close(self) -> None:
        """Nothing to join."""


class SimRecordWorkers:
    """Shares the queue of the other workers."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def call(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        return self._workers.run(partial(work, *args))

    def look_up(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        return self.call(work, *args)

    def call_patiently(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        return self.call(work, *args)

    def close(self) -> None:
        """Nothing to release: it ends with the machine."""


class SimRewriter:
    """`replica.cleaning.Rewriter`: one segment at a time in a worker, on the node's disk."""

    def __init__(self, disk: SimDisk, workers: Workers) -> None:
        self._disk = disk
        self._workers = workers
        self._is_stopped = False

    async def rewrite(self, plan: CleanPlan) -> AsyncGenerator[Outcome, None]:
        outcomes = clean(self._disk, plan)
        while True:
            if self._is_stopped:
                raise StorageError("the broker is stopping")
            try:
                outcome = await self._workers.run(lambda: next(outcomes, None))
            except CorruptBatch as error:
                raise Uncleanable(str(error)) from error
            if outcome is None:
                return
            yield outcome

    async def rest(self) -> None:
        """It has nothing to release."""

    def stop(self) -> None:
        self._is_stopped = True

    def close(self) -> None:
        """There is no process to end."""
