"""A topic becomes a table: each committed record once, whatever ends the follower and whenever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient

from penstock.arrow.values import parse_schema
from penstock.model.errors import ConfigError
from penstock.sdk import BlockingAdmin, BlockingProducer
from penstock.tables import CommitConflict, PositionsMoved, Table
from penstock.testing import Broker
from penstock.topic_tables import follower as follower_module
from penstock.topic_tables import reading
from penstock.topic_tables.follower import Audience, RecordsLost
from penstock.topic_tables.progress import FollowProgress
from penstock.topic_tables.reading import ShorterLog
from penstock.wire_client.requests.errors import BrokerUnreachable, TopicRecreated
from support.tables.topics import FilledTopic, earliest, latest, offsets_of, values_of

DAY_MS = 86_400_000


@pytest.fixture
def topic(penstock_broker: Broker) -> FilledTopic:
    return FilledTopic(penstock_broker.bootstrap_servers)


def until(is_true: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_records_are_rows(tmp_path: Path, topic: FilledTopic) -> None:
    topic.send(["a", None], key=b"k", headers=[("h", b"1"), ("h", None)], timestamp_ms=DAY_MS, partition=1)
    topic.send([b"\xff"], timestamp_ms=2 * DAY_MS)
    done = topic.follow(tmp_path, partition_by=("date",))
    assert (done.records, done.commits, done.lag, done.positions) == (3, 1, 0, {0: 1, 1: 2})
    rows = pl.read_delta(str(tmp_path)).sort("partition", "offset").to_dicts()
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    at = datetime(1970, 1, 2, tzinfo=UTC)
    common = {"partition": 1, "timestamp": at, "timestampType": 0, "key": b"k", "headers": headers, "date": at.date()}
    assert rows[1:] == [{**common, "offset": 0, "value": b"a"}, {**common, "offset": 1, "value": None}]
    assert (rows[0]["value"], str(rows[0]["date"])) == (b"\xff", "1970-01-03")


def test_it_continues_where_the_table_is(tmp_path: Path, topic: FilledTopic) -> None:
    topic.numbers(0, 100)
    topic.follow(tmp_path)
    topic.numbers(100, 150)
    assert topic.follow(tmp_path).records == 50
    assert topic.follow(tmp_path).records == 0
    assert sorted(values_of(tmp_path)) == list(range(150))
    assert Table.open(tmp_path).version == 3  # made, begun, two commits, and none for the last run


def test_large_topics_are_committed_in_between(
    tmp_path: Path, topic: FilledTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "COMMIT_BYTES", 100_000)
    topic.send([b"%07d" % number * 100 for number in range(1000)])
    done = topic.follow(tmp_path)
    assert done.commits == 2
    assert (offsets_of(tmp_path, 0), offsets_of(tmp_path, 1)) == (list(range(500)), list(range(500)))


def test_a_table_is_looked_after_while_it_catches_up(
    tmp_path: Path, topic: FilledTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old versions go as soon as they may."""
    for name, value in (("COMMIT_BYTES", 1000), ("COMPACT_S", 0.0)):
        monkeypatch.setattr(follower_module, name, value)
    with topic.follower(tmp_path, keep=timedelta(0)) as follower:
        follower._begin(earliest)
        for _ in range(6):
            topic.send([b"%07d" % number * 100 for number in range(10)])
            follower._drain(follower._reader.ends(range(2)))
        commits = follower.progress.commits
    table = Table.open(tmp_path)
    assert (table.rows, table.files) == (60, len(list(tmp_path.glob("*.parquet"))))
    assert table.files < commits


def test_only_committed_records(tmp_path: Path, topic: FilledTopic) -> None:
    with BlockingProducer(topic.servers, transactional_id=topic.name) as producer:
        with producer.transaction():
            producer.submit(topic.name, "1", partition=0)
        with suppress(KeyError), producer.transaction():
            producer.submit(topic.name, "2", partition=0)
            producer.flush()
            raise KeyError
        with producer.transaction():
            producer.submit(topic.name, "3", partition=0)
            producer.flush()
            done = topic.follow(tmp_path)
            assert (values_of(tmp_path), done.positions) == ([1], {0: 4, 1: 0})  # two records, two markers
    assert topic.follow(tmp_path).records == 1
    assert values_of(tmp_path) == [1, 3]
    assert topic.follow(tmp_path).commits == 0


@pytest.mark.parametrize(
    ("start", "first"),
    [(earliest, 0), (latest, 20), (lambda reader, partitions: reader.at(partitions, 8 * DAY_MS), 14)],
)
def test_where_a_new_table_begins(tmp_path: Path, topic: FilledTopic, start: Any, first: int) -> None:
    for number in range(10):
        topic.send([str(2 * number), str(2 * number + 1)], timestamp_ms=(number + 1) * DAY_MS)
    topic.follow(tmp_path, start)
    topic.numbers(20, 30)
    topic.follow(tmp_path, earliest)  # counts for a new table only
    assert sorted(values_of(tmp_path)) == list(range(first, 30))


def test_a_partition_that_is_added_begins_with_its_first_record(tmp_path: Path, topic: FilledTopic) -> None:
    topic.numbers(0, 10)
    topic.follow(tmp_path, latest)
    with BlockingAdmin(topic.servers) as admin:
        admin.add_partitions(topic.name, 3)
    topic.numbers(10, 20, partition=2)
    topic.follow(tmp_path)
    assert values_of(tmp_path) == list(range(10, 20))


class Running:
    """A follower on a thread."""

    def __init__(self, topic: FilledTopic, directory: Path, **options: Any) -> None:
        self.stop = threading.Event()
        self.said: list[str] = []
        self.failures: list[BaseException] = []
        self._audience = Audience(self.stop, self.said.append)
        self._options = {"once": False, "commit_interval_s": 0.1, **options}
        self._topic, self._directory = topic, directory
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with self._topic.follower(self._directory, audience=self._audience, **self._options) as follower:
                follower.run(earliest)
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_rows_come_as_records_do(tmp_path: Path, topic: FilledTopic) -> None:
    """Until it is stopped; what it has read by then is committed."""
    place = tmp_path / "table"
    with Running(topic, place) as running:
        until(lambda: place.exists() and Table.open(place).version >= 1)
        for first in range(0, 60, 20):
            topic.numbers(first, first + 20)
            until(lambda end=first + 20: sorted(values_of(place)) == list(range(end)))  # type: ignore[misc]
    assert not running.failures
    assert Table.open(place).version >= 4


def test_it_is_not_running_while_no_broker_answers(
    tmp_path: Path, topic: FilledTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "FIRST_PAUSE_S", 0.0)
    topic.numbers(0, 10)
    seen: list[tuple[str, bool]] = []
    stop = threading.Event()

    def watch(progress: FollowProgress) -> None:
        seen.append(("commit", progress.is_running))
        if progress.records:
            stop.set()

    audience = Audience(stop, lambda _: seen.append(("failure", follower.progress.is_running)), watch)
    with topic.follower(tmp_path, audience=audience, once=False, commit_interval_s=0.0) as follower:
        ends, answers = follower._reader.ends, iter([False, True])

        def sometimes(partitions: range) -> dict[int, int]:
            if next(answers, True):
                return ends(partitions)
            raise BrokerUnreachable("no broker answers")

        monkeypatch.setattr(follower._reader, "ends", sometimes)
        follower.run(earliest)
    assert seen == [("commit", False), ("failure", False), ("commit", True)]
    assert not follower.progress.is_running


def test_a_second_follower_ends(tmp_path: Path, topic: FilledTopic) -> None:
    place = tmp_path / "table"
    topic.follow(place)
    with Running(topic, place) as one, Running(topic, place) as other:
        for number in range(200):
            topic.numbers(number * 10, number * 10 + 10)
            if one.failures or other.failures:
                break
    (failure,) = one.failures + other.failures
    assert isinstance(failure, CommitConflict | PositionsMoved)
    topic.follow(place)
    assert sorted(values_of(place)) == list(range(number * 10 + 10))


@pytest.mark.parametrize("foreign", [10, 20, 30])
def test_a_foreign_commit_is_noticed_after_a_refresh(tmp_path: Path, topic: FilledTopic, foreign: int) -> None:
    """Compaction takes in what others have committed, while rows wait."""
    with topic.follower(tmp_path) as follower:
        follower._begin(earliest)
        topic.numbers(0, 10)
        if foreign == 10:
            topic.follow(tmp_path)
        topic.numbers(10, 20)
        follower._drain(follower._reader.ends(range(2)))
        topic.numbers(20, foreign)
        if foreign > 10:
            topic.follow(tmp_path)
        follower._table.compact()
        with pytest.raises((CommitConflict, PositionsMoved)):
            follower._commit()
    assert sorted(values_of(tmp_path)) == list(range(foreign))


def test_records_that_retention_deleted(tmp_path: Path, topic: FilledTopic) -> None:
    topic.numbers(0, 10, partition=0)
    topic.follow(tmp_path)
    topic.numbers(10, 30, partition=0)
    admin = AdminClient({"bootstrap.servers": topic.servers})
    for future in admin.delete_records([Partition(topic.name, 0, 20)]).values():
        future.result()
    reason = f"offsets 10 to 19 of partition 0 of topic {topic.name} were deleted before they were read"
    with pytest.raises(RecordsLost, match=reason):
        topic.follow(tmp_path)
    assert topic.follow(tmp_path, allow_gaps=True).lost == 10
    assert offsets_of(tmp_path) == [*range(10), *range(20, 30)]
    assert topic.follow(tmp_path).lost == 0


@pytest.mark.parametrize("once", [True, False])
def test_a_log_that_became_shorter(
    tmp_path: Path, topic: FilledTopic, monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    monkeypatch.setattr(reading, "SHORT_S", 0.2)
    topic.numbers(0, 10)
    topic.follow(tmp_path)
    with topic.follower(tmp_path, once=once) as follower:
        monkeypatch.setattr(follower._reader, "ends", lambda partitions: {0: 3, 1: 5})
        with pytest.raises(ShorterLog, match=f"partition 0 of topic {topic.name} became shorter: it ends at 3, and"):
            follower.run(earliest)


def test_a_new_leader_that_is_behind_for_a_moment(
    tmp_path: Path, topic: FilledTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.numbers(0, 10)
    topic.follow(tmp_path)
    topic.numbers(10, 12)
    with topic.follower(tmp_path) as follower:
        ends, short = follower._reader.ends, iter([{0: 3, 1: 5}])
        monkeypatch.setattr(follower._reader, "ends", lambda partitions: next(short, None) or ends(partitions))
        follower.run(earliest)
    assert sorted(values_of(tmp_path)) == list(range(12))


def test_a_topic_that_was_created_again(tmp_path: Path, topic: FilledTopic) -> None:
    topic.numbers(0, 10)
    topic.follow(tmp_path)
    topic.recreate()
    with pytest.raises(ConfigError, match="was deleted and created again since its table was made"):
        topic.follow(tmp_path)


def test_a_topic_that_is_created_again_meanwhile(tmp_path: Path, topic: FilledTopic) -> None:
    topic.numbers(0, 10)
    with topic.follower(tmp_path) as follower:
        topic.recreate()
        topic.numbers(0, 20)
        with pytest.raises(TopicRecreated):
            follower.run(earliest)
    assert Table.open(tmp_path).at().arrow().num_rows == 0


def test_tables_of_something_else(tmp_path: Path, topic: FilledTopic) -> None:
    other = FilledTopic(topic.servers)
    topic.follow(tmp_path / "a")
    Table.create(tmp_path / "b", parse_schema("id long"))
    for directory, options, reason in (
        ("a", {"mode": "json"}, "has rows of mode raw, not json"),
        ("a", {"partition_by": ("date",)}, "is partitioned by nothing, which cannot be changed"),
        ("a", {"schema": parse_schema("id long")}, "--schema is for --mode json"),
        ("b", {}, "was not made from a topic"),
        ("c", {"schema": parse_schema("id long")}, "--schema is for --mode json"),
    ):
        with pytest.raises(ConfigError, match=reason):
            topic.follow(tmp_path / directory, **options)
    with pytest.raises(ConfigError, match=f"is the table of topic {topic.name}"):
        other.follow(tmp_path / "a")


def test_json_and_its_dead_letters(tmp_path: Path, topic: FilledTopic) -> None:
    schema = parse_schema("id int, name string")
    topic.send(['{"id": 0, "name": "a"}', '{"id": "x"}', "no json", '{"id": 3}'], key=b"k")
    done = topic.follow(tmp_path, mode="json", schema=schema)
    assert (done.records, done.dead_letters) == (4, 2)
    rows = Table.open(tmp_path).at().arrow().sort_by("id").to_pylist()
    assert [tuple(row.values())[:4] for row in rows] == [(0, "a", 0, 0), (3, None, 1, 1)]
    dead = Table.open(tmp_path / "_dead_letters").at().arrow().sort_by([("partition", "ascending")]).to_pylist()
    assert [(row["value"], row["key"], row["partition"], row["offset"]) for row in dead] == [
        (b"no json", b"k", 0, 1),
        (b'{"id": "x"}', b"k", 1, 0),
    ]
    assert dead[1]["reason"] == "Expected `int | null`, got `str` - at `$.id`"
    topic.send(['{"id": 4}'])
    topic.follow(tmp_path)  # as the table has it
    assert Table.open(tmp_path).at().arrow().num_rows == 3


def test_dead_letters_are_there_once(tmp_path: Path, topic: FilledTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash comes between the dead letters and the rows."""
    schema = parse_schema("id int")
    topic.send(["bad", '{"id": 1}', '{"id": 2}', "bad"])

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, topic.follower(tmp_path, mode="json", schema=schema) as follower:
        append = follower._table.append
        patch.setattr(follower._table, "append", lambda rows, spans: dies() if rows else append(rows, spans))
        with pytest.raises(KeyboardInterrupt):
            follower.run(earliest)
    assert Table.open(tmp_path / "_dead_letters").at().arrow().num_rows == 2
    assert Table.open(tmp_path).at().arrow().num_rows == 0
    topic.send(["bad", "bad"])
    assert topic.follow(tmp_path).dead_letters == 2
    assert Table.open(tmp_path / "_dead_letters").at().arrow().num_rows == 4
    assert sorted(Table.open(tmp_path).at().arrow().column("id").to_pylist()) == [1, 2]


def test_a_schema_that_grows(tmp_path: Path, topic: FilledTopic) -> None:
    topic.send(['{"id": 1, "more": "x"}'])
    topic.follow(tmp_path, mode="json", schema=parse_schema("id int"), partition_by=("date",))
    topic.send([f'{{"id": {2**40}, "more": "y"}}'])
    with pytest.raises(ConfigError, match="column id is int32 in the table and string in the rows"):
        topic.follow(tmp_path, schema=parse_schema("id string"))
    topic.follow(tmp_path, schema=parse_schema("id long, more string"))
    rows = Table.open(tmp_path).at().arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["more"]) for row in rows] == [(1, None), (2**40, "y")]
    assert topic.follow(tmp_path).records == 0


def test_kill_9_again_and_again(tmp_path: Path, topic: FilledTopic) -> None:
    """Each record is in the table once, at any moment, while records come and followers die."""
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "table",
        "follow",
        "--topic",
        topic.name,
        "--to",
        str(tmp_path / "t"),
    ]
    command += ["--commit-interval", "20ms", "--bootstrap-server", topic.servers]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = threading.Event()
    sent = 0

    def produce() -> None:
        nonlocal sent
        while not ended.is_set():
            topic.numbers(sent, sent + 50)
            sent += 50
            time.sleep(0.02)

    thread = threading.Thread(target=produce)
    thread.start()
    seen = 0
    try:
        for _ in range(4):
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
            try:
                until(lambda: len(_offsets_if_any(tmp_path / "t")) > seen + 100)  # noqa: B023
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
            offsets = _offsets_if_any(tmp_path / "t")
            assert offsets == list(range(len(offsets)))
            seen = len(offsets)
    finally:
        ended.set()
        thread.join()
    topic.follow(tmp_path / "t")
    assert sorted(values_of(tmp_path / "t")) == list(range(sent))


def _offsets_if_any(directory: Path) -> list[int]:
    return offsets_of(directory) if (directory / "_delta_log" / f"{1:020d}.json").exists() else []
