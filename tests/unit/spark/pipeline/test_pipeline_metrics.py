"""The metrics of `penstock pipeline serve`."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import click
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.metrics import ListenAddress
from penstock.cli.pipeline.metrics import metrics_page, metrics_served
from penstock.model.errors import PenstockError
from penstock.spark.pipeline.events import FlowState
from penstock.spark.pipeline.progress import FlowProgress
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.runs.status_file import StatusFile


def samples(page: str) -> dict[tuple[str, str], float]:
    """By name and the last label."""
    return {
        (sample.name, list(sample.labels.values())[-1]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


BROKEN = {"since": "2026-03-01T12:00:00+00:00", "running": None, "mistakes": [{"what": "x"}, {"what": "y"}]}


def test_a_broken_definition_shows() -> None:
    good, bad = samples(metrics_page("shop", {})), samples(metrics_page("shop", {"broken": BROKEN}))
    assert good["penstock_pipeline_broken_definitions", "shop"] == 0
    assert good["penstock_pipeline_broken_since_seconds", "shop"] == 0
    assert bad["penstock_pipeline_broken_definitions", "shop"] == 2
    assert bad["penstock_pipeline_broken_since_seconds", "shop"] == 1772366400


def test_flows_show_their_rows_and_failures(project: PipelineProject) -> None:
    flows = {
        "events": FlowProgress("events", rows_read=5, rows_written=4, state=FlowState.COMPLETED),
        "stats": FlowProgress("stats", is_batch=True, rows_written=3, state=FlowState.FAILED, error="x"),
    }
    status = StatusFile(project, "serve")
    status.end_run(flows)
    status.change(state="waiting", failures=2)
    with metrics_served(project, ("127.0.0.1", port := free_port())):
        address = f"http://127.0.0.1:{port}/"
        with urllib.request.urlopen(address + "metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            found = samples(answer.read().decode())
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address, timeout=10)
    assert found["penstock_pipeline_state", "waiting"] == 1
    assert found["penstock_pipeline_state", "running"] == 0
    assert found["penstock_pipeline_runs_total", "shop"] == 1
    assert found["penstock_pipeline_failures", "shop"] == 2
    assert found["penstock_pipeline_flow_rows_read_total", "events"] == 5
    assert found["penstock_pipeline_flow_rows_written_total", "events"] == 4
    assert ("penstock_pipeline_flow_rows_read_total", "stats") not in found
    assert found["penstock_pipeline_flow_failed", "stats"] == 1
    assert found["penstock_pipeline_flow_failed", "events"] == 0


def free_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_an_address_in_use_is_said(project: PipelineProject) -> None:
    port = free_port()
    with (
        metrics_served(project, ("127.0.0.1", port)),
        pytest.raises(PenstockError, match=rf"--metrics: cannot listen on 127\.0\.0\.1:{port}: Address already in use"),
        metrics_served(project, ("127.0.0.1", port)),
    ):
        pytest.fail("it listens twice")


def test_addresses() -> None:
    def converted(text: str) -> Any:
        return ListenAddress().convert(text, None, None)

    assert converted("9102") == ("127.0.0.1", 9102)
    assert converted("0.0.0.0:9102") == ("0.0.0.0", 9102)
    assert converted("[::1]:9102") == ("::1", 9102)
    for text in ("", "host", "host:", "0", "70000", "host:x"):
        with pytest.raises(click.BadParameter, match="write PORT or HOST:PORT"):
            converted(text)
