"""Forgetting what a pipeline has done, so that it does it again.

A checkpoint and the table it wrote belong together: with the checkpoint alone gone, the table's own log takes the first
batches for ones it has and drops them without a word. A flow that reads the table has a checkpoint of its own that
counts the table's batches, so it is forgotten with it. Topics are never touched.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from penstock.spark.pipeline.checkpoints import FlowCheckpoint, flow_checkpoints
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.status import read_status


@dataclass(frozen=True, slots=True)
class ResetPlan:
    flows: tuple[str, ...]
    sinks: tuple[str, ...]
    """They will be written again what they were written before."""
    directories: tuple[Path, ...]
    is_whole: bool
    """The catalog goes, too."""


def plan_reset(project: PipelineProject, flow: str | None) -> ResetPlan:
    """Raises PipelineError when there is no such flow, or nothing of it on this machine."""
    if project.checkpoints is None:
        raise PipelineError(
            f"the storage {project.storage} is not on this machine: delete its checkpoints there, with the tables' data"
        )
    found = flow_checkpoints(project.checkpoints)
    if flow is None:
        directories = [project.checkpoints, project.warehouse, project.metastore]
        return ResetPlan(
            tuple(one.flow for one in found),
            tuple(sorted({one.target[0] for one in found if not one.is_table})),
            tuple(path for path in directories if path.exists()),
            is_whole=True,
        )
    begun = [one for one in found if one.flow == flow]
    if not begun:
        names = ", ".join(sorted(one.flow for one in found)) or "none has run yet"
        raise PipelineError(f"--flow {flow}: no flow of that name has a checkpoint (there are: {names})")
    chosen = _with_readers(project, found, begun)
    directories = [one.directory for one in chosen]
    directories += [_table(project, one) for one in chosen if one.is_table]
    return ResetPlan(
        tuple(dict.fromkeys(one.flow for one in chosen)),
        tuple(sorted({one.target[0] for one in chosen if not one.is_table})),
        tuple(path for path in dict.fromkeys(directories) if path.exists()),
        is_whole=False,
    )


def reset(project: PipelineProject, plan: ResetPlan) -> None:
    """To be called with the project's lock held."""
    tables = {_table(project, one) for one in flow_checkpoints(project.checkpoints or project.root) if one.is_table}
    for directory in plan.directories:
        shutil.rmtree(directory)
        if directory in tables and not plan.is_whole:
            directory.mkdir()  # the catalog says that there is such a table
    _forget(project, plan)


def _with_readers(
    project: PipelineProject, found: list[FlowCheckpoint], begun: list[FlowCheckpoint]
) -> list[FlowCheckpoint]:
    """Those, the other flows into the same tables, and whoever reads these tables, and so on."""
    chosen: dict[FlowCheckpoint, None] = {}
    waiting = list(begun)
    while waiting:
        one = waiting.pop(0)
        if one in chosen:
            continue
        chosen[one] = None
        if one.is_table:
            table = _table(project, one)
            waiting += [other for other in found if other.target == one.target or other.reads(table)]
    return list(chosen)


def _table(project: PipelineProject, checkpoint: FlowCheckpoint) -> Path:
    return project.table_directory(checkpoint.target[-1], checkpoint.target[-2])


def _forget(project: PipelineProject, plan: ResetPlan) -> None:
    """Rows are counted since the last reset."""
    if plan.is_whole:
        project.status_path.unlink(missing_ok=True)
        return
    told = read_status(project)
    if told:
        told["flows"] = {name: flow for name, flow in told.get("flows", {}).items() if name not in plan.flows}
        project.status_path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
