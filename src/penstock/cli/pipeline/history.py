"""`penstock pipeline history`: the last runs of a project, also while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.output import show_json, show_table
from penstock.cli.pipeline.projects import errors_as_json, project_in, project_options
from penstock.cli.reach.connection import json_option

if TYPE_CHECKING:
    from penstock.spark.pipeline.runs.history import PastRun

RUNS = 10


@click.command(short_help="Show the last runs: rows, seconds, how they ended.")
@project_options
@click.option(
    "--limit", type=click.IntRange(min=1), default=RUNS, show_default=True, help="Show at most this number of runs."
)
@json_option
@errors_as_json
def history(directory: Path, servers: str | None, limit: int, as_json: bool) -> None:
    """Show the last runs, the newest at the end: when, how long, how they ended, and the rows of each flow.

    Rows are those of the run. The project remembers its last 100 runs, also after a reset.
    """
    from penstock.spark.pipeline.lock import holder_of
    from penstock.spark.pipeline.runs.status_file import last_runs

    project = project_in(directory, servers)
    runs = last_runs(project, holder_of(project))[-limit:]
    if as_json:
        show_json({"pipeline": project.name, "runs": [asdict(run) for run in runs], "error": None})
    elif not runs:
        click.echo(f"Pipeline {project.name} has not run.")
    else:
        show_table(("STARTED", "SECONDS", "BY", "STATE", "FLOW", "FLOW STATE", "READ", "WRITTEN"), list(_rows(runs)))
        for run in runs:
            if run.error:
                click.echo(f"{run.started}: {run.error}")


def _rows(runs: Sequence[PastRun]) -> Iterator[tuple[object, ...]]:
    for run in runs:
        seconds = None if run.seconds is None else f"{run.seconds:.1f}"
        facts: tuple[object, ...] = (run.started, seconds, run.mode, run.state)
        for flow in run.flows:
            yield (*facts, flow.flow, flow.state, flow.rows_read, flow.rows_written)
            facts = ("",) * len(facts)  # once a run
        if not run.flows:
            yield (*facts, None, None, None, None)
