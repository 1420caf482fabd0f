"""Expectations in a pipeline on a real Spark: what stays, what leaves, what is counted and what is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_driver import WarmCommandLine
from spark_topics import Topics

from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.tables import find_table, read_rows

SPECIFICATION = """\
name: goods
storage: storage
configuration:
  penstock.kafka.bootstrap.servers: "{servers}"
libraries:
  - glob: {{include: definitions/**}}
"""
DEFINITIONS = """\
from pyspark import pipelines as dp
from pyspark.sql import functions as F

from penstock.spark.expectations import expect, quarantine

PRICED = {"positive price": "price > 0 -- a null is none", "named": "length(name) > 1"}


@dp.temporary_view
def goods():
    records = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", spark.conf.get("penstock.kafka.bootstrap.servers"))
        .option("subscribe", "goods")
        .option("startingOffsets", "earliest")
        .load()
    )
    return records.select(F.from_json(F.col("value").cast("string"), "name STRING, price INT").alias("g")).select("g.*")


@dp.table
def kept():
    return expect(spark.readStream.table("goods"), PRICED)


@dp.table
def dropped():
    return expect(spark.readStream.table("goods"), PRICED, on_violation="drop")


@dp.table
def strict():
    return expect(spark.readStream.table("goods"), {"cheap": "coalesce(price, 0) < 1000"}, on_violation="fail")


@dp.table
def good():
    return quarantine(spark.readStream.table("goods"), PRICED).good


@dp.table
def bad():
    return quarantine(spark.readStream.table("goods"), PRICED).bad
"""
VIEW = """

@dp.materialized_view
def cheap():
    return expect(spark.table("kept"), {"cheap": "price < 50"}, on_violation="drop")
"""
GOODS = [{"name": "hat", "price": 5}, {"name": "x", "price": 0}, {"name": "cap"}, {"name": "coat", "price": 90}]
BOTH = {"positive price": 2, "named": 1}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, topics: Topics) -> PipelineProject:
    root = tmp_path_factory.mktemp("goods")
    (root / "spark-pipeline.yml").write_text(SPECIFICATION.format(servers=topics.bootstrap_servers))
    (root / "definitions").mkdir()
    (root / "definitions" / "goods.py").write_text(DEFINITIONS + VIEW)
    topics.create("goods")
    return PipelineProject.find(root)


@pytest.fixture(scope="module")
def warm(project: PipelineProject) -> Iterator[WarmCommandLine]:
    with WarmCommandLine(project.root) as command_line:
        yield command_line


def rows(project: PipelineProject, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_rows(find_table(project, table), 1000).to_pylist()
    return sorted(found, key=lambda row: str(row["name"]))


def test_rows_stay_leave_and_count(project: PipelineProject, warm: WarmCommandLine, topics: Topics) -> None:
    topics.fill("goods", [(None, json.dumps(each).encode()) for each in GOODS])
    ran = warm("pipeline", "run", "--project", str(project.root), "--json")
    assert ran.code == 0, ran.err
    flows = {flow["flow"]: flow for flow in json.loads(ran.out)["flows"]}
    assert {name: flow["violations"] for name, flow in flows.items()} == {
        "kept": BOTH,
        "dropped": BOTH,
        "strict": {"cheap": 0},
        "good": {},
        "bad": BOTH,
        "cheap": {"cheap": 2},
    }
    assert [row["name"] for row in rows(project, "kept")] == ["cap", "coat", "hat", "x"]
    for table in ("dropped", "good"):
        assert rows(project, table) == [{"name": "coat", "price": 90}, {"name": "hat", "price": 5}]
    assert rows(project, "bad") == [
        {"name": "cap", "price": None, "reason": "positive price"},
        {"name": "x", "price": 0, "reason": "positive price; named"},
    ]


def test_a_violation_can_fail_its_flow_and_nothing_counts_twice(
    project: PipelineProject, warm: WarmCommandLine, topics: Topics
) -> None:
    topics.fill("goods", [(None, b'{"name": "yacht", "price": 5000}'), (None, b'{"name": "y", "price": 1}')])
    for _ in range(2):  # the others have taken the rows in the first run, and it fails in both
        ran = warm("pipeline", "run", "--project", str(project.root))
        assert ran.code == 3
        assert (
            'penstock: flow strict failed: expectation "cheap" (coalesce(price, 0) < 1000) is violated by '
            '{"name":"yacht","price":5000}\n'
        ) in ran.err
    status = json.loads(warm("pipeline", "status", "--project", str(project.root), "--json").out)
    totals = {flow["flow"]: flow["violations_total"] for flow in status["flows"]}
    assert totals["kept"] == totals["dropped"] == totals["bad"] == {"positive price": 2, "named": 2}
    assert totals["strict"] == {"cheap": 0}
    views = {flow["flow"]: flow["violations"] for flow in status["flows"] if flow["rows_read_total"] is None}
    assert (views, totals["cheap"]) == ({"cheap": {"cheap": 3}}, {}), "those of the last run, which computes it again"
    assert len(rows(project, "strict")) == len(GOODS)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            "prize > 0",
            'flow kept: expectation "positive price": A column, variable, or',
        ),
        ("price > > 0", "expectation \"positive price\": Syntax error at or near '>'."),
        ("price", 'flow kept: expectation "positive price": Cannot resolve "coalesce(price, false)"'),
    ],
)
def test_wrong_sql_is_one_sentence_with_the_name(
    project: PipelineProject, warm: WarmCommandLine, wrong: str, said: str
) -> None:
    file: Path = project.root / "definitions" / "goods.py"
    text = file.read_text()
    file.write_text(text.replace("price > 0 -- a null is none", wrong))
    try:
        ran = warm("pipeline", "check", "--project", str(project.root))
    finally:
        file.write_text(text)
    assert ran.code == 2
    line = text[: text.index("def kept")].count("\n")
    assert f"definitions/goods.py:{line}: {said}" in ran.err
    assert all(each.removeprefix("penstock: ").startswith("definitions/goods.py:") for each in ran.err.splitlines())
