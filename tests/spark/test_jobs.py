"""The ready-made pipelines by their commands, in a real Spark session against real brokers."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession
from spark_topics import DELIVERY_TIMEOUT_S, Topics

from penstock.spark.jobs import archive as archive_job
from penstock.spark.jobs.archives.compaction import compact
from penstock.spark.jobs.archives.manifest import Archive
from support.processes.broker import BrokerProcess
from support.processes.command_line import CommandLine

DAY_MS = 86_400_000
FIRST_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z: two days within two hours

Headers = list[tuple[str, bytes | None]]
Log = dict[int, list[tuple[bytes | None, bytes | None, Headers, int]]]
"""By partition, in order: key, value, headers, timestamp."""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "penstock" / "jobs"


class Jobs:
    """`penstock pipeline ...` in this process; Spark is the tests' session."""

    def __init__(self, run: CommandLine, servers: str) -> None:
        self._run = run
        self._servers = servers

    def __call__(self, *arguments: str, code: int = 0, servers: str | None = None) -> dict[str, Any]:
        ran = self._run("pipeline", *arguments, "--bootstrap-server", servers or self._servers, "--json")
        assert ran.code == code, ran.err
        found: dict[str, Any] = json.loads(ran.out) if ran.out else {}
        return {**found, "stderr": ran.err}


@pytest.fixture
def jobs(
    spark: SparkSession, topics: Topics, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Jobs:
    return Jobs(CommandLine(monkeypatch, capsys), topics.bootstrap_servers)


def fill(topics: Topics, topic: str, first: int, last: int, partitions: int = 2) -> None:
    """Records of all kinds: without key, without value, empty, of any bytes, with headers; timestamps over two days,
    and not always growing."""
    producer = Producer({"bootstrap.servers": topics.bootstrap_servers})
    for n in range(first, last):
        headers: Headers = [("n", b"%d" % n), ("n", None), ("", b"\x00\xff")] if n % 4 else []
        producer.produce(
            topic,
            None if n % 7 == 0 else b"" if n % 7 == 1 else b"v\x00\xfe%d" % n,
            None if n % 5 == 0 else b"" if n % 5 == 1 else b"k\x00\xff%d" % n,
            partition=n % partitions,
            timestamp=FIRST_MS + n * 20_000 - (n % 3) * 30_000,
            headers=headers,
        )
    assert producer.flush(DELIVERY_TIMEOUT_S) == 0


def log_of(servers: str, topic: str, partitions: int = 2) -> Log:
    """As librdkafka reads it."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test-jobs", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: Log = {partition: [] for partition in range(partitions)}
    at_end: set[int] = set()
    while len(at_end) < partitions:
        message = consumer.poll(10)
        assert message is not None, f"{topic} does not come to its end"
        if message.error() is not None:
            at_end.add(message.partition())
            continue
        kind, time_ms = message.timestamp()
        assert kind == TIMESTAMP_CREATE_TIME
        found[message.partition()].append((message.key(), message.value(), message.headers() or [], time_ms))
    consumer.close()
    return found


def rows_of(directory: Path) -> list[tuple[int, int]]:
    """(partition, offset), as any tool finds them."""
    table = ds.dataset(directory, partitioning="hive").to_table(["partition", "offset"])
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def all_rows(partitions: int, count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(count // partitions)]


# -- archive and replay -----------------------------------------------------------------


def test_a_topic_archived_and_replayed_is_the_same_byte_for_byte(
    jobs: Jobs, topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    source, copy, archive = topics.create(partitions=2), topics.create(partitions=2), tmp_path / "archive"
    fill(topics, source, 0, 600)
    first = jobs("archive", "--topic", source, "--to", str(archive))
    assert (first["archived"], first["rows"], first["lag"], first["state"]) == (600, 600, 0, "done")
    assert {path.name for path in (archive / f"topic={source}").iterdir()} == {"date=2023-11-14", "date=2023-11-15"}
    # Run again with nothing new, then with more: nothing twice.
    assert jobs("archive", "--topic", source, "--to", str(archive))["archived"] == 0
    fill(topics, source, 600, 1000)
    assert jobs("archive", "--topic", source, "--to", str(archive))["archived"] == 400
    assert rows_of(archive) == all_rows(2, 1000)
    frame = spark.read.parquet(str(archive))
    assert frame.count() == frame.select("topic", "partition", "offset").distinct().count() == 1000
    # Its lag is that of a group, shown also when it does not run.
    assert [one.lag for one in topics.admin.lag(first["group"])] == [0, 0]

    replayed = jobs("replay", "--from", str(archive), "--to", copy)
    assert (replayed["sent"], replayed["positions"]) == (1000, {"0": 500, "1": 500})
    assert log_of(topics.bootstrap_servers, copy) == log_of(topics.bootstrap_servers, source)


def test_a_crash_of_an_archive_loses_and_doubles_nothing(jobs: Jobs, topics: Topics, tmp_path: Path) -> None:
    """Between staging and manifest: files are in place that nobody knows of, and Spark's checkpoint is gone."""
    source, directory = topics.create(partitions=2), tmp_path / "archive"
    fill(topics, source, 0, 100)
    jobs("archive", "--topic", source, "--to", str(directory))
    archive = Archive(directory)
    before = archive.manifest_path.read_bytes()
    fill(topics, source, 100, 300)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(archive_job, "merge_files", lambda *_: 0)
        jobs("archive", "--topic", source, "--to", str(directory))
        archive.manifest_path.write_bytes(before)
        again = jobs("archive", "--topic", source, "--to", str(directory))
        assert again["archived"] == 200
        assert "files that the manifest does not name" in again["stderr"]
    assert rows_of(directory) == all_rows(2, 300)
    # And while small files are merged: stopped after the decision, before the merged file is in place.
    files = len(archive.load().files)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Archive, "_exchange_day", _crash)
        with pytest.raises(RuntimeError, match="crash"):
            compact(archive, 1 << 20, is_thorough=True)
    merged = jobs("archive", "--to", str(directory), "--compact")
    assert merged["files"] < files
    assert rows_of(directory) == all_rows(2, 300)


def _crash(*_: object) -> None:
    raise RuntimeError("crash")


def test_a_part_of_a_topic_replayed_by_key_and_at_speed(jobs: Jobs, topics: Topics) -> None:
    source, by_offset, by_time = topics.create(partitions=2), topics.create(partitions=3), topics.create(partitions=2)
    fill(topics, source, 0, 200)
    log = log_of(topics.bootstrap_servers, source)
    jobs("replay", "--from-topic", source, "--offsets", "0:10-40,1:90-", "--to", by_offset, "--partitions", "hash")
    found = log_of(topics.bootstrap_servers, by_offset, 3)
    wanted = log[0][10:40] + log[1][90:]
    assert sorted(map(repr, chain(*found.values()))) == sorted(map(repr, wanted))
    for partition in found.values():  # the order of each partition stays
        for part in (log[0][10:40], log[1][90:]):
            kept = [record for record in part if record in partition]
            assert kept == [record for record in partition if record in part]
    # 400 s of records at 200x take two seconds.
    since, until = FIRST_MS + 400_000, FIRST_MS + 800_000
    between = ("--since", str(since), "--until", str(until))
    paced = jobs("replay", "--from-topic", source, *between, "--to", by_time, "--speed", "200x")
    assert paced["seconds"] > 1
    found = log_of(topics.bootstrap_servers, by_time)
    for partition, records in log.items():
        first, last = ([r[3] >= edge for r in records].index(True) for edge in (since, until))
        assert found[partition] == records[first:last]


def test_a_replay_goes_on_where_it_was_stopped(
    jobs: Jobs, topics: Topics, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.jobs import replay

    source, target = topics.create(partitions=2), topics.create(partitions=2)
    fill(topics, source, 0, 100)
    steps: list[object] = []
    send = replay._send

    def send_twice(*args: Any) -> int:
        steps.append(args)
        if len(steps) == 3:
            raise replay.JobFailed("the broker is gone, on purpose")
        return send(*args)

    monkeypatch.setattr(replay, "STEP_OFFSETS", 20)
    monkeypatch.setattr(replay.next_step, "__defaults__", (20,))
    monkeypatch.setattr(replay, "_send", send_twice)
    failed = jobs("replay", "--from-topic", source, "--to", target, code=3)
    assert "40 records are sent; run this again to resume" in failed["stderr"]
    assert "spark.log" in failed["stderr"]
    resumed = jobs("replay", "--from-topic", source, "--to", target)
    assert (resumed["resumed_after"], resumed["rows"], resumed["sent"]) == (40, 60, 100)
    again = jobs("replay", "--from-topic", source, "--to", target)
    assert (again["state"], again["rows"], again["sent"]) == ("done already", 0, 100)
    assert log_of(topics.bootstrap_servers, target) == log_of(topics.bootstrap_servers, source)


def test_an_archive_follows_until_it_is_told_to_stop(jobs: Jobs, topics: Topics, tmp_path: Path) -> None:
    source, directory = topics.create(partitions=2), tmp_path / "archive"
    fill(topics, source, 0, 100)

    is_over = threading.Event()

    def end_it() -> None:
        while not is_over.wait(0.05):
            if Archive(directory).load().files:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    ending = threading.Thread(target=end_it)
    ending.start()
    try:
        followed = jobs("archive", "--topic", source, "--to", str(directory), "--follow")
    finally:
        is_over.set()
        ending.join()
    assert (followed["state"], followed["archived"]) == ("stopped", 100)
    fill(topics, source, 100, 150)
    assert jobs("archive", "--topic", source, "--to", str(directory))["archived"] == 50
    assert rows_of(directory) == all_rows(2, 150)


def test_a_topic_that_is_created_anew_while_it_is_archived_is_refused(
    jobs: Jobs, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps are allowed, so the source goes on with the new topic, whose first offsets the archive has already."""
    source, directory = topics.create(), tmp_path / "archive"
    fill(topics, source, 0, 50, partitions=1)
    monkeypatch.setattr(archive_job, "FOLLOW_INTERVAL", "300 milliseconds")
    is_over = threading.Event()

    def make_anew() -> None:
        while not is_over.wait(0.05):
            if Archive(directory).load().files:
                topics.admin.delete_topic(source)
                topics.create(source)
                fill(topics, source, 0, 80, partitions=1)
                if not is_over.wait(60):
                    os.kill(os.getpid(), signal.SIGTERM)  # else it would follow for ever
                return

    making = threading.Thread(target=make_anew)
    making.start()
    try:
        asked = ("archive", "--topic", source, "--to", str(directory), "--follow", "--allow-gaps")
        refused = jobs(*asked, code=3)
    finally:
        is_over.set()
        making.join()
    assert "was deleted and created again" in refused["stderr"] or f"topic {source} is gone" in refused["stderr"]
    assert rows_of(directory) == all_rows(1, 50)
    assert "was deleted and created again" in jobs(*asked, code=2)["stderr"]


# -- aggregate --------------------------------------------------------------------------

MINUTE_MS = 60_000


def purchases(first: int, last: int) -> list[dict[str, Any]]:
    """One every two seconds, some a little late."""
    return [
        {
            "user": {"country": ["de", "fr", None][n % 3]},
            "amount": n / 4,
            "at": FIRST_MS + n * 2000 - (n % 5) * 3000,
        }
        for n in range(first, last)
    ]


def expected(rows: list[dict[str, Any]], watermark_ms: int) -> dict[tuple[int, str | None], tuple[int, float]]:
    """(count, sum) by (start of the window, country), of windows of a minute that begin every half."""
    found: dict[tuple[int, str | None], tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for row in rows:
        last_start = row["at"] // (MINUTE_MS // 2) * (MINUTE_MS // 2)
        for start in (last_start, last_start - MINUTE_MS // 2):
            count, total = found[start, row["user"]["country"]]
            found[start, row["user"]["country"]] = (count + 1, total + row["amount"])
    closed = max(row["at"] for row in rows) - watermark_ms
    return {place: sums for place, sums in found.items() if place[0] + MINUTE_MS <= closed}


def test_windows_are_what_python_computes_and_bad_records_are_kept(
    jobs: Jobs, topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    source, results, letters = topics.create(partitions=2), topics.create(), topics.create()
    table = tmp_path / "table"
    bad: list[bytes | None] = [b"no json", b"[1]", None, b'{"amount": 1, "at": "soon"}', b'{"amount": "x", "at": 1}']

    def run(window: str = "1 minute", code: int = 0) -> dict[str, Any]:
        return jobs(
            *("aggregate", "--topic", source, "--window", window, "--slide", "30 seconds"),
            *("--watermark", "30 seconds", "--group-by", "user.country", "--count", "--sum", "amount"),
            *("--event-time", "at", "--to-topic", results, "--to-table", str(table), "--dead-letter", letters),
            code=code,
        )

    first, second = purchases(0, 150), purchases(150, 300)
    topics.fill(source, [(None, json.dumps(row).encode()) for row in first])
    topics.fill(source, [(b"k", value) for value in bad], headers=[("mine", b"1")])
    done = run()
    assert (done["bad_records"], done["rows"], done["lag"]) == (5, 155, 0)
    topics.fill(source, [(None, json.dumps(row).encode()) for row in second])
    assert run()["bad_records"] == 0
    other = run("2 minutes", code=2)["stderr"]
    assert f"topic {results} of cluster" in other
    assert 'its window is "1 minute", not "2 minutes"' in other

    wanted = expected(first + second, 30_000)
    assert len(wanted) > 20
    rows = spark.read.parquet(str(table)).collect()
    found = {
        (round(row.window_start.timestamp() * 1000), row.user_country): (row["count"], row.sum_amount) for row in rows
    }
    assert found == wanted
    assert len(rows) == len(found), "no window twice"
    records = log_of(topics.bootstrap_servers, results, 1)[0]
    told = [json.loads(value or b"") for _, value, _, _ in records]
    assert {(one["window_start"], one["user_country"]): one["sum_amount"] for one in told} == {
        (row.window_start.strftime("%Y-%m-%dT%H:%M:%S.000Z"), row.user_country): row.sum_amount for row in rows
    }
    assert {key for key, *_ in records} == {b"de", b"fr", None}
    dead = log_of(topics.bootstrap_servers, letters, 1)[0]
    assert sorted(map(repr, (value for _, value, _, _ in dead))) == sorted(map(repr, bad))
    why = {value: dict(headers)["error"] for _, value, headers, _ in dead}
    assert why[b"[1]"] == b"the value is not a JSON object"
    assert why[bad[3]] == b"field at is not a time"
    assert why[bad[4]] == b"field amount is not a number"
    for _, _, headers, _ in dead:
        assert headers[0] == ("mine", b"1")
        assert dict(headers)["source.topic"] == source.encode()


def test_results_for_a_topic_alone_are_delivered_exactly_once(
    jobs: Jobs, topics: Topics, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, results, letters = topics.create(), topics.create(), topics.create()
    before = sinks_of(CommandLine(monkeypatch, capsys), topics.bootstrap_servers)
    rows = purchases(0, 150)
    topics.fill(source, [(None, json.dumps(row).encode()) for row in rows])
    topics.fill(source, [(None, b"no json")])

    def run() -> dict[str, Any]:
        return jobs(
            *("aggregate", "--topic", source, "--window", "1 minute", "--slide", "30 seconds"),
            *("--watermark", "30 seconds", "--group-by", "user.country", "--count", "--sum", "amount"),
            *("--event-time", "at", "--to-topic", results, "--dead-letter", letters),
        )

    assert run()["bad_records"] == 1
    assert run()["rows"] == 0
    told = [json.loads(value or b"") for _, value, _, _ in log_of(topics.bootstrap_servers, results, 1)[0]]
    wanted = expected(rows, 30_000)
    assert len(told) == len(wanted)
    assert sorted(one["sum_amount"] for one in told) == sorted(total for _, total in wanted.values())
    assert len(log_of(topics.bootstrap_servers, letters, 1)[0]) == 1
    after = sinks_of(CommandLine(monkeypatch, capsys), topics.bootstrap_servers)
    new = [after[query_id] for query_id in after.keys() - before.keys()]
    assert len(new) == 2, "results and dead letters"
    assert all(one["transactions"] and not one["to_commit"] and not one["undecided"] for one in new)


# -- mirror -----------------------------------------------------------------------------


def sinks_of(command: CommandLine, servers: str) -> dict[str, dict[str, Any]]:
    """The queries that write exactly once and that the cluster knows, by query id."""
    found = json.loads(command("pipeline", "sinks", "--json", "--bootstrap-server", servers).out)
    return {one["query_id"]: one for one in found}


def test_topics_are_mirrored_from_one_cluster_to_another(
    jobs: Jobs, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second broker, which has nothing yet."""
    one, two = topics.create(partitions=3), topics.create(partitions=2)
    fill(topics, one, 0, 200, partitions=3)
    fill(topics, two, 0, 100)
    command = CommandLine(monkeypatch, capsys)
    with BrokerProcess(tmp_path) as other:
        between = ("--from", topics.bootstrap_servers, "--to", other.bootstrap_servers, "--rename", "eu.{topic}")

        def mirror(*names: str, code: int = 0) -> tuple[dict[str, Any], str]:
            ran = command("pipeline", "mirror", "--topic", ",".join(names), *between, "--json")
            assert ran.code == code, ran.err
            return json.loads(ran.out) if ran.out else {}, ran.err

        first, _ = mirror(two)
        assert (first["rows"], first["lag"], first["created"]) == (100, 0, [f"eu.{two}"])
        # One more topic, by another address: nothing is sent again.
        fill(topics, two, 100, 150)
        between = ("--from", topics.bootstrap_servers.replace("127.0.0.1", "localhost"), *between[2:])
        second, _ = mirror(one, two)
        assert (second["rows"], second["lag"], second["created"]) == (250, 0, [f"eu.{one}"])
        assert second["checkpoints"][two] == first["checkpoints"][two]
        for name, partitions in ((one, 3), (two, 2)):
            copy = log_of(other.bootstrap_servers, f"eu.{name}", partitions)
            assert copy == log_of(topics.bootstrap_servers, name, partitions)
            assert {part.lag for part in topics.admin.lag(second["groups"][name])} == {0}
        sinks = sinks_of(command, other.bootstrap_servers)
        ids = {
            json.loads(Path(at, "checkpoint", "metadata").read_text())["id"] for at in second["checkpoints"].values()
        }
        assert sinks.keys() == ids
        assert all(one["transactions"] and not one["to_commit"] and not one["undecided"] for one in sinks.values())

        # At least once, from the same checkpoint.
        fill(topics, two, 150, 160)
        between = (*between, "--delivery-guarantee", "at-least-once")
        assert mirror(two)[0]["rows"] == 10
        assert len(log_of(other.bootstrap_servers, f"eu.{two}", 2)[0]) == 80
        assert sinks_of(command, other.bootstrap_servers) == sinks

        # A record that the other side refuses: the query fails, and says why.
        strict = Topics(other.bootstrap_servers)
        large = topics.create()
        strict.create(f"eu.{large}", configs={"max.message.bytes": "1000"})
        strict.admin.close()
        topics.fill(large, [(None, b"x" * 5000)])
        said = mirror(large, code=3)[1]
        assert f"mirror of {large} failed" in said
        assert f"eu.{large}" in said
        assert "Spark's log: " in said
    refused = command("pipeline", "mirror", "--topic", one, *between[:2], "--to", topics.bootstrap_servers)
    assert refused.code == 2
    assert "mirrored into itself" in refused.err


def test_what_cannot_be_done_is_said_and_how_to_help(jobs: Jobs, topics: Topics, tmp_path: Path) -> None:
    source = topics.create(partitions=2)
    missing = jobs("archive", "--topic", "nowhere", "--to", str(tmp_path / "a"), code=2)["stderr"]
    assert "penstock topics create --name nowhere" in missing
    assert not (tmp_path / "a").exists()
    told = jobs("replay", "--from-topic", source, "--to", "nowhere", code=2)["stderr"]
    assert "penstock topics create --name nowhere --partitions 2" in told
    assert "into itself" in jobs("replay", "--from-topic", source, "--to", source, code=2)["stderr"]
    assert "is not an archive" in jobs("replay", "--from", str(tmp_path), "--to", source, code=2)["stderr"]
    asked = ("replay", "--from-topic", source, "--offsets", "7:1-2", "--to", topics.create(partitions=2))
    assert "--offsets has partition 7; the partitions are 0, 1" in jobs(*asked, code=2)["stderr"]
