"""Replay: sends the records of an archive or a topic to a topic, unchanged, in order, at a chosen speed.

A replay works in steps. Each is a range of offsets of every partition, written by one Spark job with a task for each
partition. Its end is saved before the next step begins. So an interrupted replay resumes with its current step, whose
records may then be written twice: at least once.

The speed is relative to the records' timestamps: with 10x, a record that was written 30 s after the first one follows
after 3 s. A step takes as long as its write, at least `STEP_S`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.jobs.archives.manifest import Archive
from penstock.spark.jobs.clusters import Brokers, existing_topics, missing_topics
from penstock.spark.jobs.errors import JobFailed, WrongJob
from penstock.spark.jobs.pieces import in_pieces_of, rows_for
from penstock.spark.jobs.places import JobPlace
from penstock.spark.jobs.replay_sources import (
    ArchiveSource,
    OffsetRange,
    Offsets,
    ReplaySource,
    TopicSource,
    chosen_range,
    first_time_ms,
)
from penstock.spark.jobs.running import JobProgress, JobRun, reason_of
from penstock.spark.source.offsets import topic_id_text
from penstock.spark.state_files import replace_text
from penstock.wire_client.blocking.cluster import BlockingCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE_FILE = "replay.json"
STEP_S = 1.0
STEP_OFFSETS = 2_000_000
"""The largest number of records that a crash repeats."""


@dataclass(frozen=True, slots=True)
class ReplayJob:
    brokers: Brokers
    to_topic: str
    directory: Path | None = None
    topic: str | None = None
    """The topic of the archive, or without a directory the topic to read."""
    offsets: Mapping[int, OffsetRange] | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    speed: float | None = None
    """None: as fast as possible."""
    keep_partitions: bool = True
    checkpoint: Path | None = None

    def place(self, cluster_id: str, source: ReplaySource, target_id: str) -> JobPlace:
        """The ids identify the topics: for a topic that was created again, a replay begins again. The speed is not part
        of the identity: a replay may resume at another speed."""
        asked = None if self.offsets is None else {str(p): [r.start, r.end] for p, r in sorted(self.offsets.items())}
        identity = {
            "cluster": cluster_id,
            "from": None if self.directory is None else str(self.directory.resolve()),
            "topic": source.topic,
            "topic_id": source.topic_id,
            "offsets": asked,
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "to": self.to_topic,
            "to_id": target_id,
            "partitions": "keep" if self.keep_partitions else "hash",
        }
        target = f"topic {self.to_topic} ({target_id}) of cluster {cluster_id}"
        return JobPlace.of("replay", identity, (target,), self.checkpoint)

    def source(self, cluster: BlockingCluster) -> ReplaySource:
        """Raises WrongJob, JobError."""
        if self.directory is not None:
            return ArchiveSource(Archive(self.directory.absolute()), self.topic)
        assert self.topic is not None
        if self.topic == self.to_topic:
            raise WrongJob(f"topic {self.topic} would be replayed into itself: choose another with --to")
        found = existing_topics(self.brokers, [self.topic])[self.topic]
        return TopicSource(cluster, self.brokers.source_options, found)

    def check_target(self, source: ReplaySource) -> str:
        """The id of the topic to write to. Raises WrongJob."""
        starts, _ = source.edges()
        needed = max(starts, default=0) + 1
        with self.brokers.cluster() as cluster:
            found = cluster.topics([self.to_topic])
        if self.to_topic not in found:
            raise missing_topics(self.brokers, [self.to_topic], needed)
        count = len(found[self.to_topic].partitions)
        if self.keep_partitions and count < needed:
            raise WrongJob(
                f"topic {self.to_topic} has fewer partitions ({count}) than the source ({needed}): add partitions "
                f"(penstock topics alter --name {self.to_topic} --partitions {needed}), or use --partitions hash"
            )
        return topic_id_text(found[self.to_topic].topic_id)


@dataclass(slots=True)
class ReplayState:
    """The progress of a replay. Records between `positions` and `ends` of each partition are still to be sent."""

    positions: Offsets
    ends: Offsets
    sent: int = 0
    """Records sent in all runs."""
    path: Path | None = field(default=None, repr=False)

    @property
    def is_done(self) -> bool:
        return all(self.positions[partition] >= end for partition, end in self.ends.items())

    @property
    def left(self) -> int:
        return sum(max(0, end - self.positions[partition]) for partition, end in self.ends.items())

    @classmethod
    def load(cls, path: Path) -> ReplayState | None:
        """None if no replay has begun."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            positions, ends = ({int(p): int(at) for p, at in found[name].items()} for name in ("positions", "ends"))
            return cls(positions, ends, int(found["sent"]), path)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WrongJob(f"{path} has no readable progress ({error!r}): start again with --restart") from None

    def save(self) -> None:
        if self.path is None:
            return
        replace_text(self.path, json.dumps({"positions": self.positions, "ends": self.ends, "sent": self.sent}))


def is_unfinished(directory: Path) -> bool:
    """Whether the replay with this state has records left to send."""
    try:
        state = ReplayState.load(directory / STATE_FILE)
    except WrongJob:
        return True
    return state is not None and not state.is_done


def begin(job: ReplayJob, place: JobPlace, source: ReplaySource, *, restart: bool = False) -> tuple[ReplayState, bool]:
    """The state to resume from, and whether an earlier run began it. A finished replay stays finished: only `restart`
    sends records again."""
    path = place.directory / STATE_FILE
    known = None if restart else ReplayState.load(path)
    if known is not None and (known.sent or not known.is_done):
        return known, True
    starts, ends = chosen_range(source, job.offsets, job.since_ms, job.until_ms)
    state = ReplayState(starts, ends, 0, path)
    state.save()
    return state, False


class Pace:
    """Converts the clock to the present time of the records. `first_ms` is their first timestamp."""

    def __init__(self, speed: float, first_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._speed = speed
        self._first_ms = first_ms
        self._clock = clock
        self._begun = clock()

    def now_ms(self) -> int:
        return self._first_ms + int((self._clock() - self._begun) * 1000 * self._speed)


def next_step(positions: Offsets, ends: Offsets, limit: int = STEP_OFFSETS) -> Offsets:
    """The end of the next step towards `ends`. Partitions that do not move are left out."""
    moving = {partition: end for partition, end in ends.items() if end > positions[partition]}
    share = max(1, limit // max(1, len(moving)))
    return {partition: min(end, positions[partition] + share) for partition, end in moving.items()}


def run_replay(run: JobRun, job: ReplayJob, source: ReplaySource, state: ReplayState) -> JobProgress:
    """Raises JobFailed. `state` has the progress in any case."""
    with in_pieces_of(run.spark, rows_for(source.record_bytes())):
        return _send_all(run, job, source, state)


def _send_all(run: JobRun, job: ReplayJob, source: ReplaySource, state: ReplayState) -> JobProgress:
    progress = JobProgress(lag=state.left)
    begun = told = time.monotonic()
    told_rows = 0
    pace = _pace(run.spark, job, source, state)
    while not state.is_done and not run.stop.is_asked:
        step_begun = time.monotonic()
        ends = state.ends
        if pace is not None:
            due = source.positions_at(pace.now_ms() + 1)
            ends = {partition: min(end, due[partition]) for partition, end in ends.items()}
        step = next_step(state.positions, ends)
        if step:
            rows = _send(run.spark, job, source, {partition: state.positions[partition] for partition in step}, step)
            state.positions.update(step)
            state.sent += rows
            state.save()
            progress.rows += rows
        now = time.monotonic()
        progress.seconds, progress.lag = now - begun, state.left
        if step and not state.is_done:
            progress.rate = (progress.rows - told_rows) / (now - told) if now > told else 0.0
            told, told_rows = now, progress.rows
            run.audience.watch(progress)
        if pace is not None and not state.is_done:
            run.stop.wait(max(0.0, STEP_S - (time.monotonic() - step_begun)))
    progress.rate = progress.rows_per_s
    return progress


def _pace(spark: SparkSession, job: ReplayJob, source: ReplaySource, state: ReplayState) -> Pace | None:
    if job.speed is None or state.is_done:
        return None
    left = {partition: end for partition, end in state.ends.items() if end > state.positions[partition]}
    first_ms = first_time_ms(source, spark, {partition: state.positions[partition] for partition in left}, left)
    return None if first_ms is None else Pace(job.speed, first_ms)


def _send(spark: SparkSession, job: ReplayJob, source: ReplaySource, starts: Offsets, ends: Offsets) -> int:
    """Sends a range, and returns the number of records. Raises JobFailed."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    columns = ["key", "value", "headers", "timestamp", *(["partition"] if job.keep_partitions else [])]
    sent = Observation()
    try:
        rows = source.frame(spark, starts, ends).select(columns).observe(sent, f.count(f.lit(1)).alias("rows"))
        options = {**job.brokers.sink_options, "topic": job.to_topic}
        rows.write.format("penstock").options(**options).mode("append").save()
    except Exception as error:
        raise JobFailed(f"replay into {job.to_topic} failed: {reason_of(str(error))}") from error
    return int(sent.get["rows"])
