"""Shared by the commands of ready-made pipelines: options, output and error handling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import click

from penstock.cli import INTERRUPTED
from penstock.cli.arguments.naming import check_topic_name
from penstock.cli.output import show_json
from penstock.cli.reach.connection import NoBroker, Target, client_settings, complete_topics, json_option
from penstock.model.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.spark.jobs.clusters import Brokers
    from penstock.spark.jobs.replay_sources import OffsetRange
    from penstock.spark.jobs.running import JobProgress, JobRun, Stop

P = ParamSpec("P")

WRONG = 2
FAILED = 3


@dataclass(slots=True)
class Terminal:
    """The options and output of a job, and its audience. With --json the only output is one object at the end."""

    as_json: bool
    master: str | None
    fast_start: bool
    log_path: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def say(self, line: str) -> None:
        if not self.as_json:
            click.echo(line)

    def warn(self, line: str) -> None:
        """Prints a warning on standard error, also with --json."""
        click.echo(f"penstock: {line}", err=True)

    def watch(self, progress: JobProgress) -> None:
        self.say(f"  {_described(progress)}")

    @contextmanager
    def running(self, name: str, log_path: Path) -> Iterator[JobRun]:
        """Starts Spark; from then on SIGINT and SIGTERM stop the job in order."""
        from penstock.spark.jobs.host import spark_for
        from penstock.spark.jobs.running import JobRun

        self.log_path = log_path
        self.say(f"Starting Spark (it writes to {log_path})")
        with spark_for(name, log_path, self.master, fast_start=self.fast_start) as spark, self.stopping() as stop:
            yield JobRun(spark, stop, self)

    @contextmanager
    def stopping(self) -> Iterator[Stop]:
        """Within it, SIGINT and SIGTERM stop the job in order."""
        from penstock.spark.jobs.running import Stop, stopped_by_signals

        stop = Stop()
        with stopped_by_signals(stop, self.say):
            yield stop

    def end(self, progress: JobProgress, stop: Stop, follow: bool, done: str) -> int:
        """Prints the last line or the JSON object. Returns the exit code."""
        stopped = stop.is_asked
        self.facts |= {
            "state": "stopped" if stopped else "done",
            "rows": progress.rows,
            "seconds": round(progress.seconds, 3),
            "rows_per_s": round(progress.rows_per_s, 1),
            "lag": progress.lag,
        }
        if self.as_json:
            show_json(self.facts)
        self.say(f"{'Stopped' if stopped else 'Done'}: {done}; in this run {_described(progress)}.")
        return INTERRUPTED if stopped and not follow else 0


def _described(progress: JobProgress) -> str:
    lag = "" if progress.lag is None else f", lag {progress.lag}"
    return f"{progress.rows} records, {progress.rate:.0f} per second{lag}"


class SparkMaster(click.ParamType[str]):
    """Checked before Java starts: Java takes seconds, and its error is harder to understand."""

    name = "master"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "MASTER"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from penstock.spark.pipeline.project import MASTERS, is_master

        text = str(value).strip()
        if not is_master(text):
            self.fail(f"{value!r} is not a Spark master: write {MASTERS}", param, ctx)
        return text


master_option = click.option(
    "--master", type=SparkMaster(), help="Spark master (default: all cores of this machine, local[*,4])."
)


def job_command(command: Callable[..., int]) -> Callable[..., int]:
    """Adds the options that all jobs share, and turns errors into messages and exit codes."""

    @master_option
    @click.option(
        "--fast-start", is_flag=True, help="Start the JVM faster, without its full optimization: for short runs."
    )
    @json_option
    @functools.wraps(command)
    def run(*args: Any, as_json: bool, master: str | None, fast_start: bool, **given: Any) -> int:
        needs_spark()
        from penstock.spark.jobs.errors import JobFailed, WrongJob

        terminal = Terminal(as_json, master, fast_start)
        try:
            return command(*args, terminal, **given)
        except (WrongJob, ConfigError) as error:
            return _tell(terminal, error, WRONG)
        except JobFailed as error:
            return _tell(terminal, error, FAILED)
        except OSError as error:  # a read-only directory, a full disk
            return _tell(
                terminal, PenstockError(f"cannot use {error.filename or 'a file'}: {error.strerror or error}"), 1
            )

    return run


def _tell(terminal: Terminal, error: PenstockError, code: int) -> int:
    if terminal.as_json:
        show_json({**terminal.facts, "state": "failed", "error": str(error)})
    click.echo(f"penstock: {error}", err=True)
    if code == FAILED and terminal.log_path is not None:
        click.echo(f"Spark's log: {terminal.log_path}", err=True)
    return code


def needs_spark() -> None:
    from importlib.util import find_spec

    if find_spec("pyspark") is None:
        raise PenstockError("pipelines run on Spark, and pyspark is not installed: pip install 'penstock[spark]'")


def brokers_of(target: Target) -> Brokers:
    from penstock.spark.jobs.clusters import Brokers

    target.check()
    return Brokers(target.servers, {name: str(value) for name, value in target.settings.items()})


def brokers_at(servers: str, config: str | None) -> Brokers:
    """`config`: a properties file with client settings."""
    try:
        return brokers_of(Target.find(servers, settings=client_settings(config)))
    except NoBroker:
        raise PenstockError(f"no broker answers at {servers}: start it, or correct the address") from None


def topics_of(given: tuple[str, ...]) -> tuple[str, ...]:
    """Topic names from repeated options, lists with commas, or both."""
    names = dict.fromkeys(name.strip() for text in given for name in text.split(",") if name.strip())
    if not names:
        raise ConfigError("give at least one topic with --topic")
    return tuple(map(check_topic_name, names))


class LocalDirectory(click.ParamType[Path]):
    name = "directory"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "DIR"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        text = str(value).removeprefix("file://")
        if not text:
            self.fail("the name of the directory is empty", param, ctx)
        if "://" in text:
            self.fail(
                f"{text!r} is not a directory of a file system, where files can be renamed: write a path", param, ctx
            )
        path = Path(text)
        if path.exists() and not path.is_dir():
            self.fail(f"{text!r} is a file, not a directory", param, ctx)
        return path


def topic_option(required: bool = True) -> Callable[[Callable[P, int]], Callable[P, int]]:
    return click.option(
        "--topic",
        "topics",
        multiple=True,
        required=required,
        metavar="TOPIC[,...]",
        shell_complete=complete_topics,
        help="Topic to read; repeatable.",
    )


def checkpoint_option(default: str) -> Callable[[Callable[P, int]], Callable[P, int]]:
    return click.option("--checkpoint", type=LocalDirectory(), help=f"Directory for the job's progress ({default}).")


follow_option = click.option(
    "--follow", is_flag=True, help="Keep running and process new records, until Ctrl-C or SIGTERM."
)
delivery_option = click.option(
    "--delivery-guarantee",
    "delivery",
    type=click.Choice(["exactly-once", "at-least-once"]),
    default="exactly-once",
    show_default=True,
    help="at-least-once: if a batch is repeated after a failure, its records are in the topic again.",
)
starting_option = click.option(
    "--starting",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where the first run starts to read: with the first record, or with new records only.",
)
STATE = "default: below $XDG_STATE_HOME/penstock/jobs, one for each job"


# -- values --------------------------------------------------------------------------------


class Speed(click.ParamType[float]):
    """1x, 10x, 0.5x; max is infinite."""

    name = "speed"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "1x|10x|max"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip().lower()
        if text in ("max", "inf"):
            return float("inf")
        try:
            speed = float(text.removesuffix("x"))
        except ValueError:
            speed = 0.0
        if not 0 < speed < float("inf"):
            self.fail(
                f"{value!r} is not a speed: write 1x for the records' own speed, 10x for ten times that, or max",
                param,
                ctx,
            )
        return speed


def parse_offsets(text: str | None) -> dict[int, OffsetRange] | None:
    """Parses 0:100-200,1:50-,2: offsets 100 to 199 of partition 0, 50 and up of partition 1, all of partition 2."""
    if text is None:
        return None
    from penstock.spark.jobs.replay_sources import OffsetRange

    found: dict[int, OffsetRange] = {}
    for part in text.split(","):
        partition, colon, offsets = part.strip().partition(":")
        start, dash, end = offsets.partition("-")
        numbers = [partition, *(number for number in (start, end) if number)]
        is_whole = not colon or (dash and (start or end))
        if not is_whole or not all(number.isascii() and number.isdigit() for number in numbers):
            raise ConfigError(f"--offsets has {part!r}: write PARTITION:FROM-TO, for example 0:100-200,1:50-")
        if int(partition) in found:
            raise ConfigError(f"--offsets names partition {partition} twice")
        if start and end and int(start) >= int(end):
            raise ConfigError(f"--offsets has {part!r}, which holds no offset: write a larger one after the dash")
        found[int(partition)] = OffsetRange(int(start) if start else None, int(end) if end else None)
    return found
