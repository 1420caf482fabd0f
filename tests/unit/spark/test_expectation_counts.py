"""Expectations as far as they need no Spark: their arguments, their counts, and whose SQL an error is about."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.pipeline.metrics import metrics_page
from penstock.cli.pipeline.output import show_status
from penstock.spark.expectations import FIRST_LINE, Declared, expect, quarantine, violations_in
from penstock.spark.pipeline.events import FlowState
from penstock.spark.pipeline.progress import BatchDone, FlowProgress, RunProgress, batch_done, view_done
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.runs.status_file import StatusFile, read_status
from penstock.spark.pipeline.status import pipeline_status
from penstock.spark.pipeline.templates.template import ProjectPlan, create_project

ROWS: Any = None  # arguments are refused before the rows matter


@pytest.fixture
def project(tmp_path: Path) -> PipelineProject:
    create_project(tmp_path, ProjectPlan.make("shop", ("clicks",), None, None, "127.0.0.1:1"))
    return PipelineProject.find(tmp_path / "shop")


@pytest.mark.parametrize(
    ("expectations", "on_violation", "said"),
    [
        ({"a": "x > 0"}, "quarantine", "good, bad = quarantine(rows, expectations)"),
        ({"a": "x > 0"}, "warn", "on_violation='warn': write one of keep, drop, fail"),
        ({}, "keep", 'expect needs conditions by name, for example {"positive price": "price > 0"}'),
        ("x > 0", "keep", "expect needs conditions by name"),
        ({" ": "x > 0"}, "keep", "' ' is no name of an expectation"),
        ({"a": " "}, "keep", "expectation \"a\" is ' ': write a condition in SQL"),
        ({"a": None}, "keep", 'expectation "a" is None: write a condition in SQL'),
    ],
)
def test_arguments_that_cannot_be(expectations: Any, on_violation: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        expect(ROWS, expectations, on_violation=on_violation)


def test_a_quarantine_needs_conditions() -> None:
    with pytest.raises(ValueError, match="quarantine needs conditions by name"):
        quarantine(ROWS, {})


@pytest.mark.parametrize(
    "error",
    [
        "[PARSE_SYNTAX_ERROR] Syntax error at or near '<'. SQLSTATE: 42601 (line {}, pos 14)\n\n== SQL ==\n",
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` cannot be resolved. SQLSTATE: 42703; line {} pos 10;\n'Proj",
        "[CAST_INVALID_INPUT] Value '/' cannot be cast. SQLSTATE: 22018\n== SQL (line {}, position 24) ==\ncount_if",
    ],
)
def test_an_error_names_the_expectation_by_its_line(error: str) -> None:
    declared = Declared()
    declared.add("first", "x > 0")
    line = declared.add("second", "x > > 0")
    assert declared.said(error.format(line), "boom") == 'expectation "second": boom'
    assert declared.said(error.format(3), "boom") == "boom"
    assert declared.said(f"it says deadline {FIRST_LINE} and line {line}", "boom") == "boom"


def test_counts_of_several_calls_add_up() -> None:
    observed = {
        "penstock_events": {"rows": 8},
        "penstock-expectations-0": {"fast": 2, "on time": 0},
        "penstock-expectations-7": {"fast": 1},
        "mine": {"fast": 100},
    }
    assert violations_in(observed) == {"fast": 3, "on time": 0}


def batch(**counts: int) -> BatchDone:
    done = batch_done(
        {"name": "a.b.events", "numInputRows": 9, "sources": [], "observedMetrics": {"penstock-expectations-0": counts}}
    )
    assert done is not None
    return done


def test_every_batch_of_a_flow_counts() -> None:
    progress = RunProgress()
    for each in (batch(fast=2, late=0), batch(fast=1, late=4)):
        progress.take_batch(each)
    assert progress.flows["events"].violations == {"fast": 3, "late": 4}


def test_a_view_counts_for_the_flow_whose_metric_comes_with_it() -> None:
    done = view_done(
        {"penstock_stats": {"rows": 3}, "penstock-expectations-1": {"rows": 2}, "penstock-expectations-0": {"a": 1}}
    )
    assert done == BatchDone("stats", 0, None, [], {"rows": 2, "a": 1})
    assert view_done({"penstock-expectations-1": {"a": 2}}) is None


def test_views_show_their_last_count(project: PipelineProject) -> None:
    status = StatusFile(project, "run")
    for count in (5, 3):
        view = FlowProgress("stats", FlowState.COMPLETED, is_batch=True, rows_written=9, violations={"fast": count})
        status.end_run({"events": of_run(1), "stats": view})
    page = metrics_page("shop", read_status(project))
    assert 'penstock_pipeline_view_expectation_violations{pipeline="shop",flow="stats",expectation="fast"} 3' in page
    assert page.count('expectation="fast"') == 2, "one for the view, one for the other flow"


def of_run(fast: int) -> FlowProgress:
    return FlowProgress("events", FlowState.COMPLETED, rows_read=9, violations={"fast": fast})


def test_totals_count_since_the_reset(project: PipelineProject, capsys: pytest.CaptureFixture[str]) -> None:
    StatusFile(project, "run").end_run({"events": of_run(2)})
    second = StatusFile(project, "serve")
    second.take(of_run(1))
    second.end_run({"events": of_run(3)})
    second.end_run({"events": FlowProgress("events", FlowState.COMPLETED)})  # nothing was new
    second.end_run({"events": of_run(1)})
    told = read_status(project)
    assert told["flows"]["events"]["violations"] == {"fast": 1}
    assert told["flows"]["events"]["violations_total"] == {"fast": 6}
    labels = '{pipeline="shop",flow="events",expectation="fast"}'
    assert f"penstock_pipeline_expectation_violations_total{labels} 6" in metrics_page("shop", told)
    show_status(pipeline_status(project, 0.1))
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2:] == [
        "FLOW    EXPECTATION  VIOLATIONS  VIOLATIONS TOTAL",
        "events  fast                  1                 6",
    ]


def test_a_status_of_an_earlier_version_has_none(project: PipelineProject) -> None:
    StatusFile(project, "run").end_run({"events": of_run(2)})
    told = json.loads(project.status_path.read_text())
    for name in ("violations", "violations_total"):
        del told["flows"]["events"][name]
    project.status_path.write_text(json.dumps(told))
    (flow,) = pipeline_status(project, 0.1).flows
    assert (flow.violations, flow.violations_total) == ({}, {})
    StatusFile(project, "run").end_run({"events": of_run(1)})
    assert read_status(project)["flows"]["events"]["violations_total"] == {"fast": 1}
