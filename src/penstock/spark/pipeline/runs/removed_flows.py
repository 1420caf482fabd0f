"""Flows that the definitions no longer have, but whose checkpoints keep old versions of tables.

Nobody can know whether such a flow comes back, so its checkpoint stays, and with it all that it has not read. A reset
of the flow lets go. It may delete more than that, so what it deletes is said as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock.spark.pipeline.checkpoints import FlowCheckpoint, flow_checkpoints
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.reset import plan_reset
from penstock.spark.pipeline.table_upkeep import open_tables
from penstock.tables import Table, TableError


@dataclass(frozen=True, slots=True)
class RemovedFlow:
    flow: str
    kept_from: Mapping[str, tuple[int, int]]
    """By table: the oldest version that is kept for the flow, and the newest version."""
    command: str
    also_reset: tuple[str, ...] = ()
    """Other flows that the command resets."""
    also_deleted: tuple[str, ...] = ()
    """Directories of tables whose rows the command deletes."""
    obstacle: str = ""
    """Why the command would fail."""

    def __str__(self) -> str:
        tables = " and ".join(
            f"table {table} from {first} on (the newest is {last})" for table, (first, last) in self.kept_from.items()
        )
        said = (
            f"flow {self.flow} is no longer in the definitions, and its checkpoint keeps the versions of {tables}. "
            f"This lets go of them: {self.command}"
        )
        if self.obstacle:
            return f"{said}. It will say: {self.obstacle}"
        more = [f"deletes the rows of {', '.join(self.also_deleted)}"] if self.also_deleted else []
        more += [f"resets the flows {', '.join(self.also_reset)}"] if self.also_reset else []
        return f"{said}. It also {' and '.join(more)}" if more else said


def removed_flows(project: PipelineProject, told: Mapping[str, Any]) -> Iterator[RemovedFlow]:
    """`told`: the status file. Its `defined` are the flows of the last run that completed; without it none is known."""
    defined = told.get("defined")
    if not isinstance(defined, list) or project.checkpoints is None:
        return
    present = {str(name).lower() for name in defined}
    for one in flow_checkpoints(project.checkpoints):
        if one.flow.lower() not in present and (kept := _kept_for(project, one)):
            yield _described(project, one.flow, kept)


def _kept_for(project: PipelineProject, checkpoint: FlowCheckpoint) -> dict[str, tuple[int, int]]:
    found = {}
    for name, directory in open_tables(project):
        version = checkpoint.version_read(directory)
        if version is not None:
            with suppress(TableError):  # a reset deletes it just now
                found[name.rpartition(".")[2]] = (max(version, 0), Table.open(directory).version)
    return found


def _described(project: PipelineProject, flow: str, kept: Mapping[str, tuple[int, int]]) -> RemovedFlow:
    command = f"penstock pipeline reset --flow {flow}"
    try:
        plan = plan_reset(project, flow)
    except PipelineError as error:
        return RemovedFlow(flow, kept, command, obstacle=str(error))
    return RemovedFlow(
        flow,
        kept,
        command,
        tuple(other for other in plan.flows if other != flow),
        tuple(project.relative(path) for path in plan.emptied),
    )
