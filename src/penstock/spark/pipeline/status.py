"""The status of a pipeline, from the status file of the last run, the checkpoints and the brokers.

The file has the results of a run. The position and lag of a flow come from the checkpoints and the brokers, so they are
current even if nothing runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.model.errors import ApiError, PenstockError
from penstock.spark.pipeline.checkpoints import FlowCheckpoint, flow_checkpoints
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.groups import flow_group
from penstock.spark.pipeline.lag import LagMeter, PositionLag
from penstock.spark.pipeline.lock import holder_of
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.runs.history import PastRun
from penstock.spark.pipeline.runs.removed_flows import RemovedFlow, removed_flows
from penstock.spark.pipeline.runs.status_file import UNDER_WAY, last_runs, read_status
from penstock.wire_client.requests.errors import WireClientError

UNKNOWN_LAG = "the lag is unknown"
RUNS = 10


@dataclass(frozen=True, slots=True)
class FlowStatus:
    name: str
    target: str
    state: str
    rows_read: int | None
    rows_written: int | None
    rows_read_total: int | None
    rows_written_total: int | None
    partitions: tuple[PositionLag, ...]
    groups: tuple[str, ...]
    violations: Mapping[str, int]
    """In the last run, by expectation."""
    violations_total: Mapping[str, int]
    error: str

    @property
    def lag(self) -> int | None:
        known = [one.lag for one in self.partitions if one.lag is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    name: str
    state: str
    holder: str | None
    last: Mapping[str, Any]
    flows: tuple[FlowStatus, ...]
    runs: tuple[PastRun, ...]
    """The newest ones, oldest first."""
    removed: tuple[RemovedFlow, ...]
    problems: tuple[str, ...] = field(default=())
    """The reasons why something is unknown, or needs its user."""


def pipeline_status(project: PipelineProject, timeout_s: float) -> PipelineStatus:
    last = read_status(project)
    holder = holder_of(project)
    state = str(last.get("state", "never run"))
    if holder is None and state in UNDER_WAY:
        state = "killed"  # the process ended without writing its end
    problems: list[str] = []
    if holder is None and project.reset_path.exists():
        state = "reset interrupted"
        problems.append("a reset is not finished: the next run, serve or reset finishes it first")
    checkpoints = {}
    if project.checkpoints is None:
        problems.append(f"the storage {project.storage} is not on this machine: offsets are not read")
    else:
        checkpoints = {one.flow: one for one in flow_checkpoints(project.checkpoints)}
    told: dict[str, Any] = last.get("flows", {})
    client_options: Mapping[str, str] = {}
    try:
        client_options = project.resolved().client_options
    except PipelineError as error:
        problems.append(f"{UNKNOWN_LAG}: {error}")
    with LagMeter(client_options, timeout_s) as meter:
        flows = tuple(
            _flow_status(project, name, told.get(name, {}), checkpoints.get(name), meter, problems)
            for name in sorted({*told, *checkpoints})
        )
    removed = tuple(removed_flows(project, last))
    problems += map(str, removed)
    runs = tuple(last_runs(project, holder)[-RUNS:])
    return PipelineStatus(project.name, state, holder, last, flows, runs, removed, tuple(dict.fromkeys(problems)))


def _flow_status(
    project: PipelineProject,
    name: str,
    told: Mapping[str, Any],
    checkpoint: FlowCheckpoint | None,
    meter: LagMeter,
    problems: list[str],
) -> FlowStatus:
    partitions: tuple[PositionLag, ...] = ()
    groups: tuple[str, ...] = ()
    if checkpoint is not None:
        try:
            offsets = checkpoint.source_offsets()
            groups = tuple(dict.fromkeys(offset.group or flow_group(project, name) for offset in offsets))
            # No broker answered for an earlier flow: do not wait again for each flow.
            silent = any(problem.startswith(UNKNOWN_LAG) for problem in problems)
            positions = {tp: at for one in offsets for tp, at in one.positions.items()}
            partitions = tuple(PositionLag(*tp, at, None) for tp, at in sorted(positions.items()))
            if partitions and not silent:
                partitions = tuple(meter.lags(offsets))
                problems += [
                    f"flow {name}: topic {one.topic} is in another cluster than the project's: its lag is unknown here"
                    for one in partitions
                    if one.is_elsewhere
                ]
                losses = dict.fromkeys(one.loss for one in partitions if one.loss)
                problems += [
                    f"flow {name}: {loss}. Its next run fails unless its source has failOnDataLoss=false; to read the "
                    f"topic from the start: penstock pipeline reset --flow {name}"
                    for loss in losses
                ]
        except (WireClientError, ApiError) as error:
            problems.append(f"{UNKNOWN_LAG}: {error}")
        except PenstockError as error:
            problems.append(f"flow {name}: {error}")
    return FlowStatus(
        name=name,
        target=".".join(checkpoint.target[-1:]) if checkpoint is not None else name,
        state=str(told.get("state", "not run")),
        rows_read=told.get("rows_read"),
        rows_written=told.get("rows_written"),
        rows_read_total=told.get("rows_read_total"),
        rows_written_total=told.get("rows_written_total"),
        partitions=partitions,
        groups=groups,
        violations=told.get("violations", {}),
        violations_total=told.get("violations_total", {}),
        error=str(told.get("error", "")),
    )
