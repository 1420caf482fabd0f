"""Forgetting what a pipeline has done, so that it does it again.

A checkpoint and the table it wrote belong together: with the checkpoint alone gone, the table's own log takes the first
batches for ones it has and drops them without a word. So a table whose files are not found is not reset, and what is to
be deleted is written down before anything is: whoever comes after a crash finishes it (`finish_reset`) before a run.
A flow that reads the table has a checkpoint of its own that counts the table's batches, so it is forgotten with it.
Topics are never touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.spark.pipeline.checkpoints import FlowCheckpoint, flow_checkpoints
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.locations import TableLocations, same_table
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.state_files import replace_text, sync_directory
from penstock.spark.pipeline.status import read_status

VERSION = 1


@dataclass(frozen=True, slots=True)
class ResetPlan:
    flows: tuple[str, ...]
    sinks: tuple[str, ...]
    """They will be written again what they were written before."""
    directories: tuple[Path, ...]
    """To be deleted."""
    emptied: tuple[Path, ...]
    """Of tables that the catalog goes on to know: to be there, with nothing in them."""
    is_whole: bool
    """The catalog goes, too."""


def plan_reset(project: PipelineProject, flow: str | None) -> ResetPlan:
    """Raises PipelineError when there is no such flow, or not all of it is found on this machine."""
    if project.checkpoints is None:
        raise PipelineError(
            f"the storage {project.storage} is not on this machine: delete its checkpoints there, with the tables' data"
        )
    found = flow_checkpoints(project.checkpoints)
    locations = TableLocations(project)
    if flow is None:
        return _whole_plan(project, project.checkpoints, found, locations)
    begun = [one for one in found if one.flow == flow]
    if not begun:
        names = ", ".join(sorted(one.flow for one in found)) or "none has run yet"
        raise PipelineError(f"--flow {flow}: no flow of that name has a checkpoint (there are: {names})")
    if locations.is_of_a_copy:
        raise PipelineError(
            f"--flow {flow}: this project has run elsewhere before, and its tables are recorded there: move it back, "
            "or forget everything here with `penstock pipeline reset`"
        )
    chosen = _with_readers(found, begun, locations)
    return ResetPlan(
        tuple(dict.fromkeys(one.flow for one in chosen)),
        _sinks(chosen),
        directories=tuple(one.directory for one in chosen),
        emptied=tuple(dict.fromkeys(_table(locations, one) for one in chosen if one.is_table)),
        is_whole=False,
    )


def reset(project: PipelineProject, plan: ResetPlan) -> None:
    """To be called with the project's lock held. Raises PipelineError when something cannot be deleted."""
    replace_text(project.reset_path, json.dumps(_to_json(project, plan), indent=2) + "\n")
    _carry_out(project, plan)


def pending_reset(project: PipelineProject) -> ResetPlan | None:
    """One that was begun and not finished. Raises PipelineError when it cannot be read or is not this project's."""
    try:
        told = json.loads(project.reset_path.read_text(encoding="utf-8"))
        if told["version"] != VERSION:
            raise ValueError(f"version {told['version']}, and this reads {VERSION}")
        root = project.root.resolve()
        directories, emptied = (tuple(root / path for path in told[name]) for name in ("directories", "emptied"))
        plan = ResetPlan(tuple(told["flows"]), tuple(told["sinks"]), directories, emptied, bool(told["is_whole"]))
        recorded_at = Path(told["root"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PipelineError(
            f"{project.relative(project.reset_path)} says that a reset was not finished, and cannot be read ({error}): "
            "delete checkpoints, tables and .penstock by hand"
        ) from error
    outside = [path for path in (*directories, *emptied) if not path.is_relative_to(root)]
    if outside and recorded_at != root:
        raise PipelineError(
            f"a reset of this project was begun in {recorded_at} and not finished, and {outside[0]} belongs to that "
            "one: move it back, and finish it there"
        )
    return plan


def finish_reset(project: PipelineProject) -> ResetPlan | None:
    """The one that was pending, now done. To be called with the project's lock held, before anything else."""
    plan = pending_reset(project)
    if plan is not None:
        _carry_out(project, plan)
    return plan


def _carry_out(project: PipelineProject, plan: ResetPlan) -> None:
    """As often as it takes: each step may have been done before."""
    try:
        for directory in (*plan.directories, *plan.emptied):
            if directory.exists():
                shutil.rmtree(directory.resolve())
        for directory in plan.emptied:
            directory.mkdir(parents=True, exist_ok=True)
        for parent in {path.parent for path in (*plan.directories, *plan.emptied)}:
            if parent.exists():
                sync_directory(parent)
        _forget(project, plan)
        project.reset_path.unlink()
    except OSError as error:
        raise PipelineError(
            f"the reset is not finished: {error.filename}: {error.strerror}. When that is mended, "
            "`penstock pipeline reset` goes on with it"
        ) from error


def _whole_plan(
    project: PipelineProject, checkpoints: Path, found: list[FlowCheckpoint], locations: TableLocations
) -> ResetPlan:
    # In a copy, tables elsewhere are those of the first; the copy's own are inside of it.
    outside = [] if locations.is_of_a_copy else locations.outside()
    for one in found:
        if one.is_table and (locations.is_remote(one.target) or not _is_known(project, locations, one)):
            _table(locations, one)  # says why not
    directories = [checkpoints, project.warehouse, project.metastore, *outside]
    return ResetPlan(
        tuple(one.flow for one in found),
        _sinks(found),
        directories=tuple(path for path in directories if path.exists()),
        emptied=(),
        is_whole=True,
    )


def _is_known(project: PipelineProject, locations: TableLocations, checkpoint: FlowCheckpoint) -> bool:
    """Its table is where a run recorded it, or in the project's warehouse, which goes as a whole."""
    if locations.directory(checkpoint.target) is not None:
        return True
    names = (path.name.lower() for path in (*project.warehouse.glob("*"), *project.warehouse.glob("*.db/*")))
    return checkpoint.target[-1].lower() in names


def _with_readers(
    found: list[FlowCheckpoint], begun: list[FlowCheckpoint], locations: TableLocations
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
            table = _table(locations, one)
            waiting += [other for other in found if same_table(other.target, one.target) or other.reads(table)]
    return list(chosen)


def _table(locations: TableLocations, checkpoint: FlowCheckpoint) -> Path:
    """Its directory. Raises PipelineError when it is not there to be emptied."""
    name = ".".join(checkpoint.target)
    directory = locations.directory(checkpoint.target)
    why = "where its files are was not recorded: `penstock pipeline run` records it"
    if locations.is_remote(checkpoint.target):
        why = "its files are not on this machine: delete them there, and the checkpoint"
    elif directory is not None:
        why = f"its files are not in {directory}, where they were: put them back, or forget all with `reset`"
        if directory.is_dir():
            return directory
    raise PipelineError(f"flow {checkpoint.flow} cannot be forgotten without its table {name}, and {why}")


def _sinks(checkpoints: Iterable[FlowCheckpoint]) -> tuple[str, ...]:
    return tuple(sorted({one.target[0] for one in checkpoints if not one.is_table}))


def _to_json(project: PipelineProject, plan: ResetPlan) -> dict[str, object]:
    root = project.root.resolve()

    def short(path: Path) -> str:
        path = path.resolve()
        return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)

    return {
        "version": VERSION,
        "root": str(root),
        "flows": plan.flows,
        "sinks": plan.sinks,
        "directories": [short(path) for path in plan.directories],
        "emptied": [short(path) for path in plan.emptied],
        "is_whole": plan.is_whole,
    }


def _forget(project: PipelineProject, plan: ResetPlan) -> None:
    """Rows are counted since the last reset; without a catalog no table is anywhere."""
    if plan.is_whole:
        project.status_path.unlink(missing_ok=True)
        project.tables_path.unlink(missing_ok=True)
        return
    told = read_status(project)
    if told:
        told["flows"] = {name: flow for name, flow in told.get("flows", {}).items() if name not in plan.flows}
        replace_text(project.status_path, json.dumps(told, indent=2) + "\n")
