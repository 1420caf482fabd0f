"""Parts that jobs share, and mistakes that they refuse before Spark is started."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from penstock.cli.pipeline.job_command import LocalDirectory, Speed, parse_offsets, topics_of
from penstock.model.errors import ConfigError
from penstock.model.topic_partition import TopicPartition
from penstock.spark.jobs import clusters
from penstock.spark.jobs.aggregate import AggregateJob, ResultTable
from penstock.spark.jobs.aggregate_plan import AggregatePlan
from penstock.spark.jobs.clusters import Brokers
from penstock.spark.jobs.errors import JobError, WrongJob
from penstock.spark.jobs.mirror import MirrorJob
from penstock.spark.jobs.places import JobPlace
from penstock.spark.jobs.replay_sources import OffsetRange
from penstock.spark.jobs.running import Stop, reason_of, stopped_by_signals, topic_offset_of
from penstock.spark.source.offsets import SourceOffset
from penstock.wire.apis import Api
from penstock.wire.messages.metadata import MetadataResponse
from support.scripted.broker import ScriptedBroker

# -- arguments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0:100-200,1:50-", {0: OffsetRange(100, 200), 1: OffsetRange(50, None)}),
        ("3:-7", {3: OffsetRange(None, 7)}),
        ("0, 1", {0: OffsetRange(), 1: OffsetRange()}),
    ],
)
def test_offsets(text: str, found: dict[int, OffsetRange]) -> None:
    assert parse_offsets(text) == found


@pytest.mark.parametrize("text", ["", "x", "0:", "0:5", "0:-", "0:a-b", "0:1-2,0:3-4", "0:1-2-3", "-1:1-2", "0:5-2"])
def test_offsets_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--offsets"):
        parse_offsets(text)


@pytest.mark.parametrize(
    ("text", "speed"), [("1x", 1.0), ("10X", 10.0), ("0.5x", 0.5), ("3", 3.0), ("max", float("inf"))]
)
def test_speeds(text: str, speed: float) -> None:
    assert Speed().convert(text, None, None) == speed


@pytest.mark.parametrize("text", ["", "x", "-1x", "0x", "nan", "fast"])
def test_speeds_that_are_none(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a speed"):
        Speed().convert(text, None, None)


def test_topics_are_repeated_or_separated_by_commas() -> None:
    assert topics_of(("a,b", "c", " a ")) == ("a", "b", "c")
    with pytest.raises(ConfigError, match="--topic"):
        topics_of((" , ",))


def test_directories_are_those_of_a_file_system(tmp_path: Path) -> None:
    assert LocalDirectory().convert(f"file://{tmp_path}", None, None) == tmp_path
    with pytest.raises(click.BadParameter, match="not a directory of a file system"):
        LocalDirectory().convert("s3://bucket/x", None, None)
    with pytest.raises(click.BadParameter, match="is empty"):
        LocalDirectory().convert("", None, None)
    (tmp_path / "file").touch()
    with pytest.raises(click.BadParameter, match="is a file"):
        LocalDirectory().convert(str(tmp_path / "file"), None, None)


def test_a_file_of_client_settings_serves_readers_and_writers() -> None:
    settings = {"security.protocol": "SSL", "isolation.level": "read_committed", "acks": "all", "linger.ms": "5"}
    brokers = Brokers("a:1", settings)
    shared = {"kafka.bootstrap.servers": "a:1", "kafka.security.protocol": "SSL"}
    assert brokers.options == shared
    assert brokers.source_options == {**shared, "kafka.isolation.level": "read_committed"}
    assert brokers.sink_options == {**shared, "kafka.acks": "all", "kafka.linger.ms": "5"}
    with pytest.raises(WrongJob, match=r"client setting linger\.sm is not known"):
        Brokers("a:1", {"linger.sm": "5"})


# -- places -----------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "penstock" / "jobs"


def test_a_job_finds_its_place_again_by_what_it_does(state: Path) -> None:
    place = JobPlace.of("mirror", {"topic": "a", "to": "x"}, ("topic a",))
    assert place.directory.parent == state
    assert place == JobPlace.of("mirror", {"to": "x", "topic": "a"}, ("topic a",))
    assert place.directory != JobPlace.of("mirror", {"topic": "b", "to": "x"}, ("topic b",)).directory
    assert place.group.startswith("penstock-mirror-")
    place.make()
    place.make()
    said = json.loads((place.directory / "job.json").read_text())
    assert said == {"kind": "mirror", "topic": "a", "to": "x", "targets": ["topic a"]}


def test_a_checkpoint_of_another_job_is_refused(tmp_path: Path) -> None:
    JobPlace.of("mirror", {"to": "x:1"}, (), tmp_path).make()
    with pytest.raises(JobError, match="checkpoint of another job"):
        JobPlace.of("mirror", {"to": "y:1"}, (), tmp_path).make()


def test_a_job_that_would_begin_anew_where_another_writes_is_refused(state: Path, tmp_path: Path) -> None:
    plan = AggregatePlan("1 minute")
    one = AggregateJob(Brokers("a:1"), ("clicks",), plan, to_topic="counts", dead_letters="bad")
    one.place("id").make()
    two = replace(one, topics=("clicks", "views"))
    two.place("id").make()  # the first has not begun, so nothing is sent twice
    (one.place("id").checkpoint / "offsets").mkdir(parents=True)
    shutil.rmtree(two.place("id").directory)
    with pytest.raises(WrongJob) as refused:
        two.place("id").make()
    said = str(refused.value)
    assert said.startswith("topic counts of cluster id is written by another aggregate job: its topics is")
    assert '["clicks"], not ["clicks", "views"]' in said
    assert f"delete {one.place('id').directory}" in said
    assert "--checkpoint DIR" in said
    one.place("id").make()
    replace(two, to_topic="others").place("id").make()  # dead letters may come from many
    replace(two, checkpoint=tmp_path / "mine").place("id").make()
    (state / "aggregate-x").mkdir()
    (state / "aggregate-x" / "job.json").write_text("{")
    replace(one, to_topic=None, to_table=tmp_path / "table").place("id").make()


def test_a_mirror_of_more_topics_goes_on_with_those_it_had(state: Path) -> None:
    def places(servers: str, *topics: str, **others: Any) -> dict[str, JobPlace]:
        return MirrorJob(Brokers(servers), Brokers("z:1"), topics, **others).places("here", "there")

    alone = places("a:1", "clicks")
    assert places("A:1,b:1", "views", "clicks")["clicks"] == alone["clicks"]
    both = places("a:1", "clicks", "views")
    assert len({place.directory for place in both.values()} | {place.group for place in both.values()}) == 4
    renamed = places("a:1", "clicks", rename="eu.{topic}")
    assert renamed["clicks"].directory != alone["clicks"].directory
    assert renamed["clicks"].targets == ("topic eu.clicks of cluster there",)
    chosen = places("a:1", "clicks", "views", checkpoint=state / "mine")
    assert [place.directory for place in chosen.values()] == [state / "mine" / "clicks", state / "mine" / "views"]


def test_a_cluster_is_known_by_its_id_whatever_its_address() -> None:
    answer = MetadataResponse(cluster_id="the-cluster", controller_id=1)
    with ScriptedBroker() as gone:
        pass
    with ScriptedBroker({Api.METADATA: lambda request: answer}) as broker:
        for servers in (f"127.0.0.1:{broker.port}", f"localhost:{gone.port}, localhost:{broker.port}"):
            assert Brokers(servers).cluster_id() == "the-cluster"
    with pytest.raises(JobError, match=f"no broker answers at localhost:{gone.port}"):
        Brokers(f"localhost:{gone.port}").cluster_id()


def test_a_cluster_without_an_id_is_known_by_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_ask_any", lambda *_: MetadataResponse(cluster_id=None))
    assert Brokers("B:2,a:1").cluster_id() == Brokers(" a:1, b:2").cluster_id() == "a:1,b:2"


def test_a_job_runs_once_at_a_time(tmp_path: Path) -> None:
    place = JobPlace.of("mirror", {}, (), tmp_path)
    with place.lock(), pytest.raises(JobError, match=f"in use by process {os.getpid()}"), place.lock():
        pass
    with place.lock():
        pass


# -- running ----------------------------------------------------------------------------


def test_signals_ask_to_stop_and_then_urgently() -> None:
    stop = Stop()
    said: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with stopped_by_signals(stop, said.append):
        assert not stop.wait(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
        assert not stop.is_urgent
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_urgent
    assert said == ["Stopping after the current batch. Interrupt again to stop at once.", "Stopping at once."]
    assert signal.getsignal(signal.SIGTERM) == before


def test_reasons_of_failures_are_sentences() -> None:
    java = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An "
        "error occurred in the user provided function in foreach batch sink.\nTraceback (most recent call last):\n"
        "py4j.protocol.Py4JJavaError: An error occurred while calling o490.isEmpty.\n: org.apache.spark.SparkException"
        ": Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times, most recent failure: Lost task 0.3 in "
        "stage 2.0 (TID 10) (localhost executor driver): java.lang.IllegalStateException: the disk is full\n\tat x.y"
    )
    assert reason_of(java) == "the disk is full"
    python = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\nValueError: no\n"
    )
    assert reason_of(python) == "ValueError: no"


def test_offsets_are_those_of_topics() -> None:
    offset = SourceOffset("g", {"clicks": bytes(range(16))}, {TopicPartition("clicks", 0): 7})
    assert topic_offset_of(offset.to_json()) == topic_offset_of(json.dumps(offset.to_json())) == offset
    assert topic_offset_of({"seqNum": 1}) is topic_offset_of(None) is None


# -- what can never run -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (AggregatePlan("a while"), "--window is 'a while': write a number and a unit"),
        (AggregatePlan("0 minutes"), "--window is"),
        (AggregatePlan("1 minute", slide="2 minutes"), "write at most 1 minute"),
        (AggregatePlan("1 minute", watermark="late"), "--watermark is 'late'"),
        (AggregatePlan("1 minute", has_count=False), "give --count, --sum FIELD or both"),
        (AggregatePlan("1 minute", group_by=("a..b",)), "--group-by has 'a..b'"),
        (AggregatePlan("1 minute", sums=("x'y",)), "--sum has"),
        (AggregatePlan("1 minute", event_time="$.t[0]"), "--event-time has"),
        (AggregatePlan("1 minute", group_by=("a.b", "a_b")), "would be named a_b"),
        (AggregatePlan("1 minute", group_by=("count",)), "would be named count"),
    ],
)
def test_plans_that_are_refused(plan: AggregatePlan, said: str) -> None:
    with pytest.raises(WrongJob, match=said.replace("$", r"\$").replace("[", r"\[")):
        plan.check()


def test_columns_of_results() -> None:
    plan = AggregatePlan("1 hour", "10 minutes", "0 seconds", ("user.country", "page"), ("amount", "a.b"))
    plan.check()
    assert plan.columns == [
        *("window_start", "window_end", "user_country", "page", "count", "sum_amount", "sum_a_b"),
    ]


@pytest.mark.parametrize("rename", ["copy", "{topic}.{topic}", "{name}"])
def test_a_rename_names_the_topic_once(rename: str) -> None:
    with pytest.raises(WrongJob, match=r"write \{topic\} in it once"):
        MirrorJob(Brokers("a:1"), Brokers("b:1"), ("t",), rename).prepare()


def test_a_table_belongs_to_one_checkpoint(tmp_path: Path) -> None:
    one, two = (JobPlace.of("aggregate", {"n": n}, (), tmp_path / f"state-{n}") for n in (1, 2))
    one.make()
    two.make()
    ResultTable(tmp_path / "table", one).claim()
    ResultTable(tmp_path / "table", one).claim()
    with pytest.raises(WrongJob, match="other arguments or another checkpoint"):
        ResultTable(tmp_path / "table", two).claim()
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "x.parquet").touch()
    with pytest.raises(WrongJob, match="other Parquet files"):
        ResultTable(tmp_path / "others", two).claim()
