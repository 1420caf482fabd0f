"""`penstock pipeline`: projects on Spark Declarative Pipelines.

Exit codes: 0 success, 2 a wrong definition, 3 a failed flow, 130 an interrupt, 1 any other error (no broker, a lock, no
Java). Only the commands that start Spark import it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from penstock.cli.metrics import ListenAddress
from penstock.cli.output import confirmed, show_json
from penstock.cli.pipeline.history import history
from penstock.cli.pipeline.job_command import master_option
from penstock.cli.pipeline.jobs import JOBS
from penstock.cli.pipeline.metrics import metrics_served
from penstock.cli.pipeline.output import (
    count,
    mistakes_object,
    reset_object,
    run_object,
    show_flow,
    show_status,
    status_object,
)
from penstock.cli.pipeline.projects import (
    DEFINITION_WRONG,
    WrongDefinition,
    errors_as_json,
    project_in,
    project_options,
)
from penstock.cli.pipeline.show import show
from penstock.cli.pipeline.sinks import sinks
from penstock.cli.pipeline.sql import sql
from penstock.cli.reach.connection import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP_SERVERS, Target, json_option
from penstock.model.addresses import Address
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.spark.pipeline.engine import PipelineEngine
    from penstock.spark.pipeline.errors import PipelineError
    from penstock.spark.pipeline.progress import FlowProgress
    from penstock.spark.pipeline.project import PipelineProject

P = ParamSpec("P")
R = TypeVar("R")

FLOW_FAILED = 3
INTERVAL_S = 5.0
MAX_FAILURES = 10


@click.group()
def pipeline() -> None:
    """Create, check, run and watch data pipelines on Spark."""


for job in JOBS:
    pipeline.add_command(job)
pipeline.add_command(sinks)
pipeline.add_command(show)
pipeline.add_command(history)
pipeline.add_command(sql)


def spark_options(command: Callable[P, R]) -> Callable[P, R]:
    command = click.option(
        "--fast-start", is_flag=True, help="Start the JVM faster, without its full optimization: for short runs."
    )(command)
    return master_option(command)


# -- init -------------------------------------------------------------------------------


class TemplateName(click.ParamType[str]):
    """The names are asked for when they are needed: commands start fast."""

    name = "template"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "TEMPLATE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from penstock.spark.pipeline.templates.template import TEMPLATES

        if value not in TEMPLATES:
            self.fail(f"there is no template {value} (there are: {', '.join(TEMPLATES)})", param, ctx)
        return str(value)


@pipeline.command(short_help="Create a project with definitions that run as they are.")
@click.argument("name")
@click.option(
    "--template", type=TemplateName(), default="clicks", show_default=True, help="What the definitions are for."
)
@click.option("--topic", "topics", multiple=True, help="Topic to read; repeatable (default: those of the template).")
@click.option(
    "--output-topic", help="Template clicks: topic for results (default: the first topic's name with -clean)."
)
@click.option(
    "--dead-letter-topic",
    help="Template clicks: topic for bad records (default: the first topic's name with -dead-letters).",
)
@click.option(
    "--bootstrap-server",
    "servers",
    metavar="HOST:PORT[,...]",
    help=f"Brokers of the cluster (default: ${BOOTSTRAP_VARIABLE}, else {DEFAULT_BOOTSTRAP_SERVERS}).",
)
def init(
    name: str,
    template: str,
    topics: tuple[str, ...],
    output_topic: str | None,
    dead_letter_topic: str | None,
    servers: str | None,
) -> None:
    """Create a project in a new directory NAME, with definitions that run as they are.

    \b
    Templates:
      clicks         checks JSON: good rows to a table and a topic, bad ones to a
                     dead-letter topic
      windows        counts per minute with a watermark, and rows that are too late
      joins          a join of two topics within a bound of time: orders with payments
      deduplication  each event once, by its id, within a watermark
    """
    from penstock.spark.pipeline.templates.template import ProjectPlan, create_project

    parent, _, base = name.rstrip("/").rpartition("/")
    target = Target.find(servers)
    target.addresses()  # raises ConfigError
    plan = ProjectPlan.make(base, topics, output_topic, dead_letter_topic, target.servers, template)
    where = Path(parent or ("/" if name.startswith("/") else "."))
    for path in create_project(where, plan):
        click.echo(f"  {path}")
    click.echo(f"Created pipeline {base}. Next: cd {where / base}, read README.md, penstock pipeline check")


# -- check ------------------------------------------------------------------------------


@pipeline.command(short_help="Check definitions, brokers and topics; run nothing.")
@project_options
@spark_options
@json_option
@errors_as_json
def check(directory: Path, servers: str | None, master: str | None, fast_start: bool, as_json: bool) -> int:
    """Resolve the definitions without running them, and check brokers and topics."""
    project = project_in(directory, servers).resolved()
    _needs_spark()
    from penstock.spark.pipeline.definitions import checked_definitions
    from penstock.spark.pipeline.engine import PipelineEngine
    from penstock.spark.pipeline.errors import DefinitionError
    from penstock.spark.pipeline.runner import check_definitions

    try:
        checked_definitions(project)
        _look_for_broker(project)
        # Without the project's catalog, so that it also works while the pipeline runs.
        with PipelineEngine(project, master=master, fast_start=fast_start, persistent=False) as engine:
            graph = check_definitions(engine)
    except DefinitionError as error:
        if as_json:
            show_json(project.secrets.hide_all(mistakes_object(project, error)))
        return _tell(error, project)
    flows = sorted(graph.targets)
    named = [*graph.reads, *graph.writes, *project.configured_topics]
    missing, problem = _missing_topics(project, named)
    if as_json:
        absent = f"topics that do not exist: {', '.join(missing)}" if missing else None
        failure = f"brokers: {problem}" if problem else absent
        show_json({"pipeline": project.name, "flows": flows, "missing_topics": missing, "error": failure})
        return 1 if missing or problem else 0
    click.echo(f"Definitions: {len(project.definition_files())} files, in order")
    if problem:
        click.echo(f"Brokers: {problem}", err=True)
        return 1
    click.echo(f"Brokers: {project.servers or DEFAULT_BOOTSTRAP_SERVERS} answers")
    where = "" if project.servers in ("", _found_anyway()) else f" --bootstrap-server {project.servers}"
    for topic in missing:
        click.echo(f"Topic {topic} does not exist. Create it: penstock topics create --name {topic}{where}", err=True)
    if not missing:
        click.echo(f"Topics: {', '.join(dict.fromkeys(named)) or 'none named'}")
    return 1 if missing else 0


def _look_for_broker(project: PipelineProject) -> None:
    """Raises NoBroker at once; otherwise Spark would start and its flows would wait.

    A project without bootstrap servers may need no cluster.
    """
    if project.servers:
        settings = {name.removeprefix("kafka."): value for name, value in project.client_options.items()}
        del settings["bootstrap.servers"]
        Target.find(project.servers, settings=dict(settings)).check()


def _found_anyway() -> str:
    """The cluster that the other commands use."""
    return os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP_SERVERS


def _missing_topics(project: PipelineProject, names: list[str]) -> tuple[list[str], str]:
    """The missing topics, and the reason if the brokers could not be asked."""
    from penstock.spark.pipeline.lag import LagMeter

    try:
        with LagMeter(project.client_options) as meter:
            return meter.missing_topics(names), ""
    except PenstockError as error:
        return [], f"{project.servers or DEFAULT_BOOTSTRAP_SERVERS}: {error}"


# -- run --------------------------------------------------------------------------------


@pipeline.command()
@project_options
@spark_options
@click.option(
    "--full-refresh",
    "refreshed",
    multiple=True,
    metavar="TABLE",
    help="Recompute this table from the start; repeatable.",
)
@click.option(
    "--full-refresh-all", is_flag=True, help="Recompute all tables from the start. Sinks receive everything again."
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Number of retries after temporary failures.",
)
@json_option
@errors_as_json
def run(
    directory: Path,
    servers: str | None,
    master: str | None,
    fast_start: bool,
    refreshed: tuple[str, ...],
    full_refresh_all: bool,
    retries: int,
    as_json: bool,
) -> int:
    """Process all records that the topics hold now, then end."""
    project = project_in(directory, servers).resolved()
    show = _nothing if as_json else show_flow
    say = _nothing if as_json else _without_secrets(project)
    with _held(project, "pipeline run", say), _running(project, "run", master, fast_start, say) as (engine, status):
        from penstock.spark.pipeline.lag import LagMeter
        from penstock.spark.pipeline.runner import RunFailed, run_with_retries

        def watch(flow: FlowProgress) -> None:
            status.take(flow)
            show(flow)

        def tell_retry(failed: RunFailed, when: str) -> None:
            status.end_run(failed.report.flows, failed.report.seconds, str(failed.error))
            status.begin_run()
            say(f"{failed.error} ({when})")

        status.begin_run()
        error: PipelineError | None = None
        with LagMeter(project.client_options) as meter:
            try:
                report = run_with_retries(
                    engine,
                    meter,
                    watch,
                    tell_retry,
                    retries=retries,
                    full_refresh=refreshed,
                    full_refresh_all=full_refresh_all,
                )
            except RunFailed as failed:
                error, report = failed.error, failed.report
        status.end_run(report.flows, report.seconds, str(error or ""))
        status.end("failed" if error else "completed", str(error or ""))
        if error is None and (refreshed or full_refresh_all):
            _end_replaced(project)
    if as_json:
        show_json(project.secrets.hide_all(run_object(project, report, error)))
    if error is not None:
        return _tell(error, project)
    say(f"Caught up: {count(report.rows_read, 'record')} read from topics in {report.seconds:.1f} s.")
    return 0


# -- serve ------------------------------------------------------------------------------


@pipeline.command(short_help="Run again and again, until Ctrl-C or SIGTERM.")
@project_options
@spark_options
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0, 1800),
    default=INTERVAL_S,
    show_default=True,
    help="Seconds between the starts of two runs.",
)
@click.option(
    "--max-failures",
    type=click.IntRange(min=0),
    default=MAX_FAILURES,
    show_default=True,
    help="Give up after more than this number of failures of one flow in a row.",
)
@click.option(
    "--metrics",
    "metrics_address",
    type=ListenAddress(),
    metavar="[HOST:]PORT",
    help="Serve GET /metrics for Prometheus at this address (default: none).",
)
def serve(
    directory: Path,
    servers: str | None,
    master: str | None,
    fast_start: bool,
    interval_s: float,
    max_failures: int,
    metrics_address: Address | None,
) -> int:
    """Run again and again in one Spark session, until Ctrl-C or SIGTERM."""
    project = project_in(directory, servers).resolved()
    say = _without_secrets(project)
    from penstock.spark.pipeline.errors import PipelineError

    stopping = threading.Event()
    with (
        _signals_set(stopping),
        _held(project, "pipeline serve", click.echo),
        metrics_served(project, metrics_address),
        _running(project, "serve", master, fast_start, click.echo) as (engine, status),
    ):
        from penstock.spark.pipeline.lag import LagMeter
        from penstock.spark.pipeline.serving import Server

        with LagMeter(project.client_options) as meter:
            server = Server(
                engine,
                meter,
                status,
                interval_s=interval_s,
                max_failures=max_failures,
                say=lambda line: say(f"{time.strftime('%H:%M:%S')} {line}"),
                stopping=stopping,
            )
            click.echo(f"Serving pipeline {project.name}: at most one run every {interval_s:g} s. Ctrl-C ends.")
            try:
                server.serve()
            except PipelineError as error:
                status.end("failed", str(error))
                return _tell(error, project)
        status.end("stopped")
    click.echo("Stopped.")
    return 0


@contextmanager
def _signals_set(stopping: threading.Event) -> Iterator[None]:
    """Ends after the current run on the first signal, and at once on the second: the next start repeats that batch.

    Spark sets its own handler when it starts; the engine restores this one.
    """

    def first(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.default_int_handler)
        # Not click.echo: the signal may have interrupted one.
        os.write(sys.stderr.fileno(), b"Stopping after this run. Interrupt again to stop at once.\n")
        stopping.set()

    before = {number: signal.signal(number, first) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- status -----------------------------------------------------------------------------


@pipeline.command(short_help="Show the last run, and the lag of each flow.")
@project_options
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    help="Seconds to wait for the brokers.",
)
@json_option
@errors_as_json
def status(directory: Path, servers: str | None, timeout_s: float, as_json: bool) -> None:
    """Show the last run, and the rows, offsets and current lag of each flow."""
    from penstock.spark.pipeline.status import pipeline_status

    project = project_in(directory, servers)
    found = pipeline_status(project, timeout_s)
    if as_json:
        show_json(status_object(found))
        return
    show_status(found)


# -- reset ------------------------------------------------------------------------------


@pipeline.command(short_help="Delete checkpoints and tables, to start from the beginning.")
@project_options
@click.option("--flow", help="Reset only this flow, and the flows that read its table.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@errors_as_json
def reset(directory: Path, servers: str | None, flow: str | None, yes: bool, as_json: bool) -> int:
    """Delete checkpoints and tables, so that the next run starts from the beginning. Topics stay as they are."""
    from penstock.spark.pipeline.left_behind import all_queries
    from penstock.spark.pipeline.reset import plan_reset
    from penstock.spark.pipeline.reset import reset as forget

    project = project_in(directory, servers)
    if as_json and not yes:
        raise click.UsageError("--json cannot ask for confirmation: give --yes as well")
    say = _nothing if as_json else click.echo
    deleted: list[str] = []
    with _held(project, "pipeline reset", say):
        plan = plan_reset(project, flow)
        if not plan.directories:
            say("There is nothing to reset.")
        else:
            say(f"To be reset: {', '.join(plan.flows) or 'no flow has run'}. To be deleted:")
            for path in (*plan.directories, *plan.emptied):
                say(f"  {project.relative(path)}/")
            if plan.sinks:
                say(f"The next run sends everything to {', '.join(plan.sinks)} again. The present data there stays.")
            if not yes and not confirmed("Continue?"):
                say("Nothing was changed.")
                return 1
            queries = all_queries(plan.checkpoints)
            forget(project, plan)
            _end_queries(project, queries)
            deleted = _delete_groups(project, plan.groups)
            if deleted:
                say(f"Consumer groups deleted: {', '.join(deleted)}")
            say("Done.")
    if as_json:
        show_json(reset_object(project, plan, deleted))
    return 0


# -- shared -----------------------------------------------------------------------------


@contextmanager
def _held(project: PipelineProject, purpose: str, say: Callable[[str], None]) -> Iterator[None]:
    """Locks the project for this process, and finishes an interrupted reset first."""
    from penstock.spark.pipeline.lock import ProjectLock
    from penstock.spark.pipeline.reset import finish_reset

    with ProjectLock(project, purpose):
        finished = finish_reset(project)
        if finished is not None:
            _delete_groups(project, finished.groups)
            flows = ", ".join(finished.flows) or "no flow"
            say(f"Finished an interrupted reset. Flows reset: {flows}.")
        yield


def _end_replaced(project: PipelineProject) -> None:
    from penstock.spark.pipeline.checkpoints import flow_checkpoints
    from penstock.spark.pipeline.left_behind import replaced_groups, replaced_queries

    if project.checkpoints is not None:
        checkpoints = flow_checkpoints(project.checkpoints)
        _end_queries(project, replaced_queries(checkpoints))
        _delete_groups(project, replaced_groups(project, checkpoints))


def _end_queries(project: PipelineProject, query_ids: Sequence[str]) -> None:
    """The flows are reset all the same: brokers may be down."""
    from penstock.spark.pipeline.left_behind import end_queries

    try:
        end_queries(project.resolved().client_options, query_ids)
    except PenstockError as error:
        click.echo(
            f"penstock: the former flows may have left transactions open: {error}. "
            "`penstock pipeline sinks` lists them",
            err=True,
        )


def _delete_groups(project: PipelineProject, groups: Sequence[str]) -> list[str]:
    """Those that were deleted. The flows are reset all the same: brokers may be down."""
    from penstock.spark.pipeline.groups import delete_groups

    try:
        deleted, kept = delete_groups(project.resolved().client_options, groups)
    except PenstockError as error:
        deleted, kept = [], {", ".join(groups): str(error)}
    for group, why in kept.items():
        click.echo(f"penstock: the former flows have left consumer groups: {group} ({why})", err=True)
    return deleted


@contextmanager
def _running(
    project: PipelineProject, mode: str, master: str | None, fast_start: bool, say: Callable[[str], None]
) -> Iterator[tuple[PipelineEngine, Any]]:
    """Spark for the project, and its status file, which records every outcome."""
    from penstock.spark.pipeline.runs.status_file import StatusFile

    _needs_spark()
    from penstock.spark.pipeline.definitions import checked_definitions
    from penstock.spark.pipeline.engine import PipelineEngine
    from penstock.spark.pipeline.errors import DefinitionError
    from penstock.spark.pipeline.served import load_good

    status = StatusFile(project, mode)
    try:
        if mode == "run" or load_good(project) is None:  # `serve` can run the last good definitions
            checked_definitions(project)
        if mode == "run":  # `serve` waits for the broker
            _look_for_broker(project)
    except PenstockError as error:
        status.end("failed", str(error))
        if isinstance(error, DefinitionError):
            raise WrongDefinition(str(error)) from error
        raise
    say(f"Starting Spark (it writes to {project.relative(project.log_path)})")
    try:
        with PipelineEngine(project, master=master, fast_start=fast_start) as engine:
            yield engine, status
    except (KeyboardInterrupt, SystemExit):
        status.end("interrupted")
        raise
    except Exception as error:
        status.end("failed", str(error))
        raise


def _needs_spark() -> None:
    from importlib.util import find_spec

    for package in ("pyspark", "grpc", "yaml"):
        if find_spec(package) is None:
            raise PenstockError(
                f"pipelines run on Spark, and {package} is not installed: pip install 'penstock[spark]'"
            )


def _tell(error: PipelineError, project: PipelineProject) -> int:
    """Prints the error and the path of Spark's log on standard error. Returns the exit code."""
    from penstock.spark.pipeline.errors import DefinitionError, FlowFailed, SparkFailed

    click.echo(f"penstock: {project.secrets.hide(str(error))}", err=True)
    if isinstance(error, DefinitionError):
        return DEFINITION_WRONG
    click.echo(f"Spark's log: {project.relative(project.log_path)}", err=True)
    return FLOW_FAILED if isinstance(error, FlowFailed | SparkFailed) else 1


def _without_secrets(project: PipelineProject) -> Callable[[str], None]:
    return lambda line: click.echo(project.secrets.hide(line))


def _nothing(*what: object) -> None:
    pass
