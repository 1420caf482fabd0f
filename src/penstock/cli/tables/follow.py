"""`penstock table follow`: keeps a table of a topic.

Exit codes: 0 caught up (`--once`) or stopped; 2 wrong arguments, a table of something else; 130 stopped before it had
caught up; 1 any other error.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import INTERRUPTED
from penstock.cli.arguments.times import Duration
from penstock.cli.metrics import ListenAddress, serve_metrics
from penstock.cli.output import show_json
from penstock.cli.reach.connection import Target, cluster_command, complete_topics, json_option
from penstock.cli.reach.wire_admin import wire_cluster
from penstock.cli.tables.options import Start, StartAt, TableDirectory, needs_tables
from penstock.model.addresses import Address
from penstock.model.errors import ConfigError, PenstockError
from penstock.observability.exposition import counter, gauge, render

if TYPE_CHECKING:
    from penstock.topic_tables.dead_letter_topic import DeadLetterTopic
    from penstock.topic_tables.follower import Follower
    from penstock.topic_tables.progress import FollowProgress
    from penstock.wire_client.blocking.cluster import BlockingCluster

SHOW_S = 2.0
LONGEST_MS = 2**31 - 1


@click.command()
@click.option("--topic", required=True, shell_complete=complete_topics, help="Topic to read.")
@click.option("--to", "directory", type=TableDirectory(), required=True, help="Directory of the table.")
@click.option(
    "--mode",
    type=click.Choice(["raw", "json"]),
    help="raw (default): key, value and headers as bytes. json: a column for each field of the values.",
)
@click.option(
    "--schema",
    "schema_text",
    metavar="SCHEMA",
    help="With --mode json: 'id long, name string'. Default: inferred from the first 1,000 values, once.",
)
@click.option("--evolve", is_flag=True, help="With --mode json: new fields become columns, integers get wider.")
@click.option(
    "--partition-by",
    multiple=True,
    metavar="COLUMN",
    help="Columns of a new table to partition by; date is the day of the record's timestamp. Repeatable.",
)
@click.option(
    "--key",
    multiple=True,
    metavar="COLUMN",
    help="A new table has the newest row of each key only, and records without a value delete. key is that of the "
    "record (_key with --mode json), others are fields. Repeatable.",
)
@click.option(
    "--dead-letter-topic",
    "dead_letter_topic",
    metavar="NAME",
    shell_complete=complete_topics,
    help="Send records that do not fit to this topic, with the reason in headers (default: a table in DIR).",
)
@click.option("--from", "start", type=Start(), help="Where a new table begins (default: earliest).")
@click.option("--once", is_flag=True, help="End when everything is in the table that was in the topic at the start.")
@click.option(
    "--commit-interval", type=Duration(), default="5s", show_default=True, help="The longest time between commits."
)
@click.option("--allow-gaps", is_flag=True, help="Continue if records were deleted before they were read.")
@click.option(
    "--keep",
    "keep_ms",
    type=Duration(),
    default="1d",
    show_default=True,
    help="How long versions of the table can be read that were replaced.",
)
@click.option("--metrics", type=ListenAddress(), help="Serve /metrics for Prometheus there.")
@json_option
@cluster_command
@needs_tables
def follow(
    target: Target,
    topic: str,
    directory: Path,
    mode: str | None,
    schema_text: str | None,
    evolve: bool,
    partition_by: tuple[str, ...],
    key: tuple[str, ...],
    dead_letter_topic: str | None,
    start: StartAt | None,
    once: bool,
    commit_interval: int,
    allow_gaps: bool,
    keep_ms: int,
    metrics: Address | None,
    as_json: bool,
) -> int:
    """Write a topic to a table in an open format (Delta Lake), each record once, until it is stopped."""
    from penstock.arrow.values import parse_schema
    from penstock.topic_tables.follower import Audience, FollowedTopic, Follower, FollowOptions
    from penstock.topic_tables.opening import Wanted, open_topic_table, topic_id_text

    output = _Output(as_json)
    _compile(output)
    schema = None if schema_text is None else parse_schema(schema_text)
    with ExitStack() as opened:
        cluster, stop = opened.enter_context(wire_cluster(target)), opened.enter_context(_stopping(output))
        info = cluster.topic(topic)
        dead_letters = None
        if dead_letter_topic is not None:
            _check_dead_letter_topic(cluster, dead_letter_topic, topic)
            sending = _dead_letter_topic(target, dead_letter_topic, topic, stop, once=once)
            dead_letters = opened.enter_context(sending)
        options = FollowOptions(once, commit_interval / 1000, allow_gaps, timedelta(milliseconds=keep_ms), dead_letters)
        followed = FollowedTopic(topic, info.topic_id)
        wanted = Wanted(topic, topic_id_text(info.topic_id), mode, schema, partition_by, key, evolve)
        begin = start or StartAt("earliest")

        def infer() -> Any:
            return _inferred(cluster, followed, begin, stop, once)

        try:
            table, shape = open_topic_table(directory, wanted, infer, output.say)
        except _Stopped:
            return INTERRUPTED
        if table.positions and start is not None:
            output.say(f"The table continues where it ended: --from {start.text} counts for a new table only")
        audience = Audience(stop, output.warn, output.watch)
        follower = Follower(cluster, followed, table, shape, options, audience)
        with serve_metrics(lambda: metrics_page(follower.progress), metrics) as served:
            if served is not None:
                output.say(f"Metrics are at http://{served[0]}:{served[1]}/metrics")
            output.say(
                f"Following {topic} to {directory} from version {table.version}; group {follower.group} shows the lag"
            )
            follower.run(begin)
    place = f"topic {dead_letter_topic}" if dead_letter_topic else f"{directory}/_dead_letters"
    return output.end(follower, place, is_stopped=stop.is_set(), once=once)


def _check_dead_letter_topic(cluster: BlockingCluster, name: str, of_topic: str) -> None:
    if name == of_topic:
        raise ConfigError(f"--dead-letter-topic {name} is the topic itself: its dead letters would come back for ever")
    if name not in cluster.topics([name]):
        raise ConfigError(f"--dead-letter-topic: there is no topic {name}: penstock topics create --name {name}")


@contextmanager
def _dead_letter_topic(
    target: Target, name: str, of_topic: str, stop: threading.Event, *, once: bool
) -> Iterator[DeadLetterTopic]:
    """While no broker answers, dead letters wait, as reading does; with `once` they fail."""
    from penstock.sdk import BlockingProducer
    from penstock.topic_tables.dead_letter_topic import DeadLetterTopic

    producer = BlockingProducer(
        target.servers,
        delivery_timeout_ms=int(target.timeout_s * 1000) if once else LONGEST_MS,
        client_id="penstock-cli",
        settings=target.settings,
    )
    try:
        yield DeadLetterTopic(producer, name, of_topic, stop)
    finally:
        producer.close(0.0)  # what counts was acknowledged


class _Stopped(PenstockError):
    pass


def _inferred(
    cluster: BlockingCluster, topic: tuple[str, bytes], start: StartAt, stop: threading.Event, once: bool
) -> Any:
    from penstock.topic_tables.inference import infer
    from penstock.topic_tables.sampling import sample_values

    values = sample_values(cluster, topic, start, stop, waits=not once)
    if not values:
        if stop.is_set():
            raise _Stopped("stopped before there was a record")
        raise ConfigError(f"topic {topic[0]} has no records there to infer a schema from: give one with --schema")
    return infer(values)


def _compile(output: _Output) -> None:
    from penstock.arrow.cache.warmup import compile_all, is_warm, place_numba_cache

    place_numba_cache()
    if not is_warm():
        output.say("Compiling the decoder, once")
        compile_all()


@contextmanager
def _stopping(output: _Output) -> Iterator[threading.Event]:
    """Within it, SIGINT and SIGTERM end the command after the current commit. The second one ends it at once."""
    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        stop.set()
        for each in before:
            signal.signal(each, signal.SIG_DFL if each == signal.SIGTERM else signal.default_int_handler)
        output.say("Stopping after a last commit (again: at once)")

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Output:
    """Lines for people, or one JSON object at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._shown_at = time.monotonic()

    def say(self, line: str) -> None:
        if not self._as_json:
            click.echo(line)

    def warn(self, line: str) -> None:
        click.echo(f"penstock: {line}", err=True)

    def watch(self, progress: FollowProgress) -> None:
        if progress.commits and time.monotonic() - self._shown_at >= SHOW_S:
            self._shown_at = time.monotonic()
            self.say(f"  {_described(progress)}, lag {progress.lag}")

    def end(self, follower: Follower, dead_letters: str, *, is_stopped: bool, once: bool) -> int:
        progress = follower.progress
        if self._as_json:
            show_json({**facts(progress), "state": "stopped" if is_stopped else "done", "group": follower.group})
        commits = f"{progress.commits} commit{'s' * (progress.commits != 1)}"
        line = f"{'Stopped' if is_stopped else 'Done'}: {_described(progress)}, in {commits}"
        if progress.dead_letters:
            line += f"; {progress.dead_letters} dead letters in {dead_letters}"
        self.say(f"{line}; the table is at version {progress.version}")
        return INTERRUPTED if is_stopped and once else 0


def _described(progress: FollowProgress) -> str:
    megabytes_per_s = progress.size_bytes / 1e6 / max(progress.seconds, 1e-9)
    return f"{progress.records} records, {progress.records_per_s:.0f} per second ({megabytes_per_s:.1f} MB/s)"


def facts(progress: FollowProgress) -> Mapping[str, Any]:
    return {
        "topic": progress.topic,
        "table": progress.directory,
        "version": progress.version,
        "records": progress.records,
        "bytes": progress.size_bytes,
        "seconds": round(progress.seconds, 3),
        "records_per_s": round(progress.records_per_s, 1),
        "commits": progress.commits,
        "tombstones": progress.tombstones,
        "evolutions": progress.evolutions,
        "dead_letters": progress.dead_letters,
        "lost": progress.lost,
        "lag": progress.lag,
        "positions": {str(partition): offset for partition, offset in sorted(progress.positions.items())},
    }


def metrics_page(progress: FollowProgress) -> str:
    """Read on another thread: it takes the mappings as they are at the moment."""
    label = (progress.topic,)
    positions, ends = progress.positions, progress.ends
    families = [
        counter(
            f"penstock_table_{name}_total", f"{text} since the command started.", ("topic",), [(label, float(count))]
        )
        for name, text, count in (
            ("records", "Records that were committed to the table", progress.records),
            ("bytes", "Bytes of these records in memory", progress.size_bytes),
            ("commits", "Commits to the table", progress.commits),
            ("commit_seconds", "Time that these commits took", progress.commit_s),
            ("tombstones", "Records that delete by their key", progress.tombstones),
            ("evolutions", "Changes of the schema by values", progress.evolutions),
            ("dead_letters", "Records that did not fit the table", progress.dead_letters),
            ("lost_offsets", "Offsets that were deleted before they were read", progress.lost),
        )
    ]
    families.append(gauge("penstock_table_version", "The table's version.", ("topic",), [(label, progress.version)]))
    families += [
        gauge(
            "penstock_table_lag",
            "Committed records of the partition that the table does not have.",
            ("topic", "partition"),
            [((*label, str(one)), float(max(0, end - positions.get(one, 0)))) for one, end in sorted(ends.items())],
        ),
        gauge(
            "penstock_table_position",
            "The offset of the partition up to which the table has everything.",
            ("topic", "partition"),
            [((*label, str(one)), float(at)) for one, at in sorted(positions.items())],
        ),
    ]
    return "".join(piece for family in families for piece in render(family))
