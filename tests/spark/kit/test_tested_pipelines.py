"""The pytest fixture `penstock_pipeline`: projects in tests, with one Spark for all of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.sdk import NewRecord
from penstock.spark.pipeline.templates.template import ProjectPlan, create_project
from penstock.testing.pipelines import PipelineFailed, SparkProcess

NOWHERE = "127.0.0.1:1"
CLICK = {"user": "ada", "page": "/", "ts": "2026-03-01T12:00:00Z", "ms": 1}

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("projects")
    create_project(directory, ProjectPlan.make("my-shop", ("clicks",), None, None, NOWHERE))
    return directory / "my-shop"


@pytest.fixture(scope="module")
def written(root: Path) -> ModuleType:
    """The tests that `penstock pipeline init` writes."""
    (file,) = (root / "tests").iterdir()
    assert file.name == "test_my_shop.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_first_test_of_a_new_project_passes(written: ModuleType, root: Path, penstock_pipeline: Open) -> None:
    before = sorted(root.rglob("*"))
    written.test_good_clicks_and_bad_ones(penstock_pipeline)
    assert sorted(root.rglob("*")) == before, "nothing is written into the project"


def test_its_second_test_has_an_empty_pipeline_in_the_same_spark(
    written: ModuleType, penstock_pipeline: Open, penstock_spark_process: SparkProcess
) -> None:
    before = penstock_spark_process.pid
    written.test_views_of_a_page(penstock_pipeline)
    assert penstock_spark_process.pid == before is not None


def test_runs_of_one_test_continue(root: Path, penstock_pipeline: Open) -> None:
    pipeline = penstock_pipeline(root, settings={"penstock.source.topics": "clicks,taps"}, partitions=2)
    assert pipeline.topics == ("clicks", "taps", "clicks-clean", "clicks-dead-letters")
    pipeline.produce("taps", [NewRecord('{"user":"eve"', key="k", headers=[("h", b"1")], partition=1), None])
    assert pipeline.run()["events"].rows_read == 2
    assert {record.key: record.value for record in pipeline.records("clicks-dead-letters")} == {
        b"k": b'{"user":"eve"',
        None: None,
    }
    pipeline.produce("clicks", [CLICK])
    flows = pipeline.run()
    assert (flows["events"].rows_read, flows["events"].rows_written) == (1, 1)
    assert [row["user"] for row in pipeline.table("events")] == ["ada"]
    assert len(pipeline.topic("clicks-dead-letters")) == 2
    with pytest.raises(PipelineFailed, match=r"^the project names no topic clickz \(it names: clicks, taps, clicks-c"):
        pipeline.produce("clickz", [CLICK])
    with pytest.raises(PipelineFailed, match=r"^there is no table evens \(there are: events, page_stats\)$"):
        pipeline.table("evens")
    with pytest.raises(PipelineFailed, match="a test has one pipeline"):
        penstock_pipeline(root)


@pytest.fixture
def change(root: Path) -> Any:
    file = root / "transformations" / "clicks.py"
    text = file.read_text()

    def changed(old: str, new: str) -> None:
        assert old in text
        file.write_text(text.replace(old, new))

    yield changed
    file.write_text(text)


def test_mistakes_are_one_sentence(root: Path, change: Any, penstock_pipeline: Open) -> None:
    change("CLUSTER = {", "CLUSTER = {{")
    with pytest.raises(PipelineFailed, match=r"^transformations/clicks\.py:\d+: .*$"):
        penstock_pipeline(root)
    change('"reason IS NULL"', '"raison IS NULL"')
    pipeline = penstock_pipeline(root)
    with pytest.raises(PipelineFailed, match=r"^transformations/clicks\.py:\d+: flow events: .*`raison` cannot.*$"):
        pipeline.run()
    change('{"answered within a second": "ms < 1000"}', '{"fast": "ms < 1000"}, on_violation="fail"')
    pipeline.produce("clicks", [{**CLICK, "ms": 5000}])
    with pytest.raises(PipelineFailed, match=r'^flow events failed: expectation "fast" \(ms < 1000\) is violated by {'):
        pipeline.run()


def test_a_cluster_in_the_definitions_is_not_reached(root: Path, change: Any, penstock_pipeline: Open) -> None:
    change(".options(**CLUSTER)", '.options(**{**CLUSTER, "kafka.bootstrap.servers": "production:9092"})')
    with pytest.raises(PipelineFailed, match="the definitions name the brokers production:9092 themselves"):
        penstock_pipeline(root)
