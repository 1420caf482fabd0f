"""The process that reads record batches: `python -m penstock.runtime.record_worker`. See `record_processes`.

It reads calls from standard input and writes answers to standard output. It has no files and no connections. Its memory
is bounded, and so is the processor time of a call. A call over the limit would take as long again on a retry, so its
answer is final (INVALID_RECORD). When its input ends, it exits at once, whatever it is doing: the broker is gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import sys
import threading
from queue import SimpleQueue
from types import FrameType
from typing import IO

from penstock.model.errors import ApiError
from penstock.records.examine import TookTooLong

NICE = 5  # the loop comes first
# with a lower priority, groups that subscribe by regular expression would wait for seconds on a busy machine
PATIENT_NICE = 10
MAX_MEMORY_BYTES = 2 << 30
_LENGTH_BYTES = 4


def main() -> None:
    os.nice(PATIENT_NICE if sys.argv[1:] else NICE)
    with contextlib.suppress(OSError, ValueError):  # a lower limit is set already
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this process in order
    signal.signal(signal.SIGPROF, _took_too_long)
    calls: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_calls, args=(sys.stdin.buffer, calls), daemon=True).start()
    while True:
        _answer(sys.stdout.buffer, calls.get())


def _read_calls(source: IO[bytes], calls: SimpleQueue[bytes]) -> None:
    while length := source.read(_LENGTH_BYTES):
        calls.put(source.read(int.from_bytes(length, "big")))
    os._exit(0)


def _took_too_long(signum: int, frame: FrameType | None) -> None:
    raise TookTooLong


def _answer(target: IO[bytes], call: bytes) -> None:
    outcome: object = None
    failure: ApiError | str | None = None
    try:
        work, args, cpu_s = pickle.loads(call)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            outcome = work(*args)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except ApiError as error:
        failure = error
    except (Exception, MemoryError) as error:  # sent to the caller, which can log it
        failure = f"{type(error).__name__}: {error}"
    body = pickle.dumps((outcome, failure), pickle.HIGHEST_PROTOCOL)
    target.write(len(body).to_bytes(_LENGTH_BYTES, "big"))
    target.write(body)
    target.flush()


if __name__ == "__main__":
    main()
