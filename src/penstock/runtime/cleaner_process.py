"""The broker's side of the process that rewrites segments: started when there is work, ended when there is none.

The broker sends one line of JSON (`CleanPlan`) and gets one line for each outcome. A thread of the broker waits for the
next line, so the loop never does. The process watches its input pipe all the time and exits when the pipe closes, so it
never outlives the broker. If it dies, the next plan starts it again.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor

import penstock
from penstock.model.errors import StorageError
from penstock.storage.cleaner.plan import Cleaned, CleanPlan, Outcome, decode_outcome

MODULE = "penstock.runtime.cleaner_worker"


class CleanerProcess:
    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes_per_second: Callable[[], float]) -> None:
        """The limit is read whenever the process is started."""
        self._loop = loop
        self._max_bytes_per_second = max_bytes_per_second
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-cleaner")
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    async def rewrite(self, plan: CleanPlan) -> AsyncGenerator[Outcome, None]:
        is_done = False
        try:
            await self._loop.run_in_executor(self._thread, self._send, plan)
            while not is_done:
                outcome = decode_outcome(await self._loop.run_in_executor(self._thread, self._receive))
                is_done = isinstance(outcome, Cleaned)
                yield outcome
        finally:
            if not is_done:
                self._kill()  # the process may still work on an abandoned plan

    async def rest(self) -> None:
        self._kill()

    def stop(self) -> None:
        self._is_stopped = True
        self._kill()

    def close(self) -> None:
        """Call after `stop`, when no caller waits for an outcome any longer."""
        self._thread.shutdown()

    def _send(self, plan: CleanPlan) -> None:
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(plan.encode() + b"\n")
        self._process.stdin.flush()

    def _start(self) -> None:
        if self._is_stopped:
            raise StorageError("the broker is stopping")
        self._kill()
        source = os.path.dirname(os.path.dirname(os.path.abspath(penstock.__file__)))
        path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, repr(self._max_bytes_per_second())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        if self._is_stopped:
            self._kill()
            raise StorageError("the broker is stopping")

    def _receive(self) -> bytes:
        process = self._process
        if process is None or process.stdout is None:
            raise StorageError("the rewriting process was ended")
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            raise StorageError("the rewriting process died")
        return line

    def _kill(self) -> None:
        """Killing it loses nothing: its output counts only after the broker has put it in place."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._thread.submit(_reap, process)  # in the thread that reads from it


def _reap(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.wait()
