from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.templates.template import TEMPLATES, ProjectPlan, create_project


def test_a_new_project_is_whole(tmp_path: Path) -> None:
    plan = ProjectPlan.make("my-shop", ("clicks", "taps"), "out", None, "one:9092,two:9092")
    written = create_project(tmp_path, plan)
    project = PipelineProject.find(tmp_path / "my-shop")
    assert project.name == "my-shop"
    assert project.configured_topics == ["clicks", "taps", "out", "clicks-dead-letters"]
    assert project.servers == "one:9092,two:9092"
    assert {path.name for path in project.definition_files()} == {"clicks.py", "page_stats.sql"}
    for path in written:
        left = re.sub(r"\$\{(env|file):[A-Z]+\}", "", path.read_text())  # references, as an example
        assert "$" not in left, path
    ast.parse((project.root / "transformations" / "clicks.py").read_text())
    assert "penstock produce --topic clicks events.jsonl" in (project.root / "README.md").read_text()


def test_the_sample_has_good_and_bad_events(project: PipelineProject) -> None:
    good = bad = 0
    for line in (project.root / "events.jsonl").read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            bad += 1
            continue
        assert set(event) == {"user", "page", "ts", "ms"}
        good += 1
    assert (good, bad) == (11, 1)


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_is_whole(tmp_path: Path, template: str) -> None:
    written = create_project(tmp_path, ProjectPlan.make("my-shop", (), None, None, "one:9092", template))
    project = PipelineProject.find(tmp_path / "my-shop")
    readme = (project.root / "README.md").read_text()
    for topic in project.configured_topics:
        assert f"penstock topics create --name {topic}\n" in readme
    samples = [path.name for path in written if path.suffix == ".jsonl"]
    assert samples
    for sample in samples:
        assert re.search(rf"penstock produce --topic \S+ {sample}\n", readme), "it says how to feed it"
    for path in written:
        assert not re.search(r"\$(?!\{(env|file):)", path.read_text()), path
        assert max(map(len, path.read_text().splitlines())) <= 128, path
        if path.suffix == ".py":
            ast.parse(path.read_text())
    definitions = "".join(path.read_text() for path in project.definition_files())
    for key in project.configuration:
        assert f'"{key}"' in definitions or key.startswith("penstock.kafka."), key


@pytest.mark.parametrize("template", ["windows", "joins", "deduplication"])
def test_a_time_in_the_future_is_bad_where_there_is_a_watermark(tmp_path: Path, template: str) -> None:
    create_project(tmp_path, ProjectPlan.make("shop", (), None, None, "x:1", template))
    project = PipelineProject.find(tmp_path / "shop")
    text = "".join(path.read_text() for path in project.definition_files())
    assert "withWatermark" in text
    reason = text.partition("CASE WHEN")[2].partition("END")[0]
    assert "WHEN try_to_timestamp(it.ts) > sent_at + INTERVAL 1 DAY THEN 'ts is in the future'" in reason
    assert 'alias("sent_at")' in text
    assert '"ts is in the future"' in (project.root / "tests" / "test_shop.py").read_text()


def test_the_times_of_the_windows_sample(tmp_path: Path) -> None:
    create_project(tmp_path, ProjectPlan.make("shop", ("taps",), None, None, "x:1", "windows"))
    times = [json.loads(line)["ts"] for line in (tmp_path / "shop" / "views.jsonl").read_text().splitlines()]
    assert times != sorted(times), "some come late"
    assert "penstock produce --topic taps late.jsonl" in (tmp_path / "shop" / "README.md").read_text()


@pytest.mark.parametrize(
    ("template", "topics", "output", "message"),
    [
        ("joins", ("orders",), None, "the template joins reads 2 topics, orders and payments: give --topic 2 times"),
        ("joins", ("a", "b", "c"), None, "the template joins reads 2 topics"),
        ("joins", ("a", "a"), None, "a topic is named twice among a, a: name different topics"),
        ("windows", (), "out", "the template windows writes tables only: leave out --output-topic and --dead-letter"),
    ],
)
def test_topics_that_a_template_cannot_have(
    template: str, topics: tuple[str, ...], output: str | None, message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        ProjectPlan.make("shop", topics, output, None, "x:1", template)


def test_an_existing_directory_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    with pytest.raises(PipelineError, match="exists already"):
        create_project(tmp_path, ProjectPlan.make("shop", ("clicks",), None, None, "x:1"))
    assert list((tmp_path / "shop").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "topics", "output", "message"),
    [
        ("1st", ("clicks",), None, "not a valid project name"),
        ("a b", ("clicks",), None, "not a valid project name"),
        ("shop", ("cli cks",), None, "'cli cks' is not a valid topic name"),
        ("shop", ("clicks",), "..", "'..' is not a valid topic name"),
        ("shop", ("clicks",), "clicks", "the pipeline would feed itself"),
    ],
)
def test_names_that_cannot_be(name: str, topics: tuple[str, ...], output: str | None, message: str) -> None:
    with pytest.raises(PipelineError, match=message.replace(".", r"\.")):
        ProjectPlan.make(name, topics, output, None, "x:1")
