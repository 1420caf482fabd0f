"""`penstock table`: what it prints, and the codes it ends with."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.tables.follow_metrics import metrics_page
from penstock.sdk import BlockingProducer
from penstock.tables import Table
from penstock.testing import Broker
from penstock.topic_tables import sampling
from penstock.topic_tables.progress import FollowProgress
from support.processes.command_line import CommandLine

PAGE = Path(__file__).resolve().parents[3] / "docs" / "observability.md"


@pytest.fixture
def filled(cli: CommandLine, penstock_broker: Broker, topic: str) -> str:
    """Ten objects, and two values that are none."""
    cli("topics", "create", "--name", topic, "--partitions", "2")
    with BlockingProducer(penstock_broker.bootstrap_servers) as producer:
        for number in range(12):
            value = f'{{"id": {number}, "name": "n{number}"}}' if number % 6 else "no json"
            producer.submit(topic, value, partition=number % 2)
    return topic


def follow(cli: CommandLine, topic: str, directory: Path, *options: str) -> list[str]:
    return cli("table", "follow", "--topic", topic, "--to", str(directory), "--once", *options).lines


def test_following_a_topic(cli: CommandLine, filled: str, tmp_path: Path) -> None:
    lines = follow(cli, filled, tmp_path / "t", "--partition-by", "date")
    begun = f"Following {filled} to {tmp_path}/t from version 0; group penstock-table-"
    assert any(begun in line for line in lines)
    done = re.fullmatch(r"Done: 12 records, .* in (\d+) commits?; the table is at version (\d+)", lines[-1])
    assert done is not None, lines
    commits, version = map(int, done.groups())
    assert version == commits + 1
    found = json.loads("\n".join(follow(cli, filled, tmp_path / "t", "--json")))
    assert {name: found[name] for name in ("state", "records", "lag", "version", "positions")} == {
        "state": "done",
        "records": 0,
        "lag": 0,
        "version": version,
        "positions": {"0": 6, "1": 6},
    }
    assert cli("lag", found["group"]).lines[-1] == f"Total lag of {found['group']}: 0"


def test_json_with_a_schema_of_its_values(cli: CommandLine, filled: str, tmp_path: Path) -> None:
    lines = follow(cli, filled, tmp_path, "--mode", "json")
    assert "Inferred the schema 'id long, name string'" in lines
    assert f"; 2 dead letters in {tmp_path}/_dead_letters; " in lines[-1]
    lines = cli("table", "show", str(tmp_path)).lines
    assert lines[0] == f"Table {tmp_path}: version 2, readable from 0"
    assert lines[1].startswith("10 rows in 1 file of ")
    assert f"2 dead letters in {tmp_path}/_dead_letters" in lines
    assert [line.split() for line in lines if line.startswith(("id", "name", "_"))] == [
        ["id", "long"],
        ["name", "string"],
        ["_partition", "int"],
        ["_offset", "long"],
        ["_timestamp", "timestamp"],
        ["_key", "binary"],
    ]
    assert [line.split() for line in lines[-2:]] == [[f"{filled},", "partition", str(one), "6"] for one in range(2)]
    told = json.loads("\n".join(cli("table", "show", str(tmp_path), "--json").lines))
    assert (told["topic"], told["mode"], told["rows"], told["dead_letters"]) == (filled, "json", 10, 2)


def test_dead_letters_to_a_topic(cli: CommandLine, filled: str, tmp_path: Path) -> None:
    name = f"{filled}-dead"
    cli("topics", "create", "--name", name)
    options = ["--mode", "json", "--schema", "id int", "--dead-letter-topic"]
    assert f"; 2 dead letters in topic {name}; " in follow(cli, filled, tmp_path / "t", *options, name)[-1]
    assert cli("consume", "--topic", name).lines == ["no json"] * 2
    for other, reason in (
        ("nowhere", "there is no topic nowhere: penstock topics create --name nowhere"),
        (filled, "is the topic itself: its dead letters would come back for ever"),
    ):
        ran = cli("table", "follow", "--topic", filled, "--to", str(tmp_path / "u"), "--once", *options, other)
        assert (ran.code, reason in ran.err, ran.err.count("\n")) == (2, True, 1)


def test_queries(cli: CommandLine, filled: str, tmp_path: Path) -> None:
    follow(cli, filled, tmp_path, "--mode", "json")
    lines = cli("table", "query", str(tmp_path), "select count(*) as n, max(id) as most from t").lines
    assert [line.split() for line in lines] == [["n", "most"], ["10", "11"]]
    text = 'select value, reason from dead_letters order by "offset" limit 1'
    (row,) = json.loads("\n".join(cli("table", "query", str(tmp_path), text, "--json").lines))
    assert row == {"value": "no json", "reason": "JSON is malformed: invalid character (byte 4)"}
    assert cli("table", "query", str(tmp_path), "select count(*) as n from t", "--version", "1").lines[1].strip() == "0"
    wrong = cli("table", "query", str(tmp_path), "select nothing from t")
    assert (wrong.code, wrong.out) == (2, "")
    assert 'Referenced column "nothing" not found' in wrong.err
    assert wrong.err.count("\n") == 1


def test_queries_with_the_live_tail(cli: CommandLine, filled: str, penstock_broker: Broker, tmp_path: Path) -> None:
    options = ["--mode", "json", "--schema", "id int, name string"]
    follow(cli, filled, tmp_path / "all", *options)
    follow(cli, filled, tmp_path / "newest", *options, "--key", "id", "--key", "name")
    with BlockingProducer(penstock_broker.bootstrap_servers) as producer:
        for number in (7, 100):
            producer.submit(filled, f'{{"id": {number}, "name": "n{number}"}}', partition=1)
    text = "select count(*) as n, max(id) as most, count(distinct id) as d, count(*) filter (id = 7) as sevens from t"
    cases = (("all", True, "12 100 11 2"), ("newest", True, "11 100 11 1"), ("all", False, "10 11 10 1"))
    for name, live, wanted in cases:
        lines = cli("table", "query", str(tmp_path / name), text, *(["--live"] if live else [])).lines
        assert lines[1].split() == wanted.split()
    assert "The newest row of each id, name" in cli("table", "show", str(tmp_path / "newest")).lines
    assert not any("newest row" in line for line in cli("table", "show", str(tmp_path / "all")).lines)
    both = cli("table", "query", str(tmp_path / "all"), "select 1", "--live", "--version", "1")
    assert (both.code, "--live reads the newest version" in both.err) == (2, True)


def test_looking_after_a_table(cli: CommandLine, filled: str, penstock_broker: Broker, tmp_path: Path) -> None:
    follow(cli, filled, tmp_path)
    for number in range(3):
        with BlockingProducer(penstock_broker.bootstrap_servers) as producer:
            producer.submit(filled, str(number), partition=0)
        follow(cli, filled, tmp_path)
    lines = cli("table", "history", str(tmp_path), "--limit", "2").lines
    assert [line.split()[0] for line in lines] == ["VERSION", "5", "4"]
    told = json.loads("\n".join(cli("table", "history", str(tmp_path), "--json").lines))
    assert [list(entry["positions"].values()) for entry in told][:2] == [[[8, 9]], [[7, 8]]]
    assert cli("table", "compact", str(tmp_path)).lines == ["Merged 4 files into 1; the table has 1 file now."]
    found = cli("table", "expire", str(tmp_path), "--older-than", "0ms").lines[0]
    assert found.startswith("Deleted 4 files of ")
    assert found.endswith("version 6 is the oldest to be read.")
    assert cli("table", "query", str(tmp_path), "select count(*) from t").lines[1].strip() == "15"


def test_wrong_arguments(cli: CommandLine, filled: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    at = ["table", "follow", "--topic", filled, "--once", "--to"]
    for arguments, reason in (
        (["table", "show", str(tmp_path / "none")], f"there is no table in {tmp_path}/none"),
        (["table", "show", str(tmp_path)], "is a directory with other files, and not a table"),
        (["table", "compact", str(tmp_path / "file")], "is not a directory"),
        ([*at, "s3://bucket/t"], "tables need hard links"),
        ([*at, str(tmp_path)], "is a directory with other files"),
        ([*at, str(tmp_path / "a"), "--mode", "json", "--schema", "id lng"], "'lng' where a type"),
        ([*at, str(tmp_path / "b"), "--from", "yesterday"], "'yesterday' is neither earliest nor latest"),
        ([*at, str(tmp_path / "c"), "--from", "0:1,0:2"], "names a partition twice"),
        ([*at, str(tmp_path / "d"), "--from", "0:7"], "--from has offset 7 of partition 0, whose log has 0 to 6"),
        ([*at, str(tmp_path / "e"), "--from", "2:0"], "--from names partition 2: the topic has 0 to 1"),
        ([*at, str(tmp_path / "f"), "--partition-by", "name"], "cannot partition by 'name'"),
    ):
        ran = cli(*arguments)
        assert reason in ran.err, arguments
        assert ran.code in (1, 2), arguments
        assert ran.out.count("Done") == 0
    missing = cli("table", "follow", "--topic", "nowhere", "--to", str(tmp_path / "g"), "--once")
    assert (missing.code, "`penstock topics list` shows all topics" in missing.err) == (1, True)


def test_offsets_and_an_empty_topic(cli: CommandLine, filled: str, tmp_path: Path) -> None:
    follow(cli, filled, tmp_path / "t", "--from", "0:4,1:6")
    assert cli("table", "query", str(tmp_path / "t"), "select count(*) from t").lines[1].strip() == "2"
    lines = follow(cli, filled, tmp_path / "t", "--from", "latest")
    assert "The table continues where it ended: --from latest counts for a new table only" in lines
    ran = cli(
        "table",
        "follow",
        "--topic",
        filled,
        "--to",
        str(tmp_path / "u"),
        "--once",
        "--mode",
        "json",
        "--from",
        "latest",
    )
    assert (ran.code, "has no records there to infer a schema from" in ran.err) == (2, True)


def test_records_that_a_schema_is_inferred_from_are_rows(
    cli: CommandLine, filled: str, penstock_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come after `latest` was looked up for the sample."""
    sample_values = sampling.sample_values

    def sample(cluster: Any, topic: Any, start: Any, stop: Any, *, waits: bool) -> Any:
        def then_send(reader: Any, partitions: range) -> Any:
            found = start(reader, partitions)
            with BlockingProducer(penstock_broker.bootstrap_servers) as producer:
                for number in range(3):
                    producer.submit(filled, f'{{"id": {number}}}')
            return found

        return sample_values(cluster, topic, then_send, stop, waits=waits)

    monkeypatch.setattr(sampling, "sample_values", sample)
    follow(cli, filled, tmp_path, "--mode", "json", "--from", "latest")
    assert Table.open(tmp_path).rows == 3


def test_versions_may_be_kept_for_ever(cli: CommandLine, filled: str, tmp_path: Path) -> None:
    follow(cli, filled, tmp_path, "--keep", "9999999999d")
    assert cli("table", "expire", str(tmp_path), "--older-than", "9999999999d").lines[0].startswith("Deleted 0 files")


def test_metrics_are_what_prometheus_reads() -> None:
    progress = FollowProgress("clicks", "/data/clicks", records=5, version=3, positions={0: 4, 1: 1}, ends={0: 9, 1: 1})
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics_page(progress))
        for sample in family.samples
    }
    assert found["penstock_table_records_total", "clicks"] == 5
    assert found["penstock_table_version", "clicks"] == 3
    assert found["penstock_table_lag", "clicks", "0"] == 5
    assert found["penstock_table_lag", "clicks", "1"] == 0
    assert found["penstock_table_position", "clicks", "0"] == 4


def test_the_page_names_every_metric() -> None:
    (section,) = re.findall(r"^### Of a followed topic$(.*?)^##", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    progress = FollowProgress("clicks", "/data/clicks", positions={0: 4}, ends={0: 9})
    shown = re.findall(r"^# TYPE (\w+) ", metrics_page(progress), re.MULTILINE)
    assert re.findall(r"`(penstock_\w+)`", section) == shown


def test_it_runs_until_it_is_stopped_and_serves_metrics(
    cli: CommandLine, filled: str, penstock_broker: Broker, tmp_path: Path
) -> None:
    arguments = ["table", "follow", "--topic", filled, "--to", str(tmp_path), "--commit-interval", "50ms"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "penstock.cli", *arguments, "--metrics", str(port)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = next(line.split()[-1] for line in process.stdout if line.startswith("Metrics are at "))
    deadline = time.monotonic() + 60
    while f'penstock_table_records_total{{topic="{filled}"}} 12' not in _page(address):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert f'penstock_table_lag{{topic="{filled}",partition="0"}} 0' in _page(address)
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()
    assert process.wait(60) == 0
    assert "Stopping after a last commit" in rest
    assert "Stopped: 12 records" in rest


def _page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())
