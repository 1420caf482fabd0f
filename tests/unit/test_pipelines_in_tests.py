"""The fixture `penstock_pipeline` as far as it needs no Spark: topics, rows, and calls to the process with Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from penstock.sdk import NewRecord
from penstock.spark.tested import WarmSpark, answer
from penstock.testing import Broker
from penstock.testing.pipelines import PipelineFailed, SparkProcess, TestedPipeline


class Spark(SparkProcess):
    """Answers as a project with two topics, whose run does nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    def call(self, name: str, *arguments: object) -> Any:
        self.calls.append((name, arguments))
        flow = {"state": "completed", "rows_read": 3, "rows_written": 2, "violations": {"a": 1}}
        return {"open": ["in", "out"], "run": {"events": flow}, "table": [{"user": "ada"}]}[name]


@pytest.fixture
def spark() -> Spark:
    return Spark()


@pytest.fixture
def pipeline(spark: Spark) -> Iterator[TestedPipeline]:
    with Broker() as broker:
        yield TestedPipeline(spark, broker.bootstrap_servers, Path("project"), {"a": "b"}, partitions=2)


def test_rows_become_records(pipeline: TestedPipeline, spark: Spark) -> None:
    pipeline.produce("in", [NewRecord(None, partition=0), NewRecord("5", key="k", headers=[("h", b"1")], partition=1)])
    pipeline.produce("out", [NewRecord(value, partition=0) for value in ('{"a": [1]}', "[2]", "text", "{no", b"", "7")])
    assert pipeline.topic("in") == [None, b"5"]
    assert pipeline.topic("out") == [{"a": [1]}, [2], b"text", b"{no", b"", b"7"]
    (_, last) = pipeline.records("in")
    assert (last.partition, last.key, last.headers) == (1, b"k", (("h", b"1"),))
    assert spark.calls == [("open", ("project", pipeline.bootstrap_servers, {"a": "b"}))]


def test_values_are_sent_as_they_are_or_as_json(pipeline: TestedPipeline) -> None:
    pipeline.produce("in", [{"user": "ada"}, [1], "text", b"\xff", None])
    sent = pipeline.records("in")
    assert sorted(record.value or b"" for record in sent) == [b"", b"[1]", b"text", b'{"user": "ada"}', b"\xff"]
    with pytest.raises(PipelineFailed, match=r"the row \{'a': \{1\}\} is no JSON .*: give its bytes"):
        pipeline.produce("in", [{"a": {1}}])


def test_results_of_a_run(pipeline: TestedPipeline) -> None:
    flow = pipeline.run()["events"]
    assert (flow.state, flow.rows_read, flow.rows_written, flow.violations) == ("completed", 3, 2, {"a": 1})
    assert pipeline.table("events") == [{"user": "ada"}]


def test_topics_are_those_of_the_project_and_others_that_are_made(pipeline: TestedPipeline) -> None:
    for ask in (pipeline.topic, lambda name: pipeline.produce(name, [])):
        with pytest.raises(PipelineFailed, match=r"the project names no topic ni \(it names: in, out\): create_topic"):
            ask("ni")
    pipeline.create_topic("more")
    assert pipeline.topic("more") == []


def test_calls_and_errors_cross_the_connection(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    thread = Thread(target=answer, args=(theirs, WarmSpark(tmp_path)))
    thread.start()
    ours.send(("open", (str(tmp_path), "127.0.0.1:1", {})))
    succeeded, told = ours.recv()
    assert (succeeded, told.startswith(f"there is no spark-pipeline.yml in {tmp_path}")) == (False, True)
    ours.close()
    thread.join(10)
    assert not thread.is_alive()


def test_without_spark_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("penstock.testing.pipelines.find_spec", lambda name: None)
    with pytest.raises(PipelineFailed, match=r"pyspark is not installed: pip install 'penstock\[spark\]'"):
        SparkProcess(tmp_path / "w").call("run")


def test_a_process_that_ends_is_said_so(tmp_path: Path) -> None:
    spark = SparkProcess(tmp_path / "w")
    with pytest.raises(PipelineFailed, match=r"^the process with Spark has ended: .*output\.log and .*spark\.log say"):
        spark.call("run")  # nothing is open, which is a bug of the caller
    spark.close()


def test_a_test_has_one_pipeline(
    penstock_pipeline: Callable[..., TestedPipeline], monkeypatch: pytest.MonkeyPatch, spark: Spark
) -> None:
    monkeypatch.setattr(SparkProcess, "call", lambda _, *call: spark.call(*cast(Any, call)))
    assert penstock_pipeline("a").topics == ("in", "out")
    with pytest.raises(PipelineFailed, match="a test has one pipeline"):
        penstock_pipeline("b")


def test_the_plugin_does_not_import_spark() -> None:
    code = (
        "import sys, penstock.testing.plugin; print(sorted({'pyspark', 'pyarrow', 'penstock.spark'} & {*sys.modules}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
