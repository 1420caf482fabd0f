"""The time for which the event loop is held, by phase: `python -m bench.turns` (`make bench-turns`).

    catch-up   a consumer reads records that are not in the page cache
    by time    ListOffsets by time over many partitions after a restart, with cold files
    restart    a broker with many partitions starts; turns count from the start of its process
    cut        a follower's log of one large segment is cut in the middle

The broker is a separate process; its turns come from `/metrics` (`penstock_loop_turn_seconds`). The cut runs on a loop
of this process, on real files, as in a follower. posix_fadvise removes files from the page cache.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.model.new_topic import NewTopic
from penstock.node.local_nodes import free_ports
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.runtime.disk import OsDisk
from penstock.runtime.loop import BOUNDS_S, TurnLoop
from penstock.runtime.loop_watchdog import LoopWatchdog
from penstock.storage.group_commit import flush_blocking
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.aio.topics import create_topic

HOST = "127.0.0.1"
BATCH_BYTES = 900_000
COLD_PARTITIONS = 4
FETCH_BYTES = 8 << 20
START_S = 300.0
STALL_S = 0.1
HELD = "event loop held"


class Turns(NamedTuple):
    """Counts by bound, the last for what is beyond all of them."""

    counts: tuple[int, ...]
    longest_s: float

    def since(self, before: Turns) -> Turns:
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return Turns(counts, self.longest_s)


class Node:
    """A single broker with its REST proxy on. It may be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self.port, self._http_port = free_ports([HOST, HOST])
        self._directory = directory
        self._file = directory / "broker.properties"
        self._log = directory / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._file.write_text(
            f"node.id=1\nlisteners=PLAINTEXT://{HOST}:{self.port}\nlog.dirs={directory / 'data'}\n"
            f"penstock.http.listener={HOST}:{self._http_port}\nlog.segment.bytes={256 << 20}\n"
            "log.flush.interval.messages=9223372036854775807\n"
        )

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from penstock.cli import main; main()", "start", str(self._file)],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                self.turns()
                return
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.05)
        raise RuntimeError(f"the broker did not start: {self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
            self._process = None

    def restart_cold(self) -> None:
        self.stop()
        evict(self._directory / "data")
        self.start()

    def turns(self) -> Turns:
        with urllib.request.urlopen(f"http://{HOST}:{self._http_port}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        sums = [
            int(float(number)) for number in re.findall(r"^penstock_loop_turn_seconds_bucket\S* (\S+)$", page, re.M)
        ]
        longest = re.search(r"^penstock_loop_turn_longest_seconds (\S+)$", page, re.M)
        counts = tuple(here - before for here, before in zip(sums, [0, *sums], strict=False))
        return Turns(counts, float(longest.group(1)) if longest else 0.0)

    def said(self, since: int) -> list[str]:
        """Lines about turns that were too long, from that place of the log on."""
        with self._log.open("rb") as log:
            log.seek(since)
            return [line for line in log.read().decode(errors="replace").splitlines() if HELD in line]

    @property
    def log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0


def evict(directory: Path) -> None:
    """Drops its files from the page cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


# -- what clients do -------------------------------------------------------------------------


async def fill(cluster: AsyncCluster, topic: str, partitions: Sequence[int], batch: bytes, times: int) -> None:
    """Each partition gets the batch so many times."""
    for _ in range(times):
        for first in range(0, len(partitions), 50):
            data = [PartitionProduceData(index=index, records=batch) for index in partitions[first : first + 50]]
            request = ProduceRequest(
                acks=1, timeout_ms=60_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
            )
            connection = await cluster.control(await cluster.leader(topic, partitions[0]))
            answer = await connection.call(Api.PRODUCE, request, ProduceResponse)
            codes = {entry.error_code for one in answer.responses for entry in one.partition_responses}
            if codes != {0}:
                raise RuntimeError(f"produce was answered with {codes}")


async def read_all(port: int, topic: str, partition: int) -> int:
    """Fetch one partition from its start to its end; the number of bytes."""
    connection = await AsyncConnection.open(HOST, port, "bench-turns")
    offset = size = 0
    try:
        while True:
            asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=FETCH_BYTES,
                session_epoch=-1,
                topics=[FetchTopic(topic=topic, partitions=[asked])],
            )
            answer = await connection.call(Api.FETCH, request, FetchResponse)
            data = answer.responses[0].partitions[0]
            records = memoryview(data.records or b"")  # type: ignore[arg-type]
            if data.error_code:
                raise RuntimeError(f"fetch was answered with {data.error_code}")
            if not records:
                return size
            at = 0
            while at < len(records):
                header = read_header(records, at)
                offset = header.next_offset
                at += header.size_bytes
            size += len(records)
    finally:
        connection.close()


async def offsets_by_time(cluster: AsyncCluster, topic: str, partitions: int, timestamp: int) -> None:
    asked = [ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in range(partitions)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
    connection = await cluster.control(await cluster.leader(topic, 0))
    answer = await connection.call(Api.LIST_OFFSETS, request, ListOffsetsResponse, timeout_s=600)
    wrong = [one for one in answer.topics[0].partitions if one.error_code or one.offset < 0]
    if wrong:
        raise RuntimeError(f"ListOffsets was answered with {wrong[0]}")


# -- phases --------------------------------------------------------------------------------------


class Result(NamedTuple):
    phase: str
    turns: Turns
    seconds: float
    lines: list[str]


async def measured(
    node: Node, phase: str, work: Callable[[], Awaitable[object]], *, from_start: bool = False
) -> Result:
    before = Turns((0,) * (len(BOUNDS_S) + 1), 0.0) if from_start else node.turns()
    place, started = node.log_size, time.monotonic()
    await work()
    took_s = time.monotonic() - started
    await asyncio.sleep(0.3)  # the watchdog writes its line
    return Result(phase, node.turns().since(before), took_s, node.said(place))


async def catch_up(node: Node, gigabytes: float) -> Result:
    batch = build_batch([Record(None, os.urandom(BATCH_BYTES), (), 1)])
    cluster = AsyncCluster([(HOST, node.port)])
    await create_topic(cluster, NewTopic("cold", COLD_PARTITIONS))
    times = max(1, round(gigabytes * (1 << 30) / len(batch) / COLD_PARTITIONS))
    await fill(cluster, "cold", range(COLD_PARTITIONS), batch, times)
    cluster.close()
    node.restart_cold()

    async def work() -> None:
        sizes = await asyncio.gather(*(read_all(node.port, "cold", index) for index in range(COLD_PARTITIONS)))
        if sum(sizes) < times * len(batch) * COLD_PARTITIONS:
            raise RuntimeError(f"only {sum(sizes)} bytes were read")

    return await measured(node, f"catch-up reads of {gigabytes:g} GB, cold", work)


async def by_time(node: Node, partitions: int) -> Result:
    cluster = AsyncCluster([(HOST, node.port)])
    await create_topic(cluster, NewTopic("times", partitions))
    for timestamp in (1000, 2000, 3000):
        batch = build_batch([Record(None, b"v" * 100, (), timestamp + index) for index in range(300)])
        await fill(cluster, "times", range(partitions), batch, 1)
    cluster.close()
    node.restart_cold()
    cluster = AsyncCluster([(HOST, node.port)])
    await cluster.topic("times")
    result = await measured(
        node,
        f"ListOffsets by time, {partitions} partitions",
        lambda: offsets_by_time(cluster, "times", partitions, 2150),
    )
    cluster.close()
    return result


async def restart(node: Node, partitions: int) -> Result:
    cluster = AsyncCluster([(HOST, node.port)])
    batch = build_batch([Record(None, b"v" * 100, (), 1)])
    for number, first in enumerate(range(0, partitions, 1000)):
        count = min(1000, partitions - first)
        await create_topic(cluster, NewTopic(f"many-{number}", count))
        await fill(cluster, f"many-{number}", range(count), batch, 1)
    cluster.close()
    node.stop()

    async def work() -> None:
        node.start()

    return await measured(node, f"restart with {partitions} partitions", work, from_start=True)


def cut(directory: Path, gigabytes: float) -> Result:
    size = round(gigabytes * (1 << 30))
    config = LogConfig(segment_bytes=size + (64 << 20), flush_messages=1 << 62)
    disk = OsDisk()
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("penstock.runtime.loop_watchdog").addHandler(Lines())

    async def main() -> tuple[Turns, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TurnLoop)

        def fill_log() -> Log:
            log = Log.open(
                disk,
                str(directory / "cut-0"),
                config,
                now_ms=0,
            )
            while log.size_bytes < size:
                data = build_batch(
                    [Record(None, os.urandom(60_000), (), 1)],
                    producer_id=7,
                    producer_epoch=0,
                    base_sequence=log.log_end_offset,
                )
                log.append(read_header(data), data, 1, 0)
            flush_blocking(disk, log)
            return log

        log = await loop.run_in_executor(None, fill_log)
        await loop.run_in_executor(None, evict, directory)
        lookup = log.reader.lookup(log.log_end_offset // 2, 0)
        await loop.run_in_executor(None, lookup.run)
        log.reader.end_lookup(lookup)
        watchdog = LoopWatchdog(loop, STALL_S)
        before = Turns(tuple(loop.turns.counts), 0.0)
        loop.turns.longest_s = 0.0
        started = time.monotonic()
        cut = log.begin_cut(log.log_end_offset // 2, may_wait=False)
        assert cut is not None
        await loop.run_in_executor(None, cut.run)
        log.end_cut(cut)
        took_s = time.monotonic() - started
        await asyncio.sleep(0.3)
        watchdog.close()
        log.close(clean=False)
        return Turns(tuple(loop.turns.counts), loop.turns.longest_s).since(before), took_s

    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        turns, took_s = runner.run(main())
    return Result(f"cut of a segment of {gigabytes:g} GB", turns, took_s, lines)


# -- what is printed ---------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    bounds = [f"{bound * 1000:g} ms" for bound in BOUNDS_S if bound >= 0.001]
    first = len(BOUNDS_S) - len(bounds)
    rows = [["", "took", "turns", *[f"to {bound}" for bound in bounds], "more", "longest"]]
    for result in results:
        counts = result.turns.counts
        rows.append(
            [
                result.phase,
                f"{result.seconds:.2f} s",
                str(sum(counts)),
                str(sum(counts[: first + 1])),
                *[str(count) for count in counts[first + 1 :]],
                longest(counts),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text = "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    over = len(BOUNDS_S) - BOUNDS_S.index(STALL_S)
    for result in results:
        count = sum(result.turns.counts[-over:])
        text += f"\n{result.phase}: {count or 'no'} turn{'s' * (count != 1)} over {STALL_S * 1000:.0f} ms"
        text += "".join(f"\n    {line}" for line in result.lines)
    return text


def longest(counts: Sequence[int]) -> str:
    """As the highest bucket that is not empty says it."""
    last = max((number for number, count in enumerate(counts) if count), default=0)
    return f"to {BOUNDS_S[last] * 1000:g} ms" if last < len(BOUNDS_S) else f"over {BOUNDS_S[-1]:g} s"


async def with_broker(directory: Path, options: argparse.Namespace) -> list[Result]:
    results: list[Result] = []
    node = Node(directory)
    node.start()
    try:
        if options.gigabytes:
            results.append(await catch_up(node, options.gigabytes))
        if options.partitions:
            results.append(await by_time(node, options.partitions))
        if options.restart_partitions:
            results.append(await restart(node, options.restart_partitions))
    finally:
        node.stop()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.turns", description="How long the event loop is held.")
    parser.add_argument("--gigabytes", type=float, default=4, help="of cold records that are read (0: not)")
    parser.add_argument("--partitions", type=int, default=1000, help="whose offsets are looked up by time (0: not)")
    parser.add_argument("--cut-gigabytes", type=float, default=1, help="size of the segment that is cut (0: not)")
    parser.add_argument("--restart-partitions", type=int, default=4000, help="of a broker that is restarted (0: not)")
    parser.add_argument("--directory", help="where the files lie meanwhile; a temporary one by default")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="penstock-turns-", dir=options.directory))
    try:
        results = asyncio.run(with_broker(directory, options))
        if options.cut_gigabytes:
            results.append(cut(directory, options.cut_gigabytes))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(table(results))


if __name__ == "__main__":
    main()
