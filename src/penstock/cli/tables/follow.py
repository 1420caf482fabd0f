"""`penstock table follow`: keeps tables of topics.

Exit codes: 0 caught up (`--once`) or stopped; 2 wrong arguments, a table of something else; 130 stopped before it had
caught up; 1 any other error.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from penstock.cli import INTERRUPTED
from penstock.cli.arguments.times import Duration
from penstock.cli.metrics import ListenAddress, serve_metrics
from penstock.cli.output import show_json
from penstock.cli.reach.connection import Target, cluster_command, complete_topics, json_option
from penstock.cli.tables.follow_all import FollowedSection, follow_all, read_sections
from penstock.cli.tables.follow_metrics import metrics_page
from penstock.cli.tables.follow_output import Output, facts
from penstock.cli.tables.follow_topic import FollowRun, Stopped, TopicSettings, follow_topic
from penstock.cli.tables.options import Start, TableDirectory, needs_tables
from penstock.model.addresses import Address
from penstock.model.errors import PenstockError

TOPIC_OPTIONS = (
    click.option("--topic", shell_complete=complete_topics, help="Topic to read."),
    click.option("--to", "directory", type=TableDirectory(), help="Directory of the table."),
    click.option(
        "--mode",
        type=click.Choice(["raw", "json"]),
        help="raw (default): key, value and headers as bytes. json: a column for each field of the values.",
    ),
    click.option(
        "--schema",
        "schema_text",
        metavar="SCHEMA",
        help="With --mode json: 'id long, name string'. Default: inferred from the first 1,000 values, once.",
    ),
    click.option("--evolve", is_flag=True, help="With --mode json: new fields become columns, integers get wider."),
    click.option(
        "--partition-by",
        multiple=True,
        metavar="COLUMN",
        help="Columns of a new table to partition by; date is the day of the record's timestamp. Repeatable.",
    ),
    click.option(
        "--key",
        multiple=True,
        metavar="COLUMN",
        help="A new table has the newest row of each key only, and records without a value delete. key is that of the "
        "record (_key with --mode json), others are fields. Repeatable.",
    ),
    click.option(
        "--dead-letter-topic",
        "dead_letter_topic",
        metavar="NAME",
        shell_complete=complete_topics,
        help="Send records that do not fit to this topic, with the reason in headers (default: a table in DIR).",
    ),
    click.option("--from", "start", type=Start(), help="Where a new table begins (default: earliest)."),
    click.option(
        "--commit-interval", type=Duration(), default="5s", show_default=True, help="The longest time between commits."
    ),
    click.option("--allow-gaps", is_flag=True, help="Continue if records were deleted before they were read."),
    click.option(
        "--keep",
        "keep_ms",
        type=Duration(),
        default="1d",
        show_default=True,
        help="How long versions of the table can be read that were replaced.",
    ),
)
"""Of one topic: each may be a key of a section in the file of --config."""


def topic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(TOPIC_OPTIONS):
        command = option(command)
    return command


@click.command()
@topic_options
def section(**_: Any) -> None:
    """A section of the file of --config."""


@click.command()
@topic_options
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Follow several topics: a TOML file with a section [TOPIC] for each, whose keys are the options above.",
)
@click.option("--once", is_flag=True, help="End when everything is in the table that was in the topic at the start.")
@click.option("--metrics", type=ListenAddress(), help="Serve /metrics for Prometheus there.")
@json_option
@cluster_command
@needs_tables
def follow(
    target: Target, /, config: Path | None, once: bool, metrics: Address | None, as_json: bool, **given: Any
) -> int:
    """Write a topic to a table in an open format (Delta Lake), each record once, until it is stopped."""
    from penstock.topic_tables.progress import FollowProgress

    topics = [_by_options(given)] if config is None else _by_sections(config)
    output = Output(as_json)
    _compile(output)
    progress = [FollowProgress(one.topic, str(one.directory)) for one in topics]
    with (
        _stopping(output, at_once=config is not None) as stop,
        serve_metrics(lambda: metrics_page(*progress), metrics) as served,
    ):
        if served is not None:
            output.say(f"Metrics are at http://{served[0]}:{served[1]}/metrics")
        running = FollowRun(target, stop, once, len(topics))
        state = {"state": "done"}
        if config is None:
            try:
                state["group"] = follow_topic(running, topics[0], progress[0], output)
            except Stopped:
                return INTERRUPTED
        else:
            outputs = [output.of(one.topic) for one in topics]
            followed = [FollowedSection(*one) for one in zip(topics, progress, outputs, strict=True)]
            failed = follow_all(running, followed)
            if failed:
                raise PenstockError(f"{len(failed)} of {len(topics)} topics failed: {', '.join(failed)}")
    if stop.is_set():
        state["state"] = "stopped"
    if as_json:
        told = [facts(one) for one in progress]
        show_json({**told[0], **state} if config is None else {**state, "topics": told})
    return INTERRUPTED if stop.is_set() and once else 0


def _by_options(given: dict[str, Any]) -> TopicSettings:
    for name, value in (("--topic", given["topic"]), ("--to", given["directory"])):
        if value is None:
            raise click.UsageError(f"{name} is missing: --topic and --to, or --config for several topics")
    return TopicSettings(**given)


def _by_sections(path: Path) -> Sequence[TopicSettings]:
    context = click.get_current_context()
    for field in fields(TopicSettings):
        if context.get_parameter_source(field.name) is ParameterSource.COMMANDLINE:
            option = next(one for one in context.command.params if one.name == field.name).opts[0]
            raise click.UsageError(f"{option} belongs into the sections of {path}: --config goes without it")
    return read_sections(path, section)


def _compile(output: Output) -> None:
    from penstock.arrow.cache.warmup import compile_all, is_warm, place_numba_cache

    place_numba_cache()
    if not is_warm():
        output.say("Compiling the decoder, once")
        compile_all()


@contextmanager
def _stopping(output: Output, *, at_once: bool) -> Iterator[threading.Event]:
    """Within it, SIGINT and SIGTERM end the command after the current commit. The second one ends it at once.

    at_once: also while other threads are at work, which an exception would wait for.
    """
    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        stop.set()
        for each in before:
            signal.signal(each, signal.SIG_DFL if at_once or each == signal.SIGTERM else signal.default_int_handler)
        output.say("Stopping after a last commit (again: at once)")

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
