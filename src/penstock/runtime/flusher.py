"""Group commit's fdatasync in a few threads, for kernels without asynchronous fdatasync. Outcomes return to the loop.

The flush of one log is one job. Logs do not wait for each other, and file systems with a journal merge the syncs of
several threads into one commit, so threads help even on one disk. Outcomes that arrive while the loop is busy are
handed to it in one wake-up.

Threads take jobs in turn. Giving each job to the same thread costs a little less CPU, but on a busy machine the
scheduler prefers threads that have slept for long: measured, that halved the requests per second.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeAlias

from penstock.ports.disk import Disk, File

OnStable: TypeAlias = Callable[[OSError | None], None]


class Outcomes:
    """Outcomes of ended flushes, for the loop: each is delivered once, even after a callback that raised."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[OnStable, OSError | None]] = deque()
        self._is_waking = False

    def add(self, on_stable: OnStable, error: OSError | None) -> None:
        self._waiting.append((on_stable, error))

    def wake(self) -> None:
        """Called from a thread: have the loop deliver the outcomes."""
        # The loop clears the flag before it reads the outcomes, so none is missed.
        if self._is_waking:
            return
        self._is_waking = True
        try:
            self._loop.call_soon_threadsafe(self.tell)
        except RuntimeError:
            # The loop is closed: nobody waits for an outcome.
            return

    def tell(self) -> None:
        self._is_waking = False
        waiting = self._waiting
        try:
            while waiting:
                on_stable, error = waiting.popleft()
                on_stable(error)
        finally:
            if waiting:  # a callback raised: the others must not wait for the next flush
                self._is_waking = True
                self._loop.call_soon(self.tell)


class ThreadFlusher:
    def __init__(self, loop: asyncio.AbstractEventLoop, disk: Disk, threads: int) -> None:
        self._disk = disk
        self._jobs: SimpleQueue[tuple[Sequence[File], Sequence[str], OnStable] | None] = SimpleQueue()
        self._outcomes = Outcomes(loop)
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-flush-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def flush(self, files: Sequence[File], directories: Sequence[str], on_stable: OnStable) -> None:
        self._jobs.put((files, directories, on_stable))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            files, directories, on_stable = job
            self._outcomes.add(on_stable, self._sync(files, directories))
            self._outcomes.wake()
            del job, files, on_stable  # files must not outlive their flush in an idle thread

    def _sync(self, files: Sequence[File], directories: Sequence[str]) -> OSError | None:
        try:
            for file in files:
                file.sync()
            for directory in directories:
                try:
                    self._disk.sync_directory(directory)
                except FileNotFoundError:
                    continue  # the topic was deleted meanwhile: nothing to keep
        except OSError as error:
            return error
        return None

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
