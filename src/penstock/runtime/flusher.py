"""Group commit's muscle: fdatasync in a few threads, outcomes back on the loop.

Each file of a flush is its own job, so files of one flush are synced in parallel; the
last job to finish syncs the new directory entries and reports. File systems with a
journal merge concurrent syncs into one commit, which is why threads pay even on one disk.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from penstock.ports.disk import Disk, File


class _Flush:
    __slots__ = ("directories", "errors", "files", "left", "lock", "on_stable")

    def __init__(
        self, files: Sequence[File], directories: Sequence[str], on_stable: Callable[[list[OSError | None]], None]
    ) -> None:
        self.files = files
        self.directories = directories
        self.on_stable = on_stable
        self.errors: list[OSError | None] = [None] * len(files)
        self.left = len(files)
        self.lock = threading.Lock()


class ThreadFlusher:
    def __init__(self, loop: asyncio.AbstractEventLoop, disk: Disk, threads: int) -> None:
        self._loop = loop
        self._disk = disk
        self._jobs: SimpleQueue[tuple[_Flush, int] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-flush-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def flush(
        self,
        files: Sequence[File],
        directories: Sequence[str],
        on_stable: Callable[[list[OSError | None]], None],
    ) -> None:
        flush = _Flush(files, directories, on_stable)
        if not files:
            raise ValueError("a flush needs at least one file")
        for index in range(len(files)):
            self._jobs.put((flush, index))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            flush, index = job
            try:
                flush.files[index].sync()
            except OSError as error:
                flush.errors[index] = error
            with flush.lock:
                flush.left -= 1
                last = flush.left == 0
            if last:
                self._finish(flush)
            del job, flush  # files must not outlive their flush in an idle thread

    def _finish(self, flush: _Flush) -> None:
        for directory in flush.directories:
            try:
                self._disk.sync_directory(directory)
            except FileNotFoundError:
                continue  # the topic was deleted meanwhile: nothing to keep
            except OSError as error:
                prefix = directory.rstrip("/") + "/"
                for index, file in enumerate(flush.files):
                    if file.path.startswith(prefix) and flush.errors[index] is None:
                        flush.errors[index] = error
        try:
            self._loop.call_soon_threadsafe(flush.on_stable, flush.errors)
        except RuntimeError:
            # The loop is closed: nobody waits for the outcome any more.
            return

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
