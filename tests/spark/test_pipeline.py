"""A pipeline project from `init` to `reset`, by its commands, against a real broker and a real Spark.

The tests of the template are one story told in order: each starts from what the one before it left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_driver import WarmCommandLine
from spark_topics import Topics

from penstock.sdk import BlockingConsumer
from penstock.spark.pipeline.checkpoints import flow_checkpoints
from penstock.spark.pipeline.left_behind import all_queries
from penstock.spark.pipeline.lock import ProjectLock
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.templates.template import ProjectPlan, create_project
from penstock.tables import Table
from support.processes.broker import BrokerProcess

GOOD, BAD = 8, 4  # of the sample that comes with a project
TIMEOUT_S = 200
FAST = ("--master", "local[2,4]", "--fast-start")


class Story:
    """A project, and what is in its topics and tables."""

    def __init__(self, directory: Path, topics: Topics) -> None:
        plan = ProjectPlan.make("shop", ("shop-clicks",), None, None, topics.bootstrap_servers)
        create_project(directory, plan)
        self.root = directory / "shop"
        self.project = PipelineProject.find(self.root)
        self.topics = topics
        self.plan = plan

    def produce_sample(self) -> None:
        lines = (self.root / "events.jsonl").read_bytes().splitlines()
        self.topics.fill("shop-clicks", [(None, line) for line in lines])

    def records(self, topic: str) -> list[Any]:
        """All committed ones that are in it now."""
        with BlockingConsumer(self.topics.bootstrap_servers, auto_commit=False) as consumer:
            consumer.assign(topic, at="earliest")
            found: list[Any] = []
            deadline = time.monotonic() + 20
            while not consumer.at_end() and time.monotonic() < deadline:
                found += consumer.poll(timeout_s=0.2)
            assert consumer.at_end()
        return found

    def results(self) -> list[Any]:
        return self.records(self.plan.output_topic)

    def dead_letters(self) -> list[Any]:
        return self.records(self.plan.dead_letter_topic)

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = Table.open(self.root / "warehouse" / name).at().arrow().to_pylist()
        return rows


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, topics: Topics) -> Story:
    return Story(tmp_path_factory.mktemp("pipelines"), topics)


@pytest.fixture(scope="module")
def warm(story: Story) -> Iterator[WarmCommandLine]:
    with WarmCommandLine(story.root) as command_line:
        yield command_line


@pytest.fixture
def run(story: Story, warm: WarmCommandLine) -> Callable[[], dict[str, Any]]:
    def ran() -> dict[str, Any]:
        outcome = warm("pipeline", "run", "--project", str(story.root), "--json")
        assert outcome.code == 0, outcome.err
        report: dict[str, Any] = json.loads(outcome.out)
        return {flow["flow"]: (flow["rows_read"], flow["rows_written"], flow["lag"]) for flow in report["flows"]}

    return ran


def test_check_says_which_topics_are_missing(story: Story, warm: WarmCommandLine) -> None:
    missing = warm("pipeline", "check", "--project", str(story.root))
    assert missing.code == 1
    for topic in ("shop-clicks", story.plan.output_topic, story.plan.dead_letter_topic):
        assert f"Topic {topic} does not exist. Create it: penstock topics create --name {topic} --" in missing.err
    for topic in ("shop-clicks", story.plan.output_topic, story.plan.dead_letter_topic):
        story.topics.create(topic, partitions=2)
    whole = warm("pipeline", "check", "--project", str(story.root))
    assert (whole.code, whole.err) == (0, "")
    assert f"Brokers: {story.topics.bootstrap_servers} answers" in whole.out


def test_a_run_takes_good_rows_to_tables_and_bad_ones_to_the_dead_letters(story: Story, warm: WarmCommandLine) -> None:
    story.produce_sample()
    ran = warm("pipeline", "run", "--project", str(story.root))
    assert (ran.code, ran.err) == (0, "")
    assert re.search(rf"events +completed +{GOOD + BAD} read, {GOOD} written, lag 0\n", ran.out)
    assert re.search(rf"dead_letters +completed +{GOOD + BAD} read, {BAD} written, lag 0\n", ran.out)
    assert re.search(rf"results +completed +{GOOD} read, {GOOD} written\n", ran.out)
    assert re.search(r"page_stats +completed +3 rows\n", ran.out)
    assert f"Caught up: {GOOD + BAD} records read from topics" in ran.out
    assert len(story.table("events")) == GOOD
    views = {row["page"]: row["views"] for row in story.table("page_stats")}
    assert views == {"/": 3, "/shoes": 3, "/cart": 2}
    results = story.results()
    assert len(results) == GOOD
    assert sorted(json.loads(record.value)["slow"] for record in results) == [False] * (GOOD - 1) + [True]
    assert {record.key for record in results} == {b"/", b"/shoes", b"/cart"}


def test_show_prints_what_spark_has_written(story: Story, warm: WarmCommandLine) -> None:
    for table, rows in (("events", GOOD), ("page_stats", 3)):
        shown = warm("pipeline", "show", table, "--json", "--project", str(story.root))
        assert shown.code == 0, shown.err
        assert len(json.loads(shown.out)["rows"]) == rows
    shown = warm("pipeline", "show", "events", "--limit", "1", "--project", str(story.root))
    assert re.match(r"user +page +ts +ms +topic +partition +offset\n\w+ +/\w* +2026-03-01T12:", shown.out)


def test_a_dead_letter_is_the_record_with_the_reason(story: Story) -> None:
    letters = {}
    for record in story.dead_letters():
        headers = dict(record.headers)
        letters[headers["error.reason"]] = record.value
        assert headers["error.topic"] == b"shop-clicks"
        assert int(headers["error.partition"]) in (0, 1)
        assert int(headers["error.offset"]) >= 0
    assert letters.keys() == {
        b"user is missing",
        b"ms is missing or negative",
        b"ts is missing or not a time",
        b"the value is not JSON of a click",
    }
    assert letters[b"the value is not JSON of a click"] == b"this is not JSON"


def test_flows_into_topics_write_exactly_once(story: Story, warm: WarmCommandLine) -> None:
    listed = warm("pipeline", "sinks", "--json", "--bootstrap-server", story.topics.bootstrap_servers)
    found = {one["query_id"]: one for one in json.loads(listed.out)}
    assert story.project.checkpoints is not None
    queries = all_queries(flow_checkpoints(story.project.checkpoints))
    assert len(queries) == 2, "results and dead letters"
    for query_id in queries:
        assert found[query_id]["transactions"] > 0
        assert (found[query_id]["to_commit"], found[query_id]["lost"], found[query_id]["undecided"]) == ([], [], [])


def test_run_again_and_nothing_comes_twice(story: Story, run: Callable[[], dict[str, Any]]) -> None:
    nothing = run()
    assert nothing["events"] == (0, None, 0)
    assert nothing["results"][:2] == (0, None)
    story.topics.fill("shop-clicks", [(None, b'{"user": "eve", "page": "/new", "ts": 1772366440000, "ms": 1}')])
    assert run()["events"] == (1, 1, 0)
    assert len(story.table("events")) == GOOD + 1
    assert len(story.results()) == GOOD + 1
    assert len(story.dead_letters()) == BAD
    assert {row["page"] for row in story.table("page_stats")} == {"/", "/shoes", "/cart", "/new"}


def test_status_knows_the_lag_when_nothing_runs(story: Story, warm: WarmCommandLine) -> None:
    story.topics.fill("shop-clicks", [(None, b"{}")] * 3)
    shown = warm("pipeline", "status", "--project", str(story.root), "--json")
    status = json.loads(shown.out)
    assert (status["state"], status["held_by"]) == ("completed", None)
    flows = {flow["flow"]: flow for flow in status["flows"]}
    assert {name: flow["lag"] for name, flow in flows.items() if flow["partitions"]} == {"events": 3, "dead_letters": 3}
    assert (flows["events"]["rows_read_total"], flows["events"]["rows_written_total"]) == (GOOD + BAD + 1, GOOD + 1)
    (group,) = flows["events"]["groups"]
    assert group == "shop-events"
    lags = story.topics.admin.lag(group)
    assert sum(part.lag or 0 for part in lags) == 3


def broken(story: Story, old: str, new: str, file: str = "clicks.py") -> str:
    path = story.root / "transformations" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return text


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "clicks.py",
            '"reason IS NULL"',
            '"raison IS NULL"',
            r"clicks\.py:\d+: flow events: .*`raison` cannot.*",
        ),
        ("clicks.py", "CLUSTER = {", "CLUSTER = {{", r"clicks\.py:\d+: .*"),
        ("page_stats.sql", "GROUP BY", "GRUP BY", r"page_stats\.sql:9: Syntax error at or near 'BY'.*"),
        (
            "page_stats.sql",
            "FROM events",
            "FROM evens",
            r"page_stats\.sql:2: flow page_stats: .*`evens` cannot.*",
        ),
    ],
)
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_broken_definition_is_one_message_and_exit_2(
    story: Story, warm: WarmCommandLine, command: str, file: str, old: str, new: str, said: str
) -> None:
    text = broken(story, old, new, file)
    try:
        ran = warm("pipeline", command, "--project", str(story.root))
    finally:
        (story.root / "transformations" / file).write_text(text)
    assert ran.code == 2
    assert re.fullmatch(rf"penstock: transformations/{said}\n", ran.err), ran.err
    assert not re.search(r"\bat org\.apache|Traceback|Caught up", ran.out + ran.err)


def test_a_failing_flow_is_exit_3_and_goes_on_where_it_was_when_it_is_mended(
    story: Story, warm: WarmCommandLine, run: Callable[[], dict[str, Any]]
) -> None:
    text = broken(story, '"page AS key"', "\"CAST(raise_error('no such shelf') AS STRING) AS key\"")
    story.topics.fill("shop-clicks", [(None, b'{"user": "eve", "page": "/x", "ts": 1772366440000, "ms": 1}')])
    begun = time.monotonic()
    try:
        ran = warm("pipeline", "run", "--project", str(story.root))
    finally:
        (story.root / "transformations" / "clicks.py").write_text(text)
    assert ran.code == 3
    assert ran.err.splitlines()[0] == "penstock: flow results failed: no such shelf"
    assert "attempt" not in ran.out + ran.err, "hopeless, and tried again"
    assert re.search(r"events +completed", ran.out), "the others go on"
    assert json.loads(story.project.status_path.read_text())["state"] == "failed"
    print(f"a run that failed took {time.monotonic() - begun:.1f} s")
    assert run()["results"][:2] == (1, 1)
    assert len(story.results()) == GOOD + 2
    assert len(story.dead_letters()) == BAD + 3


SHOUTED = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
servers = spark.conf.get("penstock.kafka.bootstrap.servers")


@dp.table
def Shouted():
    source = spark.readStream.format("penstock").option("kafka.bootstrap.servers", servers)
    records = source.option("subscribe", "shop-clicks").option("startingOffsets", "earliest").load()
    return records.selectExpr("upper(CAST(value AS STRING)) AS value")


@dp.table
def Echo():
    return spark.readStream.table("Shouted")
"""


def test_a_table_in_capitals_loses_nothing_by_a_reset_of_its_flow(
    story: Story, warm: WarmCommandLine, run: Callable[[], dict[str, Any]]
) -> None:
    """The catalog has it in lower case, and its log there would have the new checkpoint's batches skipped."""
    definition = story.root / "transformations" / "shouted.py"
    definition.write_text(SHOUTED)
    try:
        before = run()["Shouted"]
        reset = warm("pipeline", "reset", "--flow", "Shouted", "--yes", "--project", str(story.root))
        assert reset.code == 0, reset.err
        assert "To be reset: Shouted, Echo." in reset.out
        assert "  warehouse/shouted/\n" in reset.out
        story.topics.fill("shop-clicks", [(None, b"{}")])
        after = run()
    finally:
        definition.unlink()
    assert before[0] == before[1] == GOOD + BAD + 5
    assert after["Shouted"] == (GOOD + BAD + 6, GOOD + BAD + 6, 0)
    assert len(story.table("shouted")) == len(story.table("echo")) == GOOD + BAD + 6


def test_reset_waits_for_nobody_and_asks_first(story: Story, warm: WarmCommandLine) -> None:
    with ProjectLock(story.project, "pipeline run"):
        for words in (("reset", "--yes"), ("run",)):
            refused = warm("pipeline", *words, "--project", str(story.root))
            assert refused.code == 1
            assert f"in use by process {os.getpid()} (pipeline run)" in refused.err
    assert len(story.table("events")) == GOOD + 2


def test_after_a_reset_a_cold_run_does_it_all_again(story: Story, warm: WarmCommandLine) -> None:
    warm.close()  # its Spark has the catalog open
    reset = penstock(story, "reset", "--yes")
    assert reset.returncode == 0, reset.stderr
    assert "sends everything to dead_letter_topic, output_topic again" in reset.stdout
    assert not story.project.warehouse.exists()
    assert json.loads(penstock(story, "status", "--json").stdout)["state"] == "never run"
    ran = penstock(story, "run", "--json", *FAST)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    assert len(story.table("events")) == GOOD + 2
    assert len(story.results()) == 2 * (GOOD + 2), "what was there stays"


def penstock(story: Story, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", "pipeline", words[0], "--project", str(story.root), *words[1:]],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


# -- serve ------------------------------------------------------------------------------


def test_serve_survives_its_broker_and_ends_when_told(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        topics = Topics(broker.bootstrap_servers)
        story = served_story(tmp_path, topics)
        process = serving(tmp_path, story)
        try:
            wait_for(story, process, GOOD)
            broker.kill()
            time.sleep(1)
            broker.start()
            story.produce_sample()
            wait_for(story, process, 2 * GOOD)
            os.kill(jvm_of(process), signal.SIGKILL)
            story.produce_sample()
            wait_for(story, process, 3 * GOOD)
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
        said = (tmp_path / "serve.out").read_text()
        assert said.endswith("Stopped.\n")
        assert "Traceback" not in said
        assert json.loads(story.project.status_path.read_text())["state"] == "stopped"
        assert "Spark has ended: restarting it" in said
        assert len(story.table("events")) == 3 * GOOD
        assert len(story.results()) >= 3 * GOOD
        topics.admin.close()


def test_serve_runs_the_last_good_definitions_until_a_wrong_one_is_repaired(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        topics = Topics(broker.bootstrap_servers)
        story = served_story(tmp_path, topics)
        process = serving(tmp_path, story)
        clicks, repaired = story.root / "transformations" / "clicks.py", story.root / "transformations" / "more.sql"
        try:
            wait_for(story, process, GOOD)
            wrong = [
                (clicks, clicks.read_text(), clicks.read_text().replace("click.user", "click.usr")),  # Spark finds it
                (repaired, "CREATE MATERIALIZED VIEW more AS SELECT count(*) AS n FROM events;", "CREATE NOTHING;"),
                (clicks, clicks.read_text(), "class:"),
            ]
            for turn, (file, right, text) in enumerate(wrong, 2):
                file.write_text(text)
                broken = wait_until(process, lambda: broken_in(story))
                assert broken["mistakes"][0]["file"] == f"transformations/{file.name}"
                assert broken["mistakes"][0]["line"] > 0
                story.produce_sample()
                wait_for(story, process, turn * GOOD)
                assert broken_in(story)
                file.write_text(right)
                wait_until(process, lambda: not broken_in(story))
            wait_until(process, lambda: "more" in json.loads(story.project.status_path.read_text())["flows"])
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            if process.returncode is None:
                process.kill()
                process.wait()
        said = (tmp_path / "serve.out").read_text()
        assert said.count("run until this is repaired.") == said.count("the definitions are repaired") == len(wrong)
        assert "Traceback" not in said
        assert len(story.table("events")) == (1 + len(wrong)) * GOOD, "each once"
        topics.admin.close()


def served_story(directory: Path, topics: Topics) -> Story:
    story = Story(directory, topics)
    for topic in ("shop-clicks", story.plan.output_topic, story.plan.dead_letter_topic):
        topics.create(topic)
    story.produce_sample()
    return story


def serving(directory: Path, story: Story) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock.cli", "pipeline", "serve", "--project", str(story.root)]
    with (directory / "serve.out").open("wb") as out:
        return subprocess.Popen([*command, "--interval", "0.5", *FAST], stdout=out, stderr=out)


def broken_in(story: Story) -> Any:
    return json.loads(story.project.status_path.read_text())["broken"]


def wait_until(process: subprocess.Popen[bytes], found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "serve ended"
        if told := found():
            return told
        time.sleep(0.2)
    pytest.fail(f"not within {TIMEOUT_S} s")


def jvm_of(process: subprocess.Popen[bytes]) -> int:
    """The Java among the processes below it."""
    waiting, found = [process.pid], []
    while waiting:
        place = Path("/proc", str(waiting.pop()))
        waiting += [int(pid) for each in place.glob("task/*/children") for pid in each.read_text().split()]
        if (place / "comm").read_text() == "java\n":
            found.append(int(place.name))
    (java,) = found
    return java


def wait_for(story: Story, process: subprocess.Popen[bytes], results: int) -> None:
    """Until the flow `results` has written so many rows in all."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "serve ended"
        try:
            told = json.loads(story.project.status_path.read_text())
        except OSError:
            told = {}
        flow = told.get("flows", {}).get("results", {})
        if (flow.get("rows_written_total") or 0) >= results:
            return
        time.sleep(0.2)
    pytest.fail(f"not served within {TIMEOUT_S} s: {told}")
