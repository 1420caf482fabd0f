"""Compaction under kill -9, of the broker and of its rewriting process: nothing that counts is lost.

Updates of a thousand keys go on while the broker is killed whenever new segments are being written. At the end the
log holds the last value of every key, every record has the offset it was acknowledged with, and a reader that
followed all the time has met nothing else, under both flush policies. PENSTOCK_COMPACTION_UPDATES (default 50,000)
and PENSTOCK_CHAOS_ROUNDS (default 10) set how much; `make compaction` takes a million.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from penstock.model.errors import ErrorCode
from penstock.records.batch import HEADER_SIZE, BatchHeader, iterate_headers
from penstock.records.builder import Record, build_batch, iterate_records
from penstock.records.compression import decompress
from support.clients.raw import RawClient
from support.processes.broker import BrokerProcess

UPDATES = int(os.environ.get("PENSTOCK_COMPACTION_UPDATES", "50000"))
ROUNDS = int(os.environ.get("PENSTOCK_CHAOS_ROUNDS", "10"))
TOPIC = "accounts"
KEYS = 1000
BATCH = 200
MEMORY_LIMIT_KB = 150_000
SETTINGS = {
    "log.cleanup.policy": "compact",
    "log.segment.bytes": str(1 << 20),
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.delete.retention.ms": "200",
    "log.segment.delete.delay.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "300",
}


@pytest.fixture(params=["1", str(2**63 - 1)], ids=["flushed", "left to the system"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, {**SETTINGS, "log.flush.interval.messages": request.param}) as process:
        with RawClient(process.port) as client:
            client.make_topic(TOPIC)
        yield process


class Writer(threading.Thread):
    """The only producer, so offsets are sequence numbers; a batch that was not answered is repeated."""

    def __init__(self, port: int, updates: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.updates = updates  # at least so many
        self.is_finishing = threading.Event()
        self.random = random.Random(seed)
        self.acknowledged: dict[int, tuple[bytes, bytes | None]] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._produce()
        except BaseException as error:
            self.failure = error

    def _produce(self) -> None:
        with RawClient(self.port) as client:
            producer_id = client.new_producer()
        sequence = 0
        while sequence < self.updates or not self.is_finishing.is_set():
            updates = [self._update(sequence + number) for number in range(BATCH)]
            now_ms = int(time.time() * 1000)
            batch = build_batch(
                [Record(key, value, (), now_ms) for key, value in updates],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
            )
            while not self._send(batch, sequence):
                time.sleep(0.01)
            self.acknowledged.update({sequence + number: update for number, update in enumerate(updates)})
            sequence += BATCH

    def _update(self, number: int) -> tuple[bytes, bytes | None]:
        key = b"key-%d" % self.random.randrange(KEYS)
        return key, None if self.random.random() < 0.02 else b"%d:" % number + bytes(self.random.choice((10, 100)))

    def _send(self, batch: bytes, sequence: int) -> bool:
        try:
            with RawClient(self.port) as client:
                answer = client.produce(TOPIC, 0, batch)
        except OSError:
            return False  # killed: connect again and repeat
        if answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return True
        assert answer.error_code == 0, ErrorCode(answer.error_code).name
        assert answer.base_offset == sequence
        return True

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure


class Reader(threading.Thread):
    """Follows the log from its start; compaction must not disturb it."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.is_finishing = threading.Event()
        self.seen: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.end = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_finishing.is_set():
                with suppress(OSError), RawClient(self.port) as client:
                    self._follow(client)
        except BaseException as error:
            self.failure = error

    def _follow(self, client: RawClient) -> None:
        while not self.is_finishing.is_set():
            data = client.fetch(TOPIC, 0, self.end, 1 << 18)
            assert data.error_code == 0, (self.end, ErrorCode(data.error_code).name)
            for header, records in batches_of(data.records):
                assert header.last_offset >= self.end
                for record in records:
                    self.seen.setdefault(record.offset, (record.key, record.value))
                    assert self.seen[record.offset] == (record.key, record.value)
                self.end = header.next_offset
            if not data.records:
                time.sleep(0.005)


def batches_of(data: object) -> Iterator[tuple[BatchHeader, list[Record]]]:
    records = cast("bytes", data or b"")
    for at, header in iterate_headers(records, "fetched"):
        payload = decompress(header.compression, records[at + HEADER_SIZE : at + header.size_bytes])
        yield header, list(iterate_records(header, payload))


def read_all(port: int) -> dict[int, tuple[bytes | None, bytes | None]]:
    offset, result = 0, {}
    with RawClient(port) as client:
        while (data := client.fetch(TOPIC, 0, offset)).records:
            assert data.error_code == 0
            for header, records in batches_of(data.records):
                assert header.last_offset >= offset
                result.update({record.offset: (record.key, record.value) for record in records})
                offset = header.next_offset
        assert offset == data.high_watermark
    return result


def check_log(port: int, acknowledged: dict[int, tuple[bytes, bytes | None]]) -> int:
    """The last value of every key is there, offsets are as acknowledged, nothing deleted is back; records left."""
    there = read_all(port)
    last = {key: offset for offset, (key, _) in acknowledged.items()}
    deleted: set[bytes] = set()
    for offset, update in there.items():
        if offset in acknowledged:  # else its answer was lost, or it is the one that ends the test
            assert update == acknowledged[offset]
    newer = {key for offset, (key, _) in there.items() if offset not in acknowledged}
    for key, offset in last.items():
        if offset in there or key in newer:
            continue
        assert acknowledged[offset][1] is None, f"the last value of {key!r} at {offset} is lost"
        deleted.add(key)
    if deleted & {key for key, _ in there.values()}:
        # A reader slower than delete.retention.ms may meet a value and not its tombstone any more. That tombstone
        # was forgotten only after every value before it, so whoever begins to read now meets neither.
        back = deleted & {key for key, _ in read_all(port).values()} - newer
        assert not back, f"{back} were deleted and are back"
    return len(there)


def rewriting_process(broker: BrokerProcess) -> int | None:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == broker.pid and b"cleaner_worker" in (process / "cmdline").read_bytes():
                return int(process.name)
    return None


def peak_memory_kb(pid: int) -> int:
    with suppress(OSError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1])
    return 0


def await_rewriting(broker: BrokerProcess, writer: Writer, updates: int) -> None:
    """Until so many updates are acknowledged and new files of a compaction are being written or put in place."""
    directory = broker.data / f"{TOPIC}-0"
    deadline = time.monotonic() + 60
    while len(writer.acknowledged) < updates or not any(
        name.endswith((".cleaned", ".swap"))
        for name in (os.listdir(directory) if directory.exists() else ())  # made by the first append
    ):
        writer.check()
        assert time.monotonic() < deadline, "nothing is compacted"
        time.sleep(0.0005)


def test_kill_during_cleaning(broker: BrokerProcess) -> None:
    rng = random.Random(7)
    writer, reader = Writer(broker.port, UPDATES, 1), Reader(broker.port)
    writer.start()
    reader.start()
    kills = children = peak_kb = 0
    for number in range(ROUNDS):
        await_rewriting(broker, writer, UPDATES * number // ROUNDS)
        time.sleep(rng.random() * 0.02)
        child = rewriting_process(broker)
        if child is not None:
            peak_kb = max(peak_kb, peak_memory_kb(child))
        if child is not None and rng.random() < 0.3:
            with suppress(ProcessLookupError):
                os.kill(child, 9)
            children += 1
        else:
            broker.kill()
            broker.start()
            kills += 1
            check_log(broker.port, dict(writer.acknowledged))
    writer.is_finishing.set()
    writer.join()
    writer.check()
    assert len(writer.acknowledged) >= UPDATES
    left = settle(broker, writer)
    while reader.end < len(writer.acknowledged):
        assert reader.is_alive()
        time.sleep(0.01)
    reader.is_finishing.set()
    reader.join()
    assert reader.failure is None
    assert all(writer.acknowledged.get(offset, update) == update for offset, update in reader.seen.items())
    assert 0 < peak_kb < MEMORY_LIMIT_KB, "0: no rewriting process was ever seen"
    print(
        f"{len(writer.acknowledged)} updates of {KEYS} keys, {kills} kills of the broker and {children} of the "
        f"rewriting process: {left} records left, rewriting took at most {peak_kb // 1024} MB"
    )


def settle(broker: BrokerProcess, writer: Writer) -> int:
    """Roll the last segment, wait until it is compacted, and count what is left."""
    broker.terminate()
    broker.settings["log.roll.ms"] = "100"
    broker.start()
    deadline = time.monotonic() + 60
    number = 0
    while True:
        time.sleep(0.15)
        end = build_batch([Record(b"end", b"%d" % number, (), int(time.time() * 1000))])
        number += 1
        with RawClient(broker.port) as client:
            assert client.produce(TOPIC, 0, end).error_code == 0
        left = check_log(broker.port, writer.acknowledged)
        if left <= KEYS + 5:
            return left
        assert time.monotonic() < deadline, f"{left} records are left"
