"""A flush by the kernel's asynchronous I/O beside one by threads: `python -m bench.micro.flush`.

Several processes on one disk, as brokers on one machine are: each appends 1 KB to its file, flushes it, does a little
work of its own while it waits, and goes on when the flush is told. Rounds alternate. CPU is that of the whole machine,
because kernel workers are nobody's process; both pay for an interpreter's start.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from bench import machine
from penstock.runtime.disk import OsDisk
from penstock.runtime.flusher import ThreadFlusher
from penstock.runtime.kernel_flusher import KernelAio, KernelFlusher

APPEND = bytes(1024)
WORK_TURNS = 20  # of the loop, about as many as a broker makes during a flush under load


async def _flush_for(kind: str, path: Path, seconds: float) -> int:
    loop = asyncio.get_running_loop()
    flusher: ThreadFlusher | KernelFlusher = ThreadFlusher(loop, OsDisk(), 2)
    if kind == "kernel":
        flusher = KernelFlusher(loop, KernelAio(), flusher)
    file = OsDisk().open(str(path))
    flushes, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        os.pwrite(file.fileno(), APPEND, flushes * len(APPEND))
        stable: asyncio.Future[OSError | None] = loop.create_future()
        flusher.flush([file], (), stable.set_result)
        for _ in range(WORK_TURNS):
            await asyncio.sleep(0)
        error = await stable
        if error is not None:
            raise error
        flushes += 1
    flusher.close()
    file.close()
    return flushes


def _worker(kind: str, path: Path, seconds: float, counts: SimpleQueue[int]) -> None:
    import uvloop

    counts.put(uvloop.run(_flush_for(kind, path, seconds)))


def _round(kind: str, processes: int, seconds: float, directory: Path) -> tuple[float, float]:
    """Flushes a second, and microseconds of CPU each."""
    for number in range(processes):
        (directory / str(number)).touch()
    context = multiprocessing.get_context("spawn")
    counts: SimpleQueue[int] = context.SimpleQueue()
    workers = [
        context.Process(target=_worker, args=(kind, directory / str(number), seconds, counts))
        for number in range(processes)
    ]
    before = machine.busy_s()
    for worker in workers:
        worker.start()
    flushes = sum(counts.get() for _ in workers)
    for worker in workers:
        worker.join()
    return flushes / seconds, (machine.busy_s() - before) / flushes * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.micro.flush", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="of each (default 3)")
    parser.add_argument(
        "--directory", type=Path, default=None, help="on the disk to measure (default: the temporary one)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for processes in (1, 3):
            found: dict[str, list[tuple[float, float]]] = {"threads": [], "kernel": []}
            for _ in range(options.rounds):
                for kind, rounds in found.items():
                    rounds.append(_round(kind, processes, options.seconds, Path(directory)))
            for kind, rounds in found.items():
                rates, costs = zip(*rounds, strict=True)
                print(
                    f"{processes} process{'es' if processes > 1 else '  '}  {kind:<8}"
                    f"{statistics.median(rates):7,.0f} flushes/s ({min(rates):,.0f} - {max(rates):,.0f})"
                    f"{statistics.median(costs):7.0f} us CPU each ({min(costs):.0f} - {max(costs):.0f})",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
