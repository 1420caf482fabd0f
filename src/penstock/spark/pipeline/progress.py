"""The progress of a run for each flow, from Spark's two sources of information.

Events of the pipeline have the state of a flow. Progress reports of its streaming query have rows and offsets. The two
arrive separately and in no fixed order, and Spark reports a failed query first as completed and then as failed.
`RunProgress` takes both; one thread uses it. It knows neither Spark nor the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.spark.expectations import violations_in
from penstock.spark.pipeline.events import FlowEvent, FlowState, cause_of
from penstock.spark.pipeline.graph import ROWS, metric_of, short_name
from penstock.spark.source.offsets import SourceOffset


@dataclass(slots=True)
class FlowProgress:
    name: str
    state: FlowState = FlowState.QUEUED
    is_batch: bool = False
    """Computed completely in each run, as materialized views are."""
    rows_read: int = 0
    """Rows read by a streaming flow."""
    rows_written: int | None = None
    """None if the rows were not counted."""
    offsets: list[SourceOffset] = field(default_factory=list)
    """The offset of each source of topics."""
    lag: int | None = None
    violations: dict[str, int] = field(default_factory=dict)
    """The rows that violate each expectation."""
    error: str = ""

    @property
    def cause(self) -> str:
        return cause_of(self.error) if self.error else ""


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A micro-batch of a flow's query, from its progress report."""

    flow: str
    rows_read: int
    rows_written: int | None
    offsets: list[SourceOffset]
    violations: Mapping[str, int] = field(default_factory=dict)


class RunProgress:
    def __init__(self) -> None:
        self.flows: dict[str, FlowProgress] = {}
        self.unresolved: list[FlowEvent] = []

    def take(self, event: FlowEvent) -> FlowProgress | None:
        """Takes an event. Returns the flow if the event changed it."""
        if event.is_unresolved and not event.is_upstream:
            self.unresolved.append(event)
        flow = self._flow(event.flow)
        flow.is_batch |= event.is_batch
        if flow.state is FlowState.FAILED or (flow.state is event.state and not event.error):
            return None
        flow.state = event.state
        if event.state is FlowState.FAILED:
            flow.error = event.error
        return flow

    def take_batch(self, batch: BatchDone) -> FlowProgress:
        flow = self._flow(batch.flow)
        flow.rows_read += batch.rows_read
        if batch.rows_written is not None:
            flow.rows_written = (flow.rows_written or 0) + batch.rows_written
        flow.offsets = batch.offsets
        for name, count in batch.violations.items():
            flow.violations[name] = flow.violations.get(name, 0) + count
        return flow

    def complete(self) -> list[FlowProgress]:
        """Called after a successful run: marks flows as completed whose end Spark did not report, and returns them."""
        silent = [flow for flow in self.flows.values() if not flow.state.is_final]
        for flow in silent:
            flow.state = FlowState.COMPLETED
        return silent

    def failed(self) -> list[FlowProgress]:
        return [flow for flow in self.flows.values() if flow.state is FlowState.FAILED]

    def _flow(self, name: str) -> FlowProgress:
        short = short_name(name)
        return self.flows.setdefault(short, FlowProgress(short))


def batch_done(progress: Mapping[str, Any]) -> BatchDone | None:
    """Parses a query's progress report; None for a query that is not a flow of this pipeline."""
    name = progress.get("name")
    if not name:
        return None
    observed = progress.get("observedMetrics") or {}
    rows = observed.get(metric_of(short_name(name))) or {}
    found = (_source_offset(source.get("endOffset")) for source in progress.get("sources") or [])
    written = rows.get(ROWS)
    return BatchDone(
        name,
        int(progress.get("numInputRows") or 0),
        None if written is None else int(written),
        [offset for offset in found if offset is not None],
        violations_in(observed),
    )


def view_done(observed: Mapping[str, Mapping[str, Any]]) -> BatchDone | None:
    """A view that was computed, from the metrics of its query; None if no flow of Python definitions is in them."""
    rows = metric_of("")
    flow = next((name.removeprefix(rows) for name, counts in observed.items() if name.startswith(rows)), None)
    return None if flow is None else BatchDone(flow, 0, None, [], violations_in(observed))


def _source_offset(offset: object) -> SourceOffset | None:
    """The offset of a source of topics; None for any other."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if not isinstance(offset, dict) or "topics" not in offset:
        return None
    return SourceOffset.from_json(offset)
