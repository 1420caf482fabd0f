"""A busy loop that uses as much CPU as a peer and sends nothing: `python -m bench.hostile.burn SHARE SECONDS`.

Its effect on the healthy producer is the machine's, not the broker's.
"""

from __future__ import annotations

import os
import sys
import time

from bench.hostile.attack import NICENESS

PERIOD_S = 0.002


def main(share: str, seconds: str) -> None:
    os.nice(NICENESS)
    busy_s = min(float(share), 1.0) * PERIOD_S
    until = time.monotonic() + float(seconds)
    print("begun", flush=True)
    while (now := time.monotonic()) < until:
        while time.monotonic() < now + busy_s:
            pass
        time.sleep(max(now + PERIOD_S - time.monotonic(), 0))


if __name__ == "__main__":
    main(*sys.argv[1:])
