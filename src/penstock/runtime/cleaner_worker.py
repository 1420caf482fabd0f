"""The process that rewrites segments: `python -m penstock.runtime.cleaner_worker BYTES_PER_SECOND`.

Plans come on standard input, outcomes go to standard output, one line each. It writes only `.cleaned` files. When its
input ends, it exits at once, whatever it is doing: the broker is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from queue import SimpleQueue

from penstock.model.errors import CorruptBatch
from penstock.runtime.disk import OsDisk
from penstock.storage.cleaner.plan import CleanPlan, encode_failure, encode_outcome
from penstock.storage.cleaner.rewrite import clean

NICE = 10  # producers and consumers come first
_UNLIMITED = 1e12


class Throttle:
    """`log.cleaner.io.max.bytes.per.second`, for reads and writes together."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = time.monotonic()

    def spend(self, size: int) -> None:
        if self._bytes_per_second >= _UNLIMITED:
            return
        now = time.monotonic()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + size / self._bytes_per_second


def main() -> None:
    os.nice(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this process in order
    plans: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_plans, args=(plans,), daemon=True).start()
    throttle = Throttle(float(sys.argv[1]))
    disk = OsDisk()
    while True:
        _clean(disk, CleanPlan.decode(plans.get()), throttle)


def _read_plans(plans: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        plans.put(line)
    os._exit(0)


def _clean(disk: OsDisk, plan: CleanPlan, throttle: Throttle) -> None:
    try:
        for outcome in clean(disk, plan, throttle.spend):
            _tell(encode_outcome(outcome))
    except CorruptBatch as error:
        _tell(encode_failure(error, is_permanent=True))
    except (OSError, MemoryError) as error:
        _tell(encode_failure(error, is_permanent=False))


def _tell(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
