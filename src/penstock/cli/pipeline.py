"""`penstock pipeline`: projects on Spark Declarative Pipelines.

Exit codes: 0 all is well, 2 a definition is wrong, 3 a flow failed, 1 anything else (no broker, a lock, no Java), 130
interrupted. Spark is imported by the commands that start it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from penstock.cli.connection import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP_SERVERS, json_option
from penstock.cli.output import show_json, show_table
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.spark.pipeline.engine import PipelineEngine
    from penstock.spark.pipeline.errors import PipelineError
    from penstock.spark.pipeline.progress import FlowProgress
    from penstock.spark.pipeline.project import PipelineProject
    from penstock.spark.pipeline.runner import RunReport
    from penstock.spark.pipeline.status import FlowStatus, PipelineStatus

P = ParamSpec("P")
R = TypeVar("R")

DEFINITION_WRONG = 2
FLOW_FAILED = 3
INTERVAL_S = 5.0
MAX_FAILURES = 10


@click.group()
def pipeline() -> None:
    """Data pipelines on Spark: make, check, run and watch them."""


def project_options(command: Callable[P, R]) -> Callable[P, R]:
    command = click.option(
        "--bootstrap-server",
        "servers",
        metavar="HOST:PORT[,...]",
        help=f"Where the cluster is (else ${BOOTSTRAP_VARIABLE}, else what the project says).",
    )(command)
    return click.option(
        "--project",
        "directory",
        type=click.Path(path_type=Path),
        default=Path(),
        help="Directory of the project (default: this one, or the nearest above it).",
    )(command)


def spark_options(command: Callable[P, R]) -> Callable[P, R]:
    command = click.option(
        "--fast-start", is_flag=True, help="For short runs: the JVM starts sooner and never optimises fully."
    )(command)
    return click.option("--master", help="Where Spark runs (default: every core of this machine, local[*,4]).")(command)


# -- init -------------------------------------------------------------------------------


@pipeline.command()
@click.argument("name")
@click.option("--topic", "topics", multiple=True, default=("clicks",), show_default=True, help="To read; repeatable.")
@click.option("--output-topic", help="For results (default: the first topic, then -clean).")
@click.option("--dead-letter-topic", help="For bad records (default: the first topic, then -dead-letters).")
@click.option("--bootstrap-server", "servers", metavar="HOST:PORT[,...]", help="Where the cluster is.")
def init(
    name: str, topics: tuple[str, ...], output_topic: str | None, dead_letter_topic: str | None, servers: str | None
) -> None:
    """Make a project in a new directory NAME: definitions that run as they are."""
    from penstock.spark.pipeline.template import ProjectPlan, create_project

    parent, _, base = name.rstrip("/").rpartition("/")
    servers = servers or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP_SERVERS
    plan = ProjectPlan.make(base, topics, output_topic, dead_letter_topic, servers)
    where = Path(parent or ("/" if name.startswith("/") else "."))
    for path in create_project(where, plan):
        click.echo(f"  {path.relative_to(where)}")
    click.echo(f"Made pipeline {base}. Next: cd {where / base}, read README.md, penstock pipeline check")


# -- check ------------------------------------------------------------------------------


@pipeline.command()
@project_options
@spark_options
@json_option
def check(directory: Path, servers: str | None, master: str | None, fast_start: bool, as_json: bool) -> int:
    """Resolve the definitions without running them, and look for brokers and topics."""
    project = _project(directory, servers)
    _needs_spark()
    from penstock.spark.pipeline.engine import PipelineEngine
    from penstock.spark.pipeline.errors import DefinitionError
    from penstock.spark.pipeline.runner import check_definitions

    try:
        # Without the project's catalog: this works also while the pipeline runs.
        with PipelineEngine(project, master=master, fast_start=fast_start, persistent=False) as engine:
            graph = check_definitions(engine)
    except DefinitionError as error:
        return _tell(error, project)
    flows = sorted(graph.targets)
    named = [*graph.reads, *graph.writes, *project.configured_topics]
    missing, problem = _missing_topics(project, named)
    if as_json:
        show_json({"pipeline": project.name, "flows": flows, "missing_topics": missing, "problem": problem or None})
        return 1 if missing or problem else 0
    click.echo(f"Definitions: {len(project.definition_files())} files, in order")
    if problem:
        click.echo(f"Brokers: {problem}", err=True)
        return 1
    click.echo(f"Brokers: {project.servers or DEFAULT_BOOTSTRAP_SERVERS} answers")
    for topic in missing:
        click.echo(f"Topic {topic} does not exist. To make it: penstock topics create --name {topic}", err=True)
    if not missing:
        click.echo(f"Topics: {', '.join(dict.fromkeys(named)) or 'none named'}")
    return 1 if missing else 0


def _missing_topics(project: PipelineProject, names: list[str]) -> tuple[list[str], str]:
    """(those that are not there, why that is not known)."""
    from penstock.spark.pipeline.lag import LagMeter

    try:
        with LagMeter(project.client_options) as meter:
            return meter.missing_topics(names), ""
    except PenstockError as error:
        return [], f"nobody answers at {project.servers or DEFAULT_BOOTSTRAP_SERVERS} ({error})"


# -- run --------------------------------------------------------------------------------


@pipeline.command()
@project_options
@spark_options
@click.option(
    "--full-refresh", "refreshed", multiple=True, metavar="TABLE", help="Compute it from the start; repeatable."
)
@click.option("--full-refresh-all", is_flag=True, help="Compute all tables from the start. Sinks get everything again.")
@click.option("--retries", type=click.IntRange(min=0), default=2, show_default=True, help="Of failures that may pass.")
@json_option
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
    """Run until everything that is in the topics now has gone through."""
    project = _project(directory, servers)
    from penstock.spark.pipeline.lock import ProjectLock

    show = _nothing if as_json else _show_flow
    say = _nothing if as_json else click.echo
    with ProjectLock(project, "pipeline run"), _running(project, "run", master, fast_start, say) as (engine, status):
        from penstock.spark.pipeline.lag import LagMeter
        from penstock.spark.pipeline.runner import RunFailed, run_with_retries

        def watch(flow: FlowProgress) -> None:
            status.take(flow)
            show(flow)

        status.change(state="running")
        error: PipelineError | None = None
        with LagMeter(project.client_options) as meter:
            try:
                report = run_with_retries(
                    engine,
                    meter,
                    watch,
                    say,
                    retries=retries,
                    full_refresh=refreshed,
                    full_refresh_all=full_refresh_all,
                )
            except RunFailed as failed:
                error, report = failed.error, failed.report
        status.end_run(report.flows)
        status.end("failed" if error else "completed", str(error or ""))
    if as_json:
        show_json(_run_object(project, report, error))
    if error is not None:
        return _tell(error, project)
    say(f"Caught up: {_count(report.rows_read, 'record')} out of topics in {report.seconds:.1f} s.")
    return 0


def _run_object(project: PipelineProject, report: RunReport, error: PipelineError | None) -> dict[str, Any]:
    return {
        "pipeline": project.name,
        "state": "failed" if error else "completed",
        "error": str(error) if error else None,
        "seconds": round(report.seconds, 3),
        "records_read": report.rows_read,
        "flows": [
            {
                "flow": flow.name,
                "state": str(flow.state),
                "rows_read": None if flow.is_batch else flow.rows_read,
                "rows_written": flow.rows_written,
                "lag": flow.lag,
                "error": flow.cause or None,
            }
            for flow in report.flows.values()
        ],
    }


def _show_flow(flow: FlowProgress) -> None:
    facts = []
    if flow.is_batch:
        facts += [_count(flow.rows_written, "row")] if flow.rows_written is not None else []
    elif flow.state != "running" or flow.rows_read:
        facts.append(f"{flow.rows_read} read")
        facts += [f"{flow.rows_written} written"] if flow.rows_written is not None else []
    facts += [f"lag {flow.lag}"] if flow.lag is not None else []
    if flow.state in ("failed", "skipped"):
        facts = []
    click.echo(f"  {flow.name:<20} {flow.state:<10} {', '.join(facts)}".rstrip())


# -- serve ------------------------------------------------------------------------------


@pipeline.command()
@project_options
@spark_options
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0, 1800),
    default=INTERVAL_S,
    show_default=True,
    help="Seconds from the beginning of a run to that of the next.",
)
@click.option(
    "--max-failures",
    type=click.IntRange(min=0),
    default=MAX_FAILURES,
    show_default=True,
    help="How often in a row a flow may fail before this gives up.",
)
def serve(
    directory: Path, servers: str | None, master: str | None, fast_start: bool, interval_s: float, max_failures: int
) -> int:
    """Keep running, in one warm Spark, until ctrl-C or SIGTERM."""
    project = _project(directory, servers)
    from penstock.spark.pipeline.errors import PipelineError
    from penstock.spark.pipeline.lock import ProjectLock

    with ProjectLock(project, "pipeline serve"), _running(project, "serve", master, fast_start, click.echo) as running:
        from penstock.spark.pipeline.lag import LagMeter
        from penstock.spark.pipeline.serving import Server

        engine, status = running
        with LagMeter(project.client_options) as meter:
            server = Server(
                engine,
                meter,
                status,
                interval_s=interval_s,
                max_failures=max_failures,
                say=lambda line: click.echo(f"{time.strftime('%H:%M:%S')} {line}"),
                watch=_nothing,
            )
            with _stopped_by_signals(server.stop):
                click.echo(f"Serving pipeline {project.name}: a run every {interval_s:g} s. ctrl-C ends it.")
                try:
                    server.serve()
                except PipelineError as error:
                    status.end("failed", str(error))
                    return _tell(error, project)
        status.end("stopped")
    click.echo("Stopped.")
    return 0


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first signal ends after the run under way, the second at once: the next start does that batch again."""

    def first(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.default_int_handler)
        click.echo("Stopping after this run (once more: at once).")
        stop()

    before = {number: signal.signal(number, first) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- status -----------------------------------------------------------------------------


@pipeline.command()
@project_options
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds.")
@json_option
def status(directory: Path, servers: str | None, timeout_s: float, as_json: bool) -> None:
    """The last run, and of each flow: rows, offsets, and how far it is behind now."""
    from penstock.spark.pipeline.status import pipeline_status

    project = _project(directory, servers)
    found = pipeline_status(project, timeout_s)
    if as_json:
        show_json(_status_object(found))
        return
    click.echo(f"Pipeline {found.name}: {found.state}{f', by {found.holder}' if found.holder else ''}")
    if found.last:
        ended = f", ended {found.last['ended']}" if found.last.get("ended") else ""
        click.echo(f"Last {found.last['mode']}: started {found.last['started']}{ended}, runs: {found.last['runs']}")
    if found.flows:
        show_table(
            ("FLOW", "STATE", "READ", "WRITTEN", "READ TOTAL", "WRITTEN TOTAL", "LAG"),
            [
                (
                    one.name,
                    one.state,
                    one.rows_read,
                    one.rows_written,
                    one.rows_read_total,
                    one.rows_written_total,
                    one.lag,
                )
                for one in found.flows
            ],
        )
    partitions = [(one.name, part) for one in found.flows for part in one.partitions]
    if partitions:
        click.echo()
        show_table(
            ("FLOW", "TOPIC", "PARTITION", "OFFSET", "END", "LAG"),
            [(name, part.topic, part.partition, part.position, part.end, part.lag) for name, part in partitions],
        )
    for one in found.flows:
        if one.error:
            click.echo(f"flow {one.name}: {one.error}", err=True)
    for problem in found.problems:
        click.echo(problem, err=True)


def _status_object(found: PipelineStatus) -> dict[str, Any]:
    return {
        "pipeline": found.name,
        "state": found.state,
        "held_by": found.holder,
        "last": {name: found.last.get(name) for name in ("mode", "pid", "started", "ended", "runs", "message")},
        "flows": [_flow_object(one) for one in found.flows],
        "problems": list(found.problems),
    }


def _flow_object(one: FlowStatus) -> dict[str, Any]:
    return {
        "flow": one.name,
        "target": one.target,
        "state": one.state,
        "rows_read": one.rows_read,
        "rows_written": one.rows_written,
        "rows_read_total": one.rows_read_total,
        "rows_written_total": one.rows_written_total,
        "lag": one.lag,
        "groups": list(one.groups),
        "partitions": [
            {
                "topic": part.topic,
                "partition": part.partition,
                "offset": part.position,
                "end_offset": part.end,
                "lag": part.lag,
            }
            for part in one.partitions
        ],
        "error": one.error or None,
    }


# -- reset ------------------------------------------------------------------------------


@pipeline.command()
@project_options
@click.option("--flow", help="Only this one, with those that read its table.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(directory: Path, servers: str | None, flow: str | None, yes: bool) -> int:
    """Forget checkpoints and tables, so that the next run begins anew. Topics stay as they are."""
    from penstock.spark.pipeline.lock import ProjectLock
    from penstock.spark.pipeline.reset import plan_reset
    from penstock.spark.pipeline.reset import reset as forget

    project = _project(directory, servers)
    with ProjectLock(project, "pipeline reset"):
        plan = plan_reset(project, flow)
        if not plan.directories:
            click.echo("There is nothing to forget.")
            return 0
        click.echo(f"To be forgotten: {', '.join(plan.flows) or 'no flow has run'}. To be deleted:")
        for path in plan.directories:
            click.echo(f"  {project.relative(path)}/")
        if plan.sinks:
            click.echo(f"The next run sends everything to {', '.join(plan.sinks)} again: what is there now stays.")
        if not yes and not click.confirm("Go on?"):
            click.echo("Nothing was changed.")
            return 1
        forget(project, plan)
    click.echo("Done.")
    return 0


# -- shared -----------------------------------------------------------------------------


def _project(directory: Path, servers: str | None) -> PipelineProject:
    from penstock.spark.pipeline.errors import DefinitionError
    from penstock.spark.pipeline.project import PipelineProject

    try:
        project = PipelineProject.find(directory)
    except DefinitionError as error:
        raise _WrongSpecification(str(error)) from error
    chosen = servers or os.environ.get(BOOTSTRAP_VARIABLE)
    return project.with_servers(chosen) if chosen else project


class _WrongSpecification(click.ClickException):
    exit_code = DEFINITION_WRONG

    def show(self, file: Any = None) -> None:
        click.echo(f"penstock: {self.message}", err=True)


@contextmanager
def _running(
    project: PipelineProject, mode: str, master: str | None, fast_start: bool, say: Callable[[str], None]
) -> Iterator[tuple[PipelineEngine, Any]]:
    """Spark for the project and its status file; however this ends, the file says so."""
    from penstock.spark.pipeline.status import StatusFile

    _needs_spark()
    from penstock.spark.pipeline.engine import PipelineEngine

    status = StatusFile(project, mode)
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
    """On standard error, what went wrong and where more is; the exit code for it."""
    from penstock.spark.pipeline.errors import DefinitionError, FlowFailed

    click.echo(f"penstock: {error}", err=True)
    if isinstance(error, DefinitionError):
        return DEFINITION_WRONG
    click.echo(f"What Spark said: {project.relative(project.log_path)}", err=True)
    return FLOW_FAILED if isinstance(error, FlowFailed) else 1


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _nothing(*what: object) -> None:
    pass
