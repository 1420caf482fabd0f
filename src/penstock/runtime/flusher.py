"""Group commit's muscle: fdatasync in a few threads, outcomes back on the loop.

The flush of one log is one job. Logs do not wait for each other, and file systems with a
journal merge the syncs of several threads into one commit, which is why threads pay even on
one disk. Outcomes that come in while the loop is busy are handed to it in one wake-up.

Threads take jobs in turn. One that is always given the next job costs a little less CPU, but on a busy machine the
scheduler lets whoever has slept for long run first: measured, half of the requests a second.
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


class ThreadFlusher:
    def __init__(self, loop: asyncio.AbstractEventLoop, disk: Disk, threads: int) -> None:
        self._loop = loop
        self._disk = disk
        self._jobs: SimpleQueue[tuple[Sequence[File], Sequence[str], OnStable] | None] = SimpleQueue()
        self._outcomes: deque[tuple[OnStable, OSError | None]] = deque()
        self._is_waking = False
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
            self._outcomes.append((on_stable, self._sync(files, directories)))
            # The loop clears the flag before it looks at the outcomes, so none is missed.
            if not self._is_waking:
                self._is_waking = True
                self._wake()
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

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._hand_over)
        except RuntimeError:
            # The loop is closed: nobody waits for the outcome any more.
            return

    def _hand_over(self) -> None:
        self._is_waking = False
        outcomes = self._outcomes
        try:
            while outcomes:
                on_stable, error = outcomes.popleft()
                on_stable(error)
        finally:
            if outcomes:  # a callback raised: the others must not wait for the next flush
                self._is_waking = True
                self._loop.call_soon(self._hand_over)

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
