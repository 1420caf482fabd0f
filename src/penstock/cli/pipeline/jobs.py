"""`penstock pipeline archive | replay | aggregate | mirror`: ready-made pipelines on Spark.

Exit codes: 0 success, also for a job with --follow that is stopped; 2 wrong arguments or missing topics; 3 a failed
query, with its reason and the path of Spark's log; 130 stopped before the end; 1 any other error (no broker, a lock, no
Java). Only the commands that start Spark import it.
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
from penstock.cli.arguments.naming import TOPIC_NAME, check_topic_name
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
    delivery_option,
    follow_option,
    job_command,
    parse_offsets,
    starting_option,
    topic_option,
    topics_of,
)
from penstock.cli.reach.connection import Target, cluster_command, complete_topics
from penstock.model.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.spark.jobs.archive import ArchiveJob
    from penstock.spark.jobs.replay import ReplayState

# -- archive ----------------------------------------------------------------------------


@click.command(short_help="Write topics to Parquet files, each record exactly once.")
@topic_option(required=False)
@click.option("--to", "directory", type=LocalDirectory(), required=True, help="Directory of the archive.")
@follow_option
@click.option(
    "--date-column",
    type=click.Choice(["timestamp", "archived"]),
    default="timestamp",
    show_default=True,
    help="Date of a record: the date of its timestamp in UTC, or the day on which it is archived.",
)
@click.option(
    "--max-file-mb", type=click.IntRange(1, 4096), default=128, show_default=True, help="Largest size of a file."
)
@click.option(
    "--compact", "only_compact", is_flag=True, help="Only merge small files, as far as possible. Starts no Spark."
)
@click.option("--allow-gaps", is_flag=True, help="Continue if records were deleted before they were archived.")
@checkpoint_option("default: in the archive, which knows its own end offsets")
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
    """Write topics to Parquet files by topic and date, each record exactly once."""
    from penstock.spark.jobs.archive import ArchiveJob, merge_files, run_archive
    from penstock.spark.jobs.clusters import Brokers

    if only_compact:
        job = ArchiveJob(Brokers(target.servers), (), directory, max_file_bytes=max_file_mb << 20)
        return _compact(terminal, job, merge_files)
    names = topics_of(topics)
    job = ArchiveJob(
        brokers_of(target),
        names,
        directory,
        follow=follow,
        date_column=date_column,
        max_file_bytes=max_file_mb << 20,
        checkpoint=checkpoint,
        allow_gaps=allow_gaps,
    )
    found = job.check()
    terminal.facts |= {"archive": str(job.archive.directory), "group": job.group}
    with job.archive.lock(), terminal.running("penstock archive", job.log_path) as run:
        terminal.say(f"Archiving {', '.join(job.topics)} to {job.archive.directory}; group {job.group} shows the lag")
        report = run_archive(run, job, found)
    terminal.facts |= {"archived": report.rows, "files": report.files, "size_bytes": report.size_bytes}
    done = f"{report.rows} new records; {report.files} files of {report.size_bytes / 1e6:.1f} MB in total"
    return terminal.end(report.progress, run.stop, follow, done)


def _compact(terminal: Terminal, job: ArchiveJob, merge_files: Callable[..., int]) -> int:
    from penstock.spark.jobs.errors import WrongJob

    if not job.archive.exists:
        raise WrongJob(f"{job.archive.directory} is not an archive yet: run this without --compact first")
    with job.archive.lock(), terminal.stopping() as stop:
        job.archive.recover(terminal.warn)
        fewer = merge_files(job, stop, terminal, is_thorough=True)
        files = len(job.archive.load().files)
    if terminal.as_json:
        show_json({"archive": str(job.archive.directory), "state": "done", "files": files, "merged_away": fewer})
    terminal.say(f"Done: {files} files, {fewer} fewer than before.")
    return INTERRUPTED if stop.is_asked else 0


# -- replay -----------------------------------------------------------------------------


@click.command(short_help="Send the records of an archive or a topic to a topic.")
@click.option("--from", "directory", type=LocalDirectory(), help="Archive to read from.")
@click.option("--topic", type=TOPIC_NAME, help="Topic of the archive, if it holds several.")
@click.option("--from-topic", type=TOPIC_NAME, help="Topic to read from.", shell_complete=complete_topics)
@click.option(
    "--offsets", metavar="P:FROM-TO[,...]", help="Replay only these offsets, TO excluded, for example 0:100-200,1:50-"
)
@click.option("--since", type=PointInTime(), help="Start at the first record at or after TIME.")
@click.option("--until", type=PointInTime(), help="Stop before the first record at or after TIME.")
@click.option(
    "--to", "to_topic", type=TOPIC_NAME, required=True, help="Topic to write to.", shell_complete=complete_topics
)
@click.option(
    "--speed", type=Speed(), default="max", show_default=True, help="Speed relative to the records' timestamps."
)
@click.option(
    "--partitions",
    type=click.Choice(["keep", "hash"]),
    default="keep",
    show_default=True,
    help="Keep each record's partition, or choose it by the hash of the key.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="Start from the beginning, even if an earlier run has sent records: all are sent again.",
)
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
    """Send the records of an archive or a topic to a topic, unchanged and at least once."""
    from penstock.spark.jobs.replay import ReplayJob, begin, is_unfinished, run_replay

    if (directory is None) == (from_topic is None):
        raise ConfigError("give either --from DIR or --from-topic TOPIC")
    if topic is not None and directory is None:
        raise ConfigError("--topic goes with --from; use --from-topic alone to read a topic")
    if offsets is not None and (since is not None or until is not None):
        raise ConfigError("give either --offsets or --since and --until")
    if since is not None and until is not None and since >= until:
        raise ConfigError("--since is not before --until: no record is between them")
    job = ReplayJob(
        brokers_of(target),
        to_topic,
        directory,
        topic if directory is not None else from_topic,
        offsets=parse_offsets(offsets),
        since_ms=_milliseconds(since),
        until_ms=_milliseconds(until),
        speed=None if speed == float("inf") else speed,
        keep_partitions=partitions == "keep",
        checkpoint=checkpoint,
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
                if is_new:  # nothing has begun, so there is nothing to resume
                    shutil.rmtree(place.directory)
                raise
            terminal.facts |= {"to": to_topic, "checkpoint": str(place.directory), "resumed_after": state.sent}
            terminal.say(f"Progress is kept in {place.directory}")
            if is_resumed and state.is_done:
                return _done_already(terminal, state, to_topic)
            if is_resumed:
                terminal.say(f"Resuming after {state.sent} records: the records of the last step may be sent again")
            with terminal.running("penstock replay", place.log_path) as run:
                try:
                    progress = run_replay(run, job, source, state)
                except PenstockError as error:
                    raise type(error)(f"{error}. {state.sent} records are sent; run this again to resume") from error
    terminal.facts |= _how_far(state)
    return terminal.end(progress, run.stop, False, f"{state.sent} records sent to {to_topic}")


def _done_already(terminal: Terminal, state: ReplayState, to_topic: str) -> int:
    if terminal.as_json:
        show_json({**terminal.facts, **_how_far(state), "state": "done already", "rows": 0, "lag": 0})
    terminal.say(f"Done already: an earlier run sent {state.sent} records to {to_topic}; --restart sends them again.")
    return 0


def _how_far(state: ReplayState) -> dict[str, object]:
    positions = {str(partition): offset for partition, offset in sorted(state.positions.items())}
    return {"sent": state.sent, "positions": positions}


def _milliseconds(when: datetime | None) -> int | None:
    return None if when is None else round(when.timestamp() * 1000)


# -- aggregate --------------------------------------------------------------------------


def _fields(text: str | None) -> tuple[str, ...]:
    return tuple(field.strip() for field in (text or "").split(",") if field.strip())


@click.command(short_help="Count and sum the JSON values of topics by window.")
@topic_option()
@click.option("--window", required=True, help="Length of a window, for example '1 minute'.")
@click.option("--slide", help="Time between the starts of two windows (default: the window's length).")
@click.option("--watermark", default="30 seconds", show_default=True, help="How late a record may arrive.")
@click.option(
    "--group-by", metavar="PATH[,...]", help="Group by these fields of the JSON values, for example user.country,page."
)
@click.option("--count", "has_count", is_flag=True, help="Count the records.")
@click.option("--sum", "sums", metavar="PATH[,...]", help="Sum these fields.")
@click.option(
    "--event-time",
    metavar="PATH",
    help="Field with the event time, in ms or ISO 8601 (default: the record's timestamp).",
)
@click.option("--to-topic", type=TOPIC_NAME, help="Topic for the results, as JSON.", shell_complete=complete_topics)
@click.option("--to-table", type=LocalDirectory(), help="Directory for the results, as Parquet by date.")
@click.option(
    "--dead-letter", type=TOPIC_NAME, help="Topic for records that cannot be read.", shell_complete=complete_topics
)
@starting_option
@delivery_option
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
    delivery: str,
    follow: bool,
    checkpoint: Path | None,
) -> int:
    """Count and sum the JSON values of topics by window. Write the results to a topic, to Parquet, or both."""
    from penstock.spark.jobs.aggregate import METRICS, AggregateJob, run_aggregate
    from penstock.spark.jobs.aggregate_plan import AggregatePlan

    plan = AggregatePlan(window, slide, watermark, _fields(group_by), _fields(sums), has_count, event_time)
    plan.check()
    job = AggregateJob(
        brokers_of(target),
        topics_of(topics),
        plan,
        to_topic=to_topic,
        to_table=to_table,
        dead_letters=dead_letter,
        follow=follow,
        starting=starting,
        checkpoint=checkpoint,
        delivery=delivery,
    )
    job.check()
    place = job.place(job.brokers.cluster_id())
    place.make()
    terminal.facts |= {"checkpoint": str(place.directory), "group": place.group}
    with place.lock(), terminal.running("penstock aggregate", place.log_path) as run:
        terminal.say(f"Progress is kept in {place.directory}; group {place.group} shows the lag")
        if to_topic is not None and job.result_delivery != delivery:
            terminal.say(f"Results reach topic {to_topic} at least once, because they also go to a table")
        progress = run_aggregate(run, job, place)
    bad = int(progress.metrics.get(METRICS, {}).get("bad", 0))
    terminal.facts["bad_records"] = bad
    letters = f" (see {dead_letter})" if dead_letter and bad else ""
    return terminal.end(progress, run.stop, follow, f"{bad} bad records{letters}")


# -- mirror -----------------------------------------------------------------------------


@click.command(short_help="Copy topics to another cluster, unchanged.")
@topic_option()
@click.option("--from", "source", required=True, metavar="HOST:PORT[,...]", help="Cluster to read from.")
@click.option("--to", "destination", required=True, metavar="HOST:PORT[,...]", help="Cluster to write to.")
@click.option("--from-config", metavar="FILE", help="Properties file with client settings for --from.")
@click.option("--to-config", metavar="FILE", help="Properties file with client settings for --to.")
@click.option(
    "--rename", metavar="NAME", default="{topic}", show_default=True, help="Name of each copy, for example eu.{topic}."
)
@starting_option
@delivery_option
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
    delivery: str,
    follow: bool,
    checkpoint: Path | None,
) -> int:
    """Copy topics to another cluster, unchanged, in the same partitions, exactly once."""
    from penstock.spark.jobs.mirror import PLACEHOLDER, MirrorJob, run_mirror

    job = MirrorJob(
        brokers_at(source, from_config),
        brokers_at(destination, to_config),
        topics_of(topics),
        rename,
        follow=follow,
        starting=starting,
        checkpoint=checkpoint,
        delivery=delivery,
    )
    if PLACEHOLDER in rename:  # otherwise `prepare` refuses it
        for name in map(job.renamed, job.topics):
            check_topic_name(name)
    made = job.prepare()
    if made:
        terminal.say(f"Created {', '.join(made)} at {destination}")
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
        with terminal.running("penstock mirror", log_path) as run:
            for topic, place in places.items():
                terminal.say(
                    f"Progress of {topic} is kept in {place.directory}; group {place.group} at {source} shows the lag"
                )
            progress = run_mirror(run, job, places)
    return terminal.end(progress, run.stop, follow, f"{', '.join(job.topics)} to {destination}")


JOBS: tuple[click.Command, ...] = (archive, replay, aggregate, mirror)
