"""Micro-benchmark of compaction on the real disk: records per second over both passes, syncs included.

    python -m bench.micro.cleaner [--records 1000000] [--keys 1000] [--value-bytes 20]
                                                 [--batch 500] [--codec none] [--directory DIR]

Every record is read twice: once to find the last offset of its key, once to decide whether it stays. Memory is the
increase of this process to its peak.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from random import Random

from penstock.records.batch import HEADER_SIZE, read_header
from penstock.records.builder import Record, build_batch, seal
from penstock.records.compression import CODEC_BY_NAME, compress
from penstock.runtime.disk import OsDisk
from penstock.storage.cleaner.plan import Cleaned, max_keys
from penstock.storage.cleaner.rewrite import clean
from penstock.storage.cleaner.survey import make_plan, survey
from penstock.storage.group_commit import flush_blocking
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig

NOW_MS = 1_700_000_000_000


def fill(log: Log, records: int, keys: int, value_bytes: int, batch: int, codec: int) -> None:
    random = Random(1)
    value = random.randbytes(value_bytes)
    for _ in range(records // batch):
        data = build_batch([Record(b"key-%d" % random.randrange(keys), value, (), NOW_MS) for _ in range(batch)])
        if codec:
            data = seal(read_header(data)._replace(attributes=codec), compress(codec, data[HEADER_SIZE:]))
        log.append(read_header(data), data, 0, NOW_MS)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--value-bytes", type=int, default=20)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--codec", choices=list(CODEC_BY_NAME), default="none")
    parser.add_argument("--directory")
    options = parser.parse_args()
    directory = options.directory or tempfile.mkdtemp(prefix="penstock-bench-")
    disk = OsDisk()
    try:
        log = Log.open(
            disk,
            f"{directory}/accounts-0",
            LogConfig(segment_bytes=64 << 20, compact=True, delete=False),
            now_ms=NOW_MS,
        )
        codec = CODEC_BY_NAME[options.codec]
        fill(log, options.records, options.keys, options.value_bytes, options.batch, codec)
        log.roll(NOW_MS)
        flush_blocking(disk, log)
        plan = make_plan(log, survey(log, log.log_end_offset, NOW_MS), NOW_MS, max_keys(128 << 20, 0.9))
        size, before_mb = log.size_bytes, peak_mb()
        started = time.perf_counter()
        *_, done = clean(disk, plan)
        seconds = time.perf_counter() - started
        assert isinstance(done, Cleaned)
        print(
            f"{done.records_read:,} records of {size / options.records:.0f} bytes, {done.keys:,} keys, "
            f"batches of {options.batch}, {options.codec}: {done.records_kept:,} kept in {seconds:.2f} s, "
            f"{done.records_read / seconds:,.0f} records/s, {size / seconds / 1e6:.0f} MB/s, "
            f"{peak_mb() - before_mb:.0f} MB more memory"
        )
    finally:
        if not options.directory:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
