"""The project of a `penstock pipeline` command: its options, finding it, and errors about it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from penstock.cli.output import show_json
from penstock.cli.reach.connection import BOOTSTRAP_VARIABLE
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.spark.pipeline.project import PipelineProject

P = ParamSpec("P")
R = TypeVar("R")

DEFINITION_WRONG = 2


def project_options(command: Callable[P, R]) -> Callable[P, R]:
    command = click.option(
        "--bootstrap-server",
        "servers",
        metavar="HOST:PORT[,...]",
        help=f"Brokers of the cluster (default: ${BOOTSTRAP_VARIABLE}, else the project's setting).",
    )(command)
    return click.option(
        "--project",
        "directory",
        type=click.Path(path_type=Path),
        default=Path(),
        help="Directory of the project (default: the current one, or its nearest parent with a project).",
    )(command)


def errors_as_json(command: Callable[P, R]) -> Callable[P, R]:
    """With --json the command always prints one object on standard output. If it fails, `error` has the reason.

    The message on standard error and the exit code are the same as without --json.
    """

    @wraps(command)
    def wrapped(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return command(*arguments, **options)
        except (PenstockError, click.ClickException) as error:
            if options["as_json"]:
                show_json({"error": error.message if isinstance(error, click.ClickException) else str(error)})
            raise

    return wrapped


def project_in(directory: Path, servers: str | None) -> PipelineProject:
    from penstock.spark.pipeline.errors import DefinitionError
    from penstock.spark.pipeline.project import PipelineProject

    try:
        project = PipelineProject.find(directory)
    except DefinitionError as error:
        raise WrongDefinition(str(error)) from error
    chosen = servers or os.environ.get(BOOTSTRAP_VARIABLE)
    return project.with_servers(chosen) if chosen else project


class WrongDefinition(click.ClickException):
    exit_code = DEFINITION_WRONG

    def show(self, file: Any = None) -> None:
        click.echo(f"penstock: {self.message}", err=True)
