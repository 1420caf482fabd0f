"""`GET /metrics` of `penstock pipeline serve`: the status file and the logs of the tables, in Prometheus' text format.

Each request reads the files, which are replaced atomically, so serving shares nothing with the run. The lag of flows is
not here: brokers show it as that of consumer groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.cli.metrics import serve_metrics
from penstock.model.addresses import Address
from penstock.observability.exposition import Family, Sample, counter, gauge, render

if TYPE_CHECKING:
    from penstock.spark.pipeline.project import PipelineProject
    from penstock.spark.pipeline.table_upkeep import TableSize

STATES = ("starting", "running", "waiting", "stopped", "failed", "interrupted")


def metrics_served(project: PipelineProject, address: Address | None) -> AbstractContextManager[Address | None]:
    """Serves them meanwhile. Raises PenstockError if the address cannot be used."""
    from penstock.spark.pipeline.runs.status_file import read_status
    from penstock.spark.pipeline.table_upkeep import table_sizes

    return serve_metrics(lambda: metrics_page(project.name, read_status(project), table_sizes(project)), address)


def metrics_page(pipeline: str, told: Mapping[str, Any], tables: Mapping[str, TableSize] = MappingProxyType({})) -> str:
    families = (*_families(pipeline, told), *_table_families(pipeline, tables))
    return "".join(piece for family in families for piece in render(family))


def _families(pipeline: str, told: Mapping[str, Any]) -> Iterator[Family]:
    of_all = ("pipeline",)
    state, broken = str(told.get("state", "")), told.get("broken")
    yield gauge(
        "penstock_pipeline_state",
        "1 for the state of the pipeline, 0 for the others.",
        (*of_all, "state"),
        [((pipeline, one), float(one == state)) for one in STATES],
    )
    yield gauge(
        "penstock_pipeline_broken_definitions",
        "Mistakes in the definitions: the last good definitions run until they are repaired.",
        of_all,
        [((pipeline,), float(len(broken["mistakes"]) if broken else 0))],
    )
    yield gauge(
        "penstock_pipeline_broken_since_seconds",
        "When the definitions became wrong, in seconds since 1970; 0 if they are good.",
        of_all,
        [((pipeline,), datetime.fromisoformat(broken["since"]).timestamp() if broken else 0.0)],
    )
    yield counter(
        "penstock_pipeline_runs_total",
        "Runs since serve started.",
        of_all,
        [((pipeline,), float(told.get("runs", 0)))],
    )
    yield gauge(
        "penstock_pipeline_failures",
        "Failures in a row of the flow that has most of them.",
        of_all,
        [((pipeline,), float(told.get("failures", 0)))],
    )
    last: Mapping[str, Any] = told.get("last_run") or {}
    yield gauge(
        "penstock_pipeline_last_run_seconds",
        "How long the last run took.",
        of_all,
        [((pipeline,), float(last["seconds"]))] if last else [],
    )
    yield gauge(
        "penstock_pipeline_last_run_ended_seconds",
        "When the last run ended, in seconds since 1970.",
        of_all,
        [((pipeline,), datetime.fromisoformat(last["ended"]).timestamp())] if last else [],
    )
    flows: Mapping[str, Any] = told.get("flows", {})
    of_flow = ("pipeline", "flow")
    yield counter(
        "penstock_pipeline_flow_failures_total",
        "Runs in which the flow failed since the last reset of the project.",
        of_flow,
        list(_totals(pipeline, flows, "failures_total")),
    )
    yield gauge(
        "penstock_pipeline_flow_failed",
        "1 if the flow failed in its last run.",
        of_flow,
        [((pipeline, name), float(flow.get("state") == "failed")) for name, flow in flows.items()],
    )
    for kind, verb in (("read", "read by"), ("written", "written by")):
        yield counter(
            f"penstock_pipeline_flow_rows_{kind}_total",
            f"Rows {verb} the flow since the last reset of the project.",
            of_flow,
            list(_totals(pipeline, flows, f"rows_{kind}_total")),
        )
    yield counter(
        "penstock_pipeline_expectation_violations_total",
        "Rows of the flow that violated the expectation since the last reset of the project.",
        (*of_flow, "expectation"),
        [
            ((pipeline, flow, name), float(count))
            for flow, told in flows.items()
            for name, count in told.get("violations_total", {}).items()
        ],
    )
    yield gauge(
        "penstock_pipeline_view_expectation_violations",
        "Rows that violated the expectation when the materialized view was last computed.",
        (*of_flow, "expectation"),
        [
            ((pipeline, flow, name), float(count))
            for flow, told in flows.items()
            for name, count in told.get("violations", {}).items()
            if told.get("rows_read_total") is None  # a view
        ],
    )


def _table_families(pipeline: str, tables: Mapping[str, TableSize]) -> Iterator[Family]:
    kinds: list[tuple[str, str, Callable[[TableSize], int]]] = [
        ("version", "The newest version of the table.", lambda size: size.version),
        ("files", "Data files of the newest version.", lambda size: size.files),
        ("size_bytes", "Bytes of these files.", lambda size: size.size_bytes),
    ]
    for name, text, value in kinds:
        yield gauge(
            f"penstock_pipeline_table_{name}",
            text,
            ("pipeline", "table"),
            [((pipeline, table), float(value(size))) for table, size in tables.items()],
        )


def _totals(pipeline: str, flows: Mapping[str, Any], name: str) -> Iterator[Sample]:
    for flow, told in flows.items():
        if told.get(name) is not None:
            yield (pipeline, flow), float(told[name])
