"""`penstock table follow --config`: several topics, of which one may fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.reach.connection import Target
from penstock.cli.tables import follow_all as follow_all_module
from penstock.cli.tables.follow import section
from penstock.cli.tables.follow_all import FollowedSection, follow_all, read_sections
from penstock.cli.tables.follow_metrics import metrics_page
from penstock.cli.tables.follow_output import Output
from penstock.cli.tables.follow_topic import FollowRun
from penstock.model.errors import ConfigError
from penstock.sdk import BlockingProducer
from penstock.tables import Table
from penstock.testing import Broker
from penstock.topic_tables.progress import FollowProgress
from support.processes.command_line import CommandLine


def test_sections_are_options(tmp_path: Path) -> None:
    path = tmp_path / "tables.toml"
    path.write_text(
        """
        commit-interval = "10s"
        [clicks]
        to = "/data/clicks"
        partition_by = ["date"]
        from = "0:5"
        ["a.b"]
        to = "/data/a"
        mode = "json"
        schema = "id long"
        key = ["id", "_key"]
        evolve = true
        allow-gaps = false
        commit-interval = 500
        """
    )
    clicks, other = read_sections(path, section)
    assert (clicks.topic, clicks.directory, clicks.partition_by) == ("clicks", Path("/data/clicks"), ("date",))
    assert (clicks.commit_interval, clicks.keep_ms, clicks.start and clicks.start.offsets) == (
        10_000,
        86_400_000,
        {0: 5},
    )
    assert (other.topic, other.mode, other.schema_text, other.key) == ("a.b", "json", "id long", ("id", "_key"))
    assert (other.evolve, other.allow_gaps, other.commit_interval) == (True, False, 500)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[a", "is not TOML: "),
        ("", "has 0 sections: write one a topic, at most 100"),
        ("[a]", r"section [a]: to = "),
        ("[a]\nto = 'x'\nspeed = 3", "section [a]: No such option '--speed'"),
        ("[a]\nto = 'x'\nspeed = false", "section [a]: No such option '--speed'"),
        ("[a]\nto = 'x'\nhelp = true", "section [a]: No such option '--help'"),
        ("[a]\nto = 'x'\nmode = false", "section [a]: mode is false: write a text"),
        ("[a]\nto = 'x'\nmode = 'json'\nschema = 'id lng'", "section [a]: schema: "),
        ("[a]\nto = 'x'\nmode = 'xml'", "section [a]: Invalid value for '--mode': 'xml' is not one of"),
        ("[a]\nto = 's3://x'", "tables need hard links"),
        ("[a]\nto = 'x'\nkeep = 'long'", "'long' is not a duration"),
        ("[a]\nto = 'x'\ntopic = 'b'", "section [a]: the name of the section is the topic"),
        ("[a]\nto = 'x'\nkey = [1]", "section [a]: key is [1]: write a text, true, or a list of texts"),
        ("[a]\nto = 'x'\n[b]\nto = 'y/../x'", "has x as the table of several topics"),
        ("[a]\nto = 'x'\n[b]\nto = './x'", "has x as the table of several topics"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "tables.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(reason)):
        read_sections(path, section)


@pytest.fixture
def sections(cli: CommandLine, penstock_broker: Broker, topic: str, tmp_path: Path) -> Path:
    """Of two topics with ten records each, the second one JSON."""
    names = (topic, f"{topic}-more")
    with BlockingProducer(penstock_broker.bootstrap_servers) as producer:
        for name in names:
            assert cli("topics", "create", "--name", name).code == 0
            for number in range(10):
                producer.submit(name, f'{{"id": {number % 5}}}', key=f"{number % 5}")
    path = tmp_path / "tables.toml"
    path.write_text(
        f"""
        [{names[0]}]
        to = "{tmp_path}/{names[0]}"
        [{names[1]}]
        to = "{tmp_path}/{names[1]}"
        mode = "json"
        schema = "id int"
        key = "id"
        """
    )
    return path


def test_all_topics_of_a_file(cli: CommandLine, sections: Path, topic: str, tmp_path: Path) -> None:
    lines = cli("table", "follow", "--config", str(sections), "--once").lines
    for name in (topic, f"{topic}-more"):
        assert any(line.startswith(f"{name}: Following {name} to {tmp_path}/{name} from version 0") for line in lines)
        assert any(line.startswith(f"{name}: Done: 10 records, ") for line in lines)
    assert [Table.open(tmp_path / name).rows for name in (topic, f"{topic}-more")] == [10, 5]
    told = json.loads("\n".join(cli("table", "follow", "--config", str(sections), "--once", "--json").lines))
    assert (told["state"], [one["topic"] for one in told["topics"]]) == ("done", [topic, f"{topic}-more"])
    with sections.open("a") as file:
        file.write(f"[nowhere]\nto = '{tmp_path}/nowhere'\n")
    ran = cli("table", "follow", "--config", str(sections), "--once")
    assert (ran.code, "1 of 3 topics failed: nowhere" in ran.err, ran.out.count("Done: 0 records")) == (1, True, 2)
    for options, reason in (
        (["--config", str(sections), "--topic", topic], "--topic belongs into the sections of"),
        (["--config", str(sections), "--mode", "raw"], "--mode belongs into the sections of"),
        (["--config", str(tmp_path / "none")], "--config: cannot read"),
        (["--to", str(tmp_path / "x")], "--topic is missing: --topic and --to, or --config for several topics"),
    ):
        ran = cli("table", "follow", *options)
        assert (ran.code, reason in ran.err) == (2, True), ran.err


@contextmanager
def following(servers: str, path: Path) -> Iterator[tuple[list[FollowProgress], threading.Event, list[BaseException]]]:
    settings = read_sections(path, section)
    progress = [FollowProgress(one.topic, str(one.directory)) for one in settings]
    running = FollowRun(Target(servers, "test"), threading.Event(), once=False, topics=len(settings))
    topics = [FollowedSection(one, so_far, Output(True)) for one, so_far in zip(settings, progress, strict=True)]
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            follow_all(running, topics)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield progress, running.stop, failures
    finally:
        running.stop.set()
        thread.join(60)
        assert not thread.is_alive()


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_one_that_fails_is_followed_again(
    cli: CommandLine,
    sections: Path,
    topic: str,
    penstock_broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow_all_module, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(follow_all_module, "LAST_PAUSE_S", 0.2)
    sections.write_text(f"commit-interval = '20ms'\n{sections.read_text()}\n[{topic}-late]\nto = '{tmp_path}/late'\n")
    with following(penstock_broker.bootstrap_servers, sections) as (progress, _, failures):
        until(lambda: progress[2].restarts >= 2 and progress[0].records == progress[1].records == 10)
        assert [one.is_running for one in progress] == [True, True, False]
        assert f'penstock_table_running{{topic="{topic}-late"}} 0' in metrics_page(*progress)
        assert cli("topics", "create", "--name", f"{topic}-late").code == 0
        with BlockingProducer(penstock_broker.bootstrap_servers) as producer:
            producer.send(f"{topic}-late", "1")
        until(lambda: progress[2].records == 1 and progress[2].is_running)
        # Another process gets in between: this one fails, and goes on where the table is.
        stream, at = next(iter(Table.open(tmp_path / "late").positions.items()))
        restarts = progress[2].restarts
        _move(tmp_path / "late", stream, at)
        with BlockingProducer(penstock_broker.bootstrap_servers) as producer:
            producer.submit(f"{topic}-late", "2")
            producer.submit(f"{topic}-late", "3")
        until(lambda: progress[2].restarts > restarts and progress[2].is_running and progress[2].lag == 0)
    assert not failures
    page = metrics_page(*progress)
    assert page.count("# TYPE penstock_table_records_total") == 1
    assert f'penstock_table_records_total{{topic="{topic}-more"}} 10' in page


def _move(directory: Path, stream: str, at: int) -> None:
    from penstock.tables import Span

    Table.open(directory).append([], {stream: Span(at, at + 1)})


def test_a_signal_stops_them_all(sections: Path, penstock_broker: Broker) -> None:
    command = [sys.executable, "-u", "-m", "penstock.cli", "table", "follow", "--config", str(sections)]
    process = subprocess.Popen(
        [*command, "--bootstrap-server", penstock_broker.bootstrap_servers],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    begun = 0
    for line in process.stdout:
        begun += ": Following " in line
        if begun == 2:
            break
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()
    assert process.wait(60) == 0
    assert rest.count(": Stopped: ") == 2


def test_a_bug_ends_them_all(
    sections: Path, penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    plain = follow_all_module.follow_topic

    def broken(running: Any, settings: Any, *rest: Any) -> str:
        if settings.topic != topic:
            raise ValueError("a bug")
        return plain(running, settings, *rest)

    monkeypatch.setattr(follow_all_module, "follow_topic", broken)
    with following(penstock_broker.bootstrap_servers, sections) as (_, stop, failures):
        until(lambda: bool(failures))
        assert stop.is_set()
    assert isinstance(failures[0], ValueError)
