"""`penstock pipeline archive | replay | aggregate | mirror`: ready-made pipelines on Spark.

Exit codes: 0 all is well, also for a job with --follow that was told to stop; 2 wrong arguments, or topics that are not
there; 3 the query failed, with the reason in one sentence and the place of Spark's log; 1 anything else (no broker, a
lock, no Java); 130 stopped before it was done. Spark is imported by the commands that start it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli import INTERRUPTED
from penstock.cli.arguments.times import PointInTime
from penstock.cli.output import show_json
from penstock.cli.pipeline.job_command import (
    STATE,
    LocalDirectory,
    Speed,
    Terminal,
    brokers_at,
    brokers_of,
    checkpoint_option,
    follow_option,
    job_command,
    parse_offsets,
    topic_option,
    topics_of,
)
from penstock.cli.reach.connection import Target, cluster_command, complete_topics
from penstock.model.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.spark.jobs.archive import ArchiveJob
    from penstock.spark.jobs.replay import ReplayState

# -- archive ----------------------------------------------------------------------------


@click.command()
@topic_option(required=False)
@click.option("--to", "directory", type=LocalDirectory(), required=True, help="Directory of the archive.")
@follow_option
@click.option(
    "--date-column",
    type=click.Choice(["timestamp", "archived"]),
    default="timestamp",
    show_default=True,
    help="What a record's date is: its timestamp's, in UTC, or that of the day on which it is archived.",
)
@click.option(
    "--max-file-mb", type=click.IntRange(1, 4096), default=128, show_default=True, help="How large files grow."
)
@click.option("--compact", "only_compact", is_flag=True, help="Only merge small files, as far as possible; no Spark.")
@click.option("--allow-gaps", is_flag=True, help="Go on when records were deleted before they were archived.")
@checkpoint_option("default: in the archive; an archive itself says where it ends")
@cluster_command
@job_command
def archive(
    target: Target,
    terminal: Terminal,
    topics: tuple[str, ...],
    directory: Path,
    follow: bool,
    date_column: str,
    max_file_mb: int,
    only_compact: bool,
    allow_gaps: bool,
    checkpoint: Path | None,
) -> int:
    """Topics to Parquet files by topic and date, each record exactly once."""
    from penstock.spark.jobs.archive import ArchiveJob, merge_files, run_archive
    from penstock.spark.jobs.clusters import Brokers

    if only_compact:
        job = ArchiveJob(Brokers(target.servers), (), directory, max_file_bytes=max_file_mb << 20)
        return _compact(terminal, job, merge_files)
    names = topics_of(topics)
    job = ArchiveJob(
        brokers_of(target), names, directory, follow, date_column, max_file_mb << 20, checkpoint, allow_gaps
    )
    found = job.check()
    terminal.facts |= {"archive": str(job.archive.directory), "group": job.group}
    with job.archive.lock(), terminal.spark("penstock archive", job.log_path) as spark, terminal.stopping() as stop:
        terminal.say(
            f"Archiving {', '.join(job.topics)} to {job.archive.directory}; its lag is that of group {job.group}"
        )
        report = run_archive(spark, job, found, stop, terminal.watch, terminal.say, terminal.warn)
    terminal.facts |= {"archived": report.rows, "files": report.files, "size_bytes": report.size_bytes}
    done = f"{report.rows} new records; {report.files} files of {report.size_bytes / 1e6:.1f} MB in all"
    return terminal.end(report.progress, stop, follow, done)


def _compact(terminal: Terminal, job: ArchiveJob, merge_files: Callable[..., int]) -> int:
    from penstock.spark.jobs.errors import WrongJob

    if not job.archive.exists:
        raise WrongJob(f"{job.archive.directory} is no archive yet: run this without --compact first")
    with job.archive.lock(), terminal.stopping() as stop:
        job.archive.recover(terminal.warn)
        fewer = merge_files(job, stop, terminal.say, is_thorough=True)
        files = len(job.archive.load().files)
    if terminal.as_json:
        show_json({"archive": str(job.archive.directory), "state": "done", "files": files, "merged_away": fewer})
    terminal.say(f"Done: {files} files, {fewer} fewer than before.")
    return INTERRUPTED if stop.is_asked else 0


# -- replay -----------------------------------------------------------------------------


@click.command()
@click.option("--from", "directory", type=LocalDirectory(), help="An archive to take the records from.")
@click.option("--topic", help="The topic of the archive, if it has several.")
@click.option("--from-topic", help="A topic to take the records from.", shell_complete=complete_topics)
@click.option(
    "--offsets", metavar="P:FROM-TO[,...]", help="Only these offsets, TO not included, for example 0:100-200,1:50-"
)
@click.option("--since", type=PointInTime(), help="Only from the first record that is not older on.")
@click.option("--until", type=PointInTime(), help="Only up to the first record that is not older.")
@click.option("--to", "to_topic", required=True, help="The topic to write to.", shell_complete=complete_topics)
@click.option("--speed", type=Speed(), default="max", show_default=True, help="By the records' timestamps.")
@click.option(
    "--partitions",
    type=click.Choice(["keep", "hash"]),
    default="keep",
    show_default=True,
    help="The same partition as before, or that of the key.",
)
@click.option("--restart", is_flag=True, help="Begin anew what an earlier run began or finished: all is sent again.")
@checkpoint_option(STATE)
@cluster_command
@job_command
def replay(
    target: Target,
    terminal: Terminal,
    directory: Path | None,
    topic: str | None,
    from_topic: str | None,
    offsets: str | None,
    since: datetime | None,
    until: datetime | None,
    to_topic: str,
    speed: float,
    partitions: str,
    restart: bool,
    checkpoint: Path | None,
) -> int:
    """Records of an archive or a topic into a topic, as they were. At least once."""
    from penstock.spark.jobs.replay import ReplayJob, begin, is_unfinished, run_replay

    if (directory is None) == (from_topic is None):
        raise ConfigError("give either --from DIR or --from-topic TOPIC")
    if topic is not None and directory is None:
        raise ConfigError("--topic is for archives: the topic to read is --from-topic")
    if offsets is not None and (since is not None or until is not None):
        raise ConfigError("give either --offsets or --since and --until")
    job = ReplayJob(
        brokers_of(target),
        to_topic,
        directory,
        topic if directory is not None else from_topic,
        parse_offsets(offsets),
        _milliseconds(since),
        _milliseconds(until),
        None if speed == float("inf") else speed,
        partitions == "keep",
        checkpoint,
    )
    with job.brokers.cluster() as cluster:
        source = job.source(cluster)
        target_id = job.check_target(source)
        place = job.place(job.brokers.cluster_id(), source, target_id)
        is_new = not place.directory.exists()
        place.make(is_unfinished)
        with place.lock():
            try:
                state, is_resumed = begin(job, place, source, restart=restart)
            except PenstockError:
                if is_new:  # nothing was begun: there is nothing to go on with
                    shutil.rmtree(place.directory)
                raise
            terminal.facts |= {"to": to_topic, "checkpoint": str(place.directory), "resumed_after": state.sent}
            terminal.say(f"How far it is: {place.directory}")
            if is_resumed and state.is_done:
                return _done_already(terminal, state, to_topic)
            if is_resumed:
                terminal.say(f"Going on after {state.sent} records: those of the last step may be sent again")
            with terminal.spark("penstock replay", place.log_path) as spark, terminal.stopping() as stop:
                try:
                    progress = run_replay(spark, job, source, state, stop, terminal.watch)
                except PenstockError as error:
                    raise type(error)(f"{error}. {state.sent} records are sent; run this again to go on") from error
    terminal.facts |= _how_far(state)
    return terminal.end(progress, stop, False, f"{state.sent} records sent to {to_topic}")


def _done_already(terminal: Terminal, state: ReplayState, to_topic: str) -> int:
    if terminal.as_json:
        show_json({**terminal.facts, **_how_far(state), "state": "done already", "rows": 0, "lag": 0})
    terminal.say(
        f"Done already: {state.sent} records sent to {to_topic} by an earlier run; --restart sends them again."
    )
    return 0


def _how_far(state: ReplayState) -> dict[str, object]:
    positions = {str(partition): offset for partition, offset in sorted(state.positions.items())}
    return {"sent": state.sent, "positions": positions}


def _milliseconds(when: datetime | None) -> int | None:
    return None if when is None else round(when.timestamp() * 1000)


# -- aggregate --------------------------------------------------------------------------


def _fields(text: str | None) -> tuple[str, ...]:
    return tuple(field.strip() for field in (text or "").split(",") if field.strip())


@click.command()
@topic_option()
@click.option("--window", required=True, help="Length of a window, for example '1 minute'.")
@click.option("--slide", help="A window begins that often (default: when the last one ends).")
@click.option("--watermark", default="30 seconds", show_default=True, help="How late a record may come.")
@click.option("--group-by", metavar="PATH[,...]", help="Fields of the JSON values, for example user.country,page")
@click.option("--count", "has_count", is_flag=True, help="Count the records.")
@click.option("--sum", "sums", metavar="PATH[,...]", help="Sum up these fields.")
@click.option("--event-time", metavar="PATH", help="Field with the time, ms or ISO 8601 (default: timestamp).")
@click.option("--to-topic", help="A topic for the results, as JSON.", shell_complete=complete_topics)
@click.option("--to-table", type=LocalDirectory(), help="A directory for the results, as Parquet by date.")
@click.option("--dead-letter", help="A topic for records that cannot be read.", shell_complete=complete_topics)
@click.option("--starting", type=click.Choice(["earliest", "latest"]), default="earliest", show_default=True)
@follow_option
@checkpoint_option(STATE)
@cluster_command
@job_command
def aggregate(
    target: Target,
    terminal: Terminal,
    topics: tuple[str, ...],
    window: str,
    slide: str | None,
    watermark: str,
    group_by: str | None,
    has_count: bool,
    sums: str | None,
    event_time: str | None,
    to_topic: str | None,
    to_table: Path | None,
    dead_letter: str | None,
    starting: str,
    follow: bool,
    checkpoint: Path | None,
) -> int:
    """Windowed counts and sums over JSON values, to a topic and to Parquet."""
    from penstock.spark.jobs.aggregate import METRICS, AggregateJob, run_aggregate
    from penstock.spark.jobs.aggregate_plan import AggregatePlan

    plan = AggregatePlan(window, slide, watermark, _fields(group_by), _fields(sums), has_count, event_time)
    plan.check()
    job = AggregateJob(
        brokers_of(target), topics_of(topics), plan, to_topic, to_table, dead_letter, follow, starting, checkpoint
    )
    job.check()
    place = job.place(job.brokers.cluster_id())
    place.make()
    terminal.facts |= {"checkpoint": str(place.directory), "group": place.group}
    with (
        place.lock(),
        terminal.spark("penstock aggregate", place.log_path) as spark,
        terminal.stopping() as stop,
    ):
        terminal.say(f"How far it is: {place.directory}; its lag is that of group {place.group}")
        progress = run_aggregate(spark, job, place, stop, terminal.watch)
    bad = int(progress.metrics.get(METRICS, {}).get("bad", 0))
    terminal.facts["bad_records"] = bad
    letters = f" (see {dead_letter})" if dead_letter and bad else ""
    return terminal.end(progress, stop, follow, f"{bad} bad records{letters}")


# -- mirror -----------------------------------------------------------------------------


@click.command()
@topic_option()
@click.option("--from", "source", required=True, metavar="HOST:PORT[,...]", help="The cluster to read from.")
@click.option("--to", "destination", required=True, metavar="HOST:PORT[,...]", help="The cluster to write to.")
@click.option("--from-config", metavar="FILE", help="Client settings for it as a properties file.")
@click.option("--to-config", metavar="FILE", help="Client settings for it as a properties file.")
@click.option("--rename", default="{topic}", show_default=True, help="Names on the other side, for example eu.{topic}")
@click.option("--starting", type=click.Choice(["earliest", "latest"]), default="earliest", show_default=True)
@follow_option
@checkpoint_option(STATE)
@job_command
def mirror(
    terminal: Terminal,
    topics: tuple[str, ...],
    source: str,
    destination: str,
    from_config: str | None,
    to_config: str | None,
    rename: str,
    starting: str,
    follow: bool,
    checkpoint: Path | None,
) -> int:
    """Topics to another cluster, as they are, in the same partitions. At least once."""
    from penstock.spark.jobs.mirror import MirrorJob, run_mirror

    job = MirrorJob(
        brokers_at(source, from_config),
        brokers_at(destination, to_config),
        topics_of(topics),
        rename,
        follow,
        starting,
        checkpoint,
    )
    made = job.prepare()
    if made:
        terminal.say(f"Made {', '.join(made)} at {destination}")
    places = job.places(job.source.cluster_id(), job.target.cluster_id())
    for place in places.values():
        place.make()
    terminal.facts |= {
        "created": made,
        "checkpoints": {topic: str(place.directory) for topic, place in places.items()},
        "groups": {topic: place.group for topic, place in places.items()},
    }
    with ExitStack() as locked:
        for _, place in sorted(places.items()):
            locked.enter_context(place.lock())
        log_path = min(places.items())[1].log_path
        with terminal.spark("penstock mirror", log_path) as spark, terminal.stopping() as stop:
            for topic, place in places.items():
                terminal.say(
                    f"How far {topic} is: {place.directory}; its lag is that of group {place.group} at {source}"
                )
            progress = run_mirror(spark, job, places, stop, terminal.watch)
    return terminal.end(progress, stop, follow, f"{', '.join(job.topics)} to {destination}")


JOBS: tuple[click.Command, ...] = (archive, replay, aggregate, mirror)
