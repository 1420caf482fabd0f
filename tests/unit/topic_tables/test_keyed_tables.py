"""A table of the newest row of each key: changes replace and delete rows, whatever is repeated or compacted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.arrow.values import parse_schema
from penstock.model.errors import ConfigError
from penstock.sdk import BlockingProducer
from penstock.tables import CommitConflict, Table
from penstock.tables.log import TableLog
from penstock.testing import Broker
from penstock.topic_tables import follower as follower_module
from support.tables.topics import FilledTopic, earliest

USERS = parse_schema("id long, name string")


@pytest.fixture
def topic(penstock_broker: Broker) -> FilledTopic:
    return FilledTopic(penstock_broker.bootstrap_servers)


def send(topic: FilledTopic, *changes: tuple[str | None, str | None], partition: int = 0, at: int = 1000) -> None:
    with BlockingProducer(topic.servers) as producer:
        for key, value in changes:
            producer.submit(topic.name, value, key=key, partition=partition, timestamp_ms=at)


def state(directory: Path, key: str = "key", value: str = "value") -> dict[Any, Any]:
    rows = Table.open(directory).at().arrow().to_pylist()
    found = {row[key]: row[value] for row in rows}
    assert len(found) == len(rows)
    return found


def test_the_newest_row_of_each_key(tmp_path: Path, topic: FilledTopic) -> None:
    send(topic, ("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("c", None), (None, "lost"))
    done = topic.follow(tmp_path, key=("key",))
    assert (done.records, done.tombstones, done.dead_letters, done.commits) == (6, 1, 1, 1)
    assert state(tmp_path) == {b"a": b"2", b"b": b"1"}
    (dead,) = Table.open(tmp_path / "_dead_letters").at().arrow().to_pylist()
    assert (dead["value"], dead["reason"]) == (b"lost", "the record has no key")
    send(topic, ("c", "2"), ("a", None), ("b", "2"), ("b", "3"))
    topic.follow(tmp_path)  # as the table has it
    assert state(tmp_path) == {b"b": b"3", b"c": b"2"}
    table = Table.open(tmp_path)
    assert (table.version, sorted(table.positions.values())) == (3, [0, 10])
    assert next(iter(table.history())).operation == "MERGE"


def test_rows_by_fields_go_with_the_key_of_their_record(tmp_path: Path, topic: FilledTopic) -> None:
    send(topic, ("k", '{"id": 1, "name": "a"}'), ("k", '{"id": 2, "name": "b"}'), ("l", '{"id": 3}'), ("l", "{}"))
    done = topic.follow(tmp_path, mode="json", schema=USERS, key=("id",))
    assert (state(tmp_path, "id", "name"), done.dead_letters) == ({1: "a", 2: "b", 3: None}, 1)
    send(topic, ("m", '{"id": 1, "name": "c"}'), ("k", None), (None, None))
    done = topic.follow(tmp_path)
    assert (state(tmp_path, "id", "name"), done.dead_letters) == ({1: "c", 3: None}, 1)
    rows = Table.open(tmp_path / "_dead_letters").at().arrow().sort_by("offset").to_pylist()
    assert [row["reason"] for row in rows] == ["Object missing required field `id`", "the record has no key"]
    topic.follow(tmp_path, schema=parse_schema("id long, name string, more int"))
    assert state(tmp_path, "id", "more") == {1: None, 3: None}


def test_a_key_that_moved_to_another_partition(tmp_path: Path, topic: FilledTopic) -> None:
    """The later timestamp counts, also if it was read first."""
    send(topic, ("a", "new"), ("b", "old"), partition=1, at=5000)
    topic.follow(tmp_path, key=("key",))
    send(topic, ("a", "old"), ("c", "1"), partition=0, at=4000)
    send(topic, ("b", "new"), partition=0, at=6000)
    topic.follow(tmp_path)
    assert state(tmp_path) == {b"a": b"new", b"b": b"new", b"c": b"1"}
    send(topic, ("a", None), ("b", None), partition=0, at=5500)
    topic.follow(tmp_path)
    assert state(tmp_path) == {b"c": b"1"}  # b was in partition 0, where the order is that of offsets


def test_a_crash_in_mid_commit(tmp_path: Path, topic: FilledTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the entry is there, and right after it."""
    put = TableLog.put

    def dies(is_after: bool) -> Any:
        def watched(log: TableLog, version: int, lines: Any) -> bool:
            if version > 1 and is_after:
                put(log, version, lines)
            if version > 1:
                raise KeyboardInterrupt
            return put(log, version, lines)

        return watched

    send(topic, ("a", "1"), ("b", "1"), ("a", "2"))
    for is_after, wanted in ((False, {}), (True, {b"a": b"2", b"b": b"1"})):
        with monkeypatch.context() as patch, topic.follower(tmp_path, key=("key",)) as follower:
            patch.setattr(TableLog, "put", dies(is_after))
            with pytest.raises(KeyboardInterrupt):
                follower.run(earliest)
        assert state(tmp_path) == wanted
    send(topic, ("b", None))
    assert topic.follow(tmp_path).records == 1
    assert state(tmp_path) == {b"a": b"2"}


def test_kill_9_again_and_again(tmp_path: Path, topic: FilledTopic) -> None:
    """Rows are those of the positions in the same version, while changes come and followers die."""
    place, ended = tmp_path / "t", threading.Event()
    command = [sys.executable, "-m", "penstock.cli", "table", "follow", "--topic", topic.name, "--to", str(place)]
    command += ["--key", "key", "--commit-interval", "20ms", "--bootstrap-server", topic.servers]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def produce() -> None:
        """Ten keys by turns; that of 0 is deleted each time."""
        sent = 0
        with BlockingProducer(topic.servers) as producer:
            while not ended.wait(0.02):
                for number in range(sent, sent + 50):
                    value = f"{number}" if number % 10 else None
                    producer.submit(topic.name, value, key=f"{number % 10}", partition=number % 2)
                producer.flush()
                sent += 50

    def check() -> int:
        if not (place / "_delta_log" / f"{1:020d}.json").exists():
            return 0
        table = Table.open(place)
        at = {int(stream.rpartition("/")[2]): offset for stream, offset in table.positions.items()}
        rows = [(int(key), int(value)) for batch in table.scan() for key, value in _pairs(batch)]
        ends = {key: 2 * at[key % 2] + key % 2 for key in range(1, 10)}  # no number from there on
        wanted = {key: end - 1 - (end - 1 - key) % 10 for key, end in ends.items()}
        assert sorted(rows) == [(key, number) for key, number in wanted.items() if number >= 0]
        return sum(at.values())

    thread = threading.Thread(target=produce)
    thread.start()
    seen = 0
    try:
        for _ in range(3):
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
            try:
                deadline = time.monotonic() + 60
                while check() <= seen + 100:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
            seen = check()
    finally:
        ended.set()
        thread.join()
    topic.follow(place)
    assert check() > seen


def _pairs(batch: Any) -> Iterator[tuple[bytes, bytes]]:
    yield from zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)


def test_a_second_follower_ends(tmp_path: Path, topic: FilledTopic) -> None:
    topic.follow(tmp_path, key=("key",))
    send(topic, ("a", "1"))
    with topic.follower(tmp_path) as late:
        topic.follow(tmp_path)
        with pytest.raises(CommitConflict, match="another process writes"):
            late.run(earliest)
    assert state(tmp_path) == {b"a": b"1"}


def test_memory_is_that_of_a_commit(tmp_path: Path, topic: FilledTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "COMMIT_BYTES", 20_000)
    for turn in range(2):
        changes = [(f"{number % 100}", f"{turn}" * 100) for number in range(200)]
        send(topic, *changes[::2])
        send(topic, *changes[1::2], partition=1)
    assert topic.follow(tmp_path, key=("key",)).commits == 2  # by partition
    assert state(tmp_path) == {b"%d" % number: b"1" * 100 for number in range(100)}


@pytest.fixture
def compacting() -> Iterator[Broker]:
    settings = {
        "log.cleanup.policy": "compact",
        "log.segment.bytes": str(1 << 20),
        "log.cleaner.backoff.ms": "20",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.delete.retention.ms": "100",
        "log.segment.delete.delay.ms": "100",
    }
    with Broker(settings) as broker:
        yield broker


@pytest.mark.parametrize("key", [(), ("key",)])
def test_records_that_compaction_removed_are_not_lost(tmp_path: Path, compacting: Broker, key: tuple[str, ...]) -> None:
    """A topic that was compacted before it was read, at its begin, and where the table continues."""
    topic = FilledTopic(compacting.bootstrap_servers)
    place = tmp_path / "table"
    first = "0" if key else "first"  # a key that comes again goes from the begin of the log, too
    send(topic, (first, "1"))
    topic.follow(place, key=key)
    for _ in range(6):
        send(topic, *((f"{number}", "x" * 10_000) for number in range(50)))
    send(topic, *((f"{number}", "last") for number in range(50)), ("49", None))
    deadline = time.monotonic() + 60
    while sum(offset < 100 for offset in _offsets(topic)) > (not key):
        assert time.monotonic() < deadline, "nothing is compacted"
        time.sleep(0.1)
    done = topic.follow(place)
    assert (done.lost, done.lag) == (0, 0)
    if key:
        assert state(place) == {b"%d" % number: b"last" for number in range(49)}


def _offsets(topic: FilledTopic) -> list[int]:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Partition

    consumer = Consumer({"bootstrap.servers": topic.servers, "group.id": "looks", "enable.auto.commit": False})
    consumer.assign([Partition(topic.name, 0, 0)])
    found: list[int] = []
    while messages := consumer.consume(1000, 1.0):
        found += [message.offset() for message in messages]
    consumer.close()
    return found


def test_keys_that_cannot_be(tmp_path: Path, topic: FilledTopic) -> None:
    topic.follow(tmp_path / "plain")
    topic.follow(tmp_path / "keyed", key=("key",))
    fields = {"mode": "json", "schema": parse_schema("id long, price double, tags array<string>")}
    for directory, options, reason in (
        ("plain", {"key": ("key",)}, "plain has a row for each record, which cannot be changed"),
        ("keyed", {"key": ("value",)}, "has the newest row of each key, which cannot be changed"),
        ("new", {"key": ("value",)}, "raw rows have one key, that of the record: --key key"),
        ("new", {**fields, "key": ("nothing",)}, "--key nothing: the table's columns are id, price, tags, _partition"),
        ("new", {**fields, "key": ("price",)}, "--key price: it is double, which cannot be a key"),
        ("new", {**fields, "key": ("tags",)}, "--key tags: it is list"),
        ("new", {**fields, "key": ("id", "id")}, "--key names a column twice: id, id"),
    ):
        with pytest.raises(ConfigError, match=reason):
            topic.follow(tmp_path / directory, **options)
    assert not (tmp_path / "new").exists()
