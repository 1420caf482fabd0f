"""Resets a pipeline, so that it processes everything again.

A checkpoint and the table that it wrote belong together: if only the checkpoint is deleted, all rows come into the
table again; or, if it is Parquet, its log takes the first batches for old ones and drops them silently. So a table
whose files are not found is not reset. The list of files is saved before any is deleted, and after a crash
`finish_reset` finishes the reset before the next run. A flow that reads the table has a checkpoint that counts the
table's versions, so it is reset with the table. Topics are never touched.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.spark.pipeline.checkpoints import FlowCheckpoint, flow_checkpoints
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.groups import flow_group
from penstock.spark.pipeline.locations import TableLocations, same_table
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.runs.history import add_run
from penstock.spark.pipeline.runs.status_file import open_run, read_status
from penstock.spark.state_files import replace_text, sync_directory

VERSION = 1


@dataclass(frozen=True, slots=True)
class ResetPlan:
    flows: tuple[str, ...]
    sinks: tuple[str, ...]
    """Sinks that receive the same rows again."""
    directories: tuple[Path, ...]
    """Directories to be deleted."""
    emptied: tuple[Path, ...]
    """Directories of tables that stay in the catalog: to be emptied."""
    is_whole: bool
    """The catalog is deleted, too."""
    checkpoints: tuple[FlowCheckpoint, ...] = ()
    """Those in `directories`. A pending reset does not know them."""
    groups: tuple[str, ...] = ()
    """The groups that show the progress of the flows. The caller deletes them: a reset needs no brokers."""


def plan_reset(project: PipelineProject, flow: str | None) -> ResetPlan:
    """Raises PipelineError if there is no such flow, or if not all of its files are found on this machine."""
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
            "or reset everything here with `penstock pipeline reset`"
        )
    chosen = _with_readers(found, begun, locations)
    return ResetPlan(
        tuple(dict.fromkeys(one.flow for one in chosen)),
        _sinks(chosen),
        directories=tuple(one.directory for one in chosen),
        emptied=tuple(dict.fromkeys(_table(locations, one) for one in chosen if one.is_table)),
        is_whole=False,
        checkpoints=tuple(chosen),
        groups=_groups(project, chosen),
    )


def reset(project: PipelineProject, plan: ResetPlan) -> None:
    """The caller must hold the project's lock. Raises PipelineError if something cannot be deleted."""
    replace_text(project.reset_path, json.dumps(_to_json(project, plan), indent=2) + "\n")
    _carry_out(project, plan)


def pending_reset(project: PipelineProject) -> ResetPlan | None:
    """An unfinished reset. Raises PipelineError if it cannot be read or belongs to another project."""
    try:
        told = json.loads(project.reset_path.read_text(encoding="utf-8"))
        if told["version"] != VERSION:
            raise ValueError(f"version {told['version']}, but this penstock reads version {VERSION}")
        root = project.root.resolve()
        directories, emptied = (tuple(root / path for path in told[name]) for name in ("directories", "emptied"))
        plan = ResetPlan(
            tuple(told["flows"]),
            tuple(told["sinks"]),
            directories,
            emptied,
            bool(told["is_whole"]),
            groups=tuple(told.get("groups", ())),  # earlier versions did not store them
        )
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
            f"a reset of this project was begun in {recorded_at} and not finished, and {outside[0]} belongs to the "
            "project there: move the project back, and finish the reset there"
        )
    return plan


def finish_reset(project: PipelineProject) -> ResetPlan | None:
    """Finishes a pending reset and returns it. The caller must hold the project's lock, and call this first."""
    plan = pending_reset(project)
    if plan is not None:
        _carry_out(project, plan)
    return plan


def _carry_out(project: PipelineProject, plan: ResetPlan) -> None:
    """Carries out a plan. Each step may already be done."""
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
            f"the reset is not finished: {error.filename}: {error.strerror}. Fix this, "
            "and run `penstock pipeline reset` to continue"
        ) from error


def _whole_plan(
    project: PipelineProject, checkpoints: Path, found: list[FlowCheckpoint], locations: TableLocations
) -> ResetPlan:
    # In a copied project, tables outside belong to the original; the copy's own are inside.
    outside = [] if locations.is_of_a_copy else locations.outside()
    for one in found:
        if one.is_table and (locations.is_remote(one.target) or not _is_known(project, locations, one)):
            _table(locations, one)  # raises with the reason
    directories = [checkpoints, project.warehouse, project.metastore, *outside]
    return ResetPlan(
        tuple(one.flow for one in found),
        _sinks(found),
        directories=tuple(path for path in directories if path.exists()),
        emptied=(),
        is_whole=True,
        checkpoints=tuple(found),
        groups=_groups(project, found),
    )


def _is_known(project: PipelineProject, locations: TableLocations, checkpoint: FlowCheckpoint) -> bool:
    """Whether a run recorded the table's location, or it is in the project's warehouse, which is deleted completely."""
    if locations.directory(checkpoint.target) is not None:
        return True
    names = (path.name.lower() for path in (*project.warehouse.glob("*"), *project.warehouse.glob("*.db/*")))
    return checkpoint.target[-1].lower() in names


def _with_readers(
    found: list[FlowCheckpoint], begun: list[FlowCheckpoint], locations: TableLocations
) -> list[FlowCheckpoint]:
    """The flows, the other flows into the same tables, the flows that read these tables, and so on."""
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
    """The table's directory. Raises PipelineError if it is not found."""
    name = ".".join(checkpoint.target)
    directory = locations.directory(checkpoint.target)
    why = "the location of its files was not recorded: `penstock pipeline run` records it"
    if locations.is_remote(checkpoint.target):
        why = "its files are not on this machine: delete them there, and the checkpoint"
    elif directory is not None:
        why = f"its files are not in {directory}, where they were: restore them, or reset everything with `reset`"
        if directory.is_dir():
            return directory
    raise PipelineError(f"flow {checkpoint.flow} cannot be reset without its table {name}, but {why}")


def _sinks(checkpoints: Iterable[FlowCheckpoint]) -> tuple[str, ...]:
    return tuple(sorted({one.target[0] for one in checkpoints if not one.is_table}))


def _groups(project: PipelineProject, checkpoints: Iterable[FlowCheckpoint]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for one in checkpoints:
        found[flow_group(project, one.flow)] = None
        for groups in one.groups().values():
            found.update(dict.fromkeys(sorted(groups)))
    return tuple(found)


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
        "groups": plan.groups,
    }


class FullRefresh:
    """A full refresh, noted until Spark has begun anew with every table.

    Spark first makes new checkpoints, and then empties table by table. If it is killed in between, flows begin at the
    start in tables that still have their rows. So the next run does it again.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / "full-refresh.json"
        self._before: str | None = None
        self._has_begun = False

    def begin(
        self, tables: Collection[str], is_all: bool, is_there: Callable[[str], bool]
    ) -> tuple[tuple[str, ...], bool]:
        """What to refresh: what is asked for, and what an earlier run did not finish, if it `is_there`."""
        self._has_begun = True
        with suppress(FileNotFoundError):
            self._before = self._path.read_text(encoding="utf-8")
        noted: dict[str, Any] = json.loads(self._before) if self._before else {"tables": [], "all": False}
        names = tuple(sorted({*tables, *filter(is_there, noted["tables"])}))
        is_all = is_all or bool(noted["all"])
        if names or is_all:
            replace_text(self._path, json.dumps({"tables": names, "all": is_all}))
        return names, is_all

    def end(self) -> None:
        self._path.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """What this run asked for has not begun. What an earlier one asked for remains."""
        if self._before is not None:
            replace_text(self._path, self._before)
        elif self._has_begun:
            self.end()


def _forget(project: PipelineProject, plan: ResetPlan) -> None:
    """Clears the row counts, which count since the last reset, and the locations of deleted tables."""
    told = read_status(project)
    killed = open_run(told, "killed")
    if killed is not None:  # only the status file has it, and forgets its flows now
        add_run(project, killed)
    if plan.is_whole:
        project.status_path.unlink(missing_ok=True)
        project.tables_path.unlink(missing_ok=True)
        FullRefresh(project.state).end()
        return
    if told:
        told["flows"] = {name: flow for name, flow in told.get("flows", {}).items() if name not in plan.flows}
        replace_text(project.status_path, json.dumps(told, indent=2) + "\n")
