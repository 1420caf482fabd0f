"""Micro-benchmark of the storage engine on the real disk: append, lookup, open.

    python -m bench.micro.log [--logs 4000] [--directory DIR]

Append is shown on the real disk, as the bare `pwritev` of the same bytes, and on a disk whose writes do nothing:
the last is what the log itself costs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

from penstock.ports.disk import Buffer
from penstock.records.batch import BatchHeader, validate_produced
from penstock.records.builder import Record, build_batch
from penstock.runtime.disk import OsDisk, OsFile
from penstock.storage.last_run import LastRun
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

NOW_MS = 1_700_000_000_000


class NullFile(OsFile):
    def write(self, position: int, parts: Sequence[Buffer]) -> int:
        return 0


class NullDisk(OsDisk):
    def open(self, path: str, *, create: bool = False) -> NullFile:
        real = super().open(path, create=create)
        return NullFile(path, os.dup(real.fileno()))


def open_log(directory: str, *, clean: bool = False, recovery_point: int = 0, disk: OsDisk | None = None) -> Log:
    return Log.open(
        disk or OsDisk(),
        directory,
        LogConfig(),
        LastRun(recovery_point=recovery_point, was_clean=clean),
        now_ms=NOW_MS,
        topic_id=b"\7" * 16,
    )


def a_batch(size: int, *, producer_id: int = -1) -> tuple[BatchHeader, bytes]:
    record = Record(None, bytes(size - 75), (), NOW_MS)
    is_idempotent = producer_id >= 0
    data = build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=0 if is_idempotent else -1,
        base_sequence=0 if is_idempotent else -1,
    )
    return validate_produced(data), data


def best_us(work: Callable[[], None], count: int, rounds: int = 5) -> float:
    """Microseconds of one of `count` in the best of some rounds: the noise of a shared machine only adds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best / count * 1e6


def bench_append(root: str, size: int, count: int, *, producer_id: int = -1) -> None:
    header, data = a_batch(size, producer_id=producer_id)
    log = open_log(f"{root}/append-{size}-{producer_id}")
    null = open_log(f"{root}/null-{size}-{producer_id}", disk=NullDisk())
    fd = os.open(f"{root}/raw-{size}", os.O_RDWR | os.O_CREAT)
    parts = [data[:16], memoryview(data)[16:]]
    position = 0

    def raw() -> None:
        nonlocal position
        for _ in range(count):
            os.pwritev(fd, parts, position)
            position += size

    def append_to(log: Log) -> None:
        for _ in range(count):
            log.append(header, data, 0, NOW_MS)

    raw_us = best_us(raw, count)
    append_us = best_us(lambda: append_to(log), count)
    null_us = best_us(lambda: append_to(null), count)
    kind = "idempotent" if producer_id >= 0 else "plain"
    print(
        f"append {size:>7} B {kind:<10} {append_us:7.2f} us, bare pwritev {raw_us:7.2f} us, the log {null_us:5.2f} us"
    )
    os.close(fd)
    log.close(clean=False)
    null.close(clean=False)


def bench_read(root: str) -> None:
    directory = f"{root}/read"
    header, data = a_batch(1000)
    log = open_log(directory)
    count = 50_000
    for _ in range(count):
        log.append(header, data, 0, NOW_MS)
    random = Random(1)
    offsets = [random.randrange(count) for _ in range(5000)]

    def sequential() -> None:
        offset = 0
        while (piece := log.reader.read(offset, 16_000)) is not None:
            offset = piece.next_offset

    def at_random() -> None:
        for offset in offsets:
            log.reader.read(offset, 16_000)

    slices = count // 16 + 1
    print(f"read sequentially, 16 KB      {best_us(sequential, slices):7.2f} us")
    print(f"read at a random offset       {best_us(at_random, len(offsets)):7.2f} us")
    log.close(clean=True)
    log = open_log(directory, clean=True)
    print(f"the same, index in its file   {best_us(at_random, len(offsets)):7.2f} us")
    piece = log.reader.read(0, 1 << 20)
    assert piece is not None
    verified_us = best_us(lambda: log.reader.verify_slice(piece) and None, 1)
    print(f"verify 1 MB of 1 KB batches   {verified_us:7.2f} us")


def bench_open(root: str, count: int) -> None:
    header, data = a_batch(1000, producer_id=7)
    directories = [f"{root}/logs/t-{number}" for number in range(count)]

    def timed(name: str, work: Callable[[], list[Log]]) -> list[Log]:
        start = time.perf_counter()
        result = work()
        print(f"{name:<34} {time.perf_counter() - start:7.2f} s")
        return result

    logs = timed(f"create {count} logs", lambda: [open_log(directory) for directory in directories])

    def append_all() -> list[Log]:
        for log in logs:
            log.append(header, data, 0, NOW_MS)
        return logs

    def close(*, clean: bool) -> list[Log]:
        for log in logs:
            log.close(clean=clean)
        return []

    timed("one batch to each", append_all)
    timed("crash", lambda: close(clean=False))
    logs = timed("open after a crash", lambda: [open_log(directory) for directory in directories])
    assert all(log.log_end_offset == 1 for log in logs)

    def close_in_threads() -> list[Log]:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda log: log.close(clean=True), logs))
        return []

    timed("clean close, 16 threads", close_in_threads)
    logs = timed(
        "open after a clean close",
        lambda: [open_log(directory, clean=True, recovery_point=1) for directory in directories],
    )
    assert all(log.log_end_offset == 1 and len(log.producers) == 1 for log in logs)
    close(clean=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Micro-benchmark of the storage engine")
    parser.add_argument("--logs", type=int, default=4000)
    parser.add_argument("--directory", default=None, help="where to write; a temporary directory unless given")
    options = parser.parse_args()
    root = tempfile.mkdtemp(prefix="penstock-log-", dir=options.directory)
    try:
        bench_append(root, 1000, 20_000)
        bench_append(root, 1000, 20_000, producer_id=7)
        bench_append(root, 128_000, 1_000)
        bench_read(root)
        bench_open(root, options.logs)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
