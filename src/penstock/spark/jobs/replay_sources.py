"""The sources of a replay: an archive or a topic. Both are ranges of offsets by partition.

Times are positions: `positions_at(t)` is the first record of each partition at or after t. Later records of
the log count as later, whatever their timestamps, so the orders by offset and by time never conflict.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.model.topic_partition import TopicPartition
from penstock.spark.jobs.archives.manifest import Archive, ArchivedFile, Manifest
from penstock.spark.jobs.errors import JobError, WrongJob
from penstock.spark.jobs.pieces import record_bytes
from penstock.spark.source.offsets import topic_id_text
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.metadata import TopicMetadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATEST, EARLIEST = -1, -2
HEAD_OFFSETS = 1000
"""The range in which the first record of a partition is searched; there may be holes."""

SETTLED_WITHIN_S = 5.0

Offsets = dict[int, int]
"""Offsets by partition."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """From `start` up to `end`, which is excluded. None means the end of the source."""

    start: int | None = None
    end: int | None = None


class ReplaySource(Protocol):
    @property
    def topic(self) -> str: ...

    @property
    def topic_id(self) -> str: ...

    def edges(self) -> tuple[Offsets, Offsets]:
        """The first and the end offset of each partition."""
        ...

    def positions_at(self, time_ms: int) -> Offsets:
        """Partitions with only older records are at their end. Cheap while times grow from call to call."""
        ...

    def record_bytes(self) -> float:
        """The approximate size of the largest records, compressed."""
        ...

    def frame(self, spark: SparkSession, starts: Offsets, ends: Offsets) -> DataFrame:
        """The rows of each partition in one task, in order."""
        ...


class TopicSource:
    def __init__(self, cluster: BlockingCluster, options: Mapping[str, str], topic: TopicMetadata) -> None:
        self._cluster = cluster
        self._options = options
        self.topic = topic.name
        self.topic_id = topic_id_text(topic.topic_id)
        self._partitions = [TopicPartition(topic.name, part.partition) for part in topic.partitions]

    def edges(self) -> tuple[Offsets, Offsets]:
        return self._ask(EARLIEST), self._ask(LATEST)

    def positions_at(self, time_ms: int) -> Offsets:
        found = self._ask(time_ms)
        ends = self._ask(LATEST) if LATEST in found.values() else {}
        return {partition: ends[partition] if offset < 0 else offset for partition, offset in found.items()}

    def record_bytes(self) -> float:
        return record_bytes(self._cluster, [self.topic])

    def frame(self, spark: SparkSession, starts: Offsets, ends: Offsets) -> DataFrame:
        whole = {
            edge: {self.topic: {str(partition): offsets[partition] for partition in ends}}
            for edge, offsets in (("startingOffsets", starts), ("endingOffsets", ends))
        }
        options = {
            **self._options,
            "assign": json.dumps({self.topic: sorted(ends)}),
            "includeHeaders": "true",
            **{edge: json.dumps(offsets) for edge, offsets in whole.items()},
        }
        return spark.read.format("penstock").options(**options).load()

    def _ask(self, time_ms: int) -> Offsets:
        found = self._cluster.list_offsets(dict.fromkeys(self._partitions, time_ms))
        return {tp.partition: answer.offset for tp, answer in found.items()}


class ArchiveSource:
    def __init__(self, archive: Archive, topic: str | None) -> None:
        """`topic` may be None if the archive has only one. Raises WrongJob."""
        if not archive.exists:
            raise WrongJob(f"{archive.directory} is not an archive: `penstock pipeline archive` creates one")
        manifest = _settled(archive)
        topics = sorted({file.topic for file in manifest.files})
        if not topics:
            raise WrongJob(f"archive {archive.directory} has no records: run `penstock pipeline archive` first")
        if topic is None and len(topics) != 1:
            raise WrongJob(f"archive {archive.directory} has {', '.join(topics)}: choose with --topic")
        self.topic = topic or topics[0]
        if self.topic not in topics:
            raise WrongJob(f"archive {archive.directory} has no topic {self.topic}, only {', '.join(topics)}")
        self.topic_id = manifest.topic_ids.get(self.topic, "")
        self._archive = archive
        self._files: dict[int, list[ArchivedFile]] = {}
        for file in manifest.files_of(self.topic):
            self._files.setdefault(file.partition, []).append(file)
        self._timelines: dict[int, Timeline] = {}
        self._asked_ms: int | None = None
        self._is_registered = False

    def edges(self) -> tuple[Offsets, Offsets]:
        return (
            {partition: min(file.first for file in files) for partition, files in self._files.items()},
            {partition: max(file.last for file in files) + 1 for partition, files in self._files.items()},
        )

    def positions_at(self, time_ms: int) -> Offsets:
        from penstock.spark.jobs.archives.reading import read_in_order

        _, ends = self.edges()
        if self._asked_ms is not None and time_ms < self._asked_ms:
            self._timelines.clear()  # timelines only move forward
        self._asked_ms = time_ms
        for partition, files in self._files.items():
            if partition not in self._timelines:
                batches = read_in_order(self._archive.directory, files, 0, ends[partition], ("offset", "timestamp"))
                self._timelines[partition] = Timeline(batches, ends[partition])
        return {partition: timeline.position_at(time_ms) for partition, timeline in self._timelines.items()}

    def record_bytes(self) -> float:
        return max(file.size_bytes / file.rows for files in self._files.values() for file in files)

    def frame(self, spark: SparkSession, starts: Offsets, ends: Offsets) -> DataFrame:
        from penstock.spark.jobs.archives.datasource import FORMAT, ArchiveDataSource

        if not self._is_registered:
            spark.dataSource.register(ArchiveDataSource)
            self._is_registered = True
        options = {
            "path": str(self._archive.directory),
            "topic": self.topic,
            "startOffsets": json.dumps({partition: starts[partition] for partition in ends}),
            "endOffsets": json.dumps(ends),
        }
        return spark.read.format(FORMAT).options(**options).load()


def _settled(archive: Archive) -> Manifest:
    """The manifest without a merge under way. Waits for another process's merge, or finishes one after a crash."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while (found := archive.load()).swap is not None and time.monotonic() < deadline:
        try:
            with archive.lock():
                archive.recover()
        except JobError:
            time.sleep(0.05)  # another process has the lock
    return found


class Timeline:
    """Offsets and times of one partition, in order, read only as far as needed."""

    def __init__(self, batches: Iterator[Any], end: int) -> None:
        self._batches = batches
        self._end = end
        self._batch: Any = None

    def position_at(self, time_ms: int) -> int:
        import numpy as np
        import pyarrow as pa

        while True:
            if self._batch is None:
                self._batch = next(self._batches, None)
                if self._batch is None:
                    return self._end
            times = self._batch.column("timestamp").cast(pa.int64()).to_numpy()
            later = np.flatnonzero(times >= time_ms * 1000)
            if len(later):
                self._batch = self._batch.slice(int(later[0]))
                return int(self._batch.column("offset")[0].as_py())
            self._batch = None


def chosen_range(
    source: ReplaySource, offsets: Mapping[int, OffsetRange] | None, since_ms: int | None, until_ms: int | None
) -> tuple[Offsets, Offsets]:
    """The requested range of the source, within its bounds. Raises WrongJob."""
    first, last = source.edges()
    starts, ends = dict(first), dict(last)
    if since_ms is not None:
        starts = source.positions_at(since_ms)
    if until_ms is not None:
        ends = source.positions_at(until_ms)
    if offsets is not None:
        _refuse_unknown(offsets, sorted(first))
        starts = {partition: _or(asked.start, first[partition]) for partition, asked in offsets.items()}
        ends = {partition: _or(asked.end, last[partition]) for partition, asked in offsets.items()}
        for partition, start in starts.items():
            if start < first[partition] or ends[partition] > last[partition]:
                raise WrongJob(
                    f"--offsets wants {start} to {ends[partition]} of partition {partition}, which has "
                    f"{first[partition]} to {last[partition]}"
                )
    return starts, {partition: max(end, starts[partition]) for partition, end in ends.items()}


def _refuse_unknown(offsets: Mapping[int, OffsetRange], there: Sequence[int]) -> None:
    for partition in offsets:
        if partition not in there:
            raise WrongJob(f"--offsets has partition {partition}; the partitions are {', '.join(map(str, there))}")


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def first_time_ms(source: ReplaySource, spark: SparkSession, starts: Offsets, ends: Offsets) -> int | None:
    """The oldest timestamp of the partitions' first records. None if there are no records."""
    from pyspark.sql import functions as f

    head = {partition: min(ends[partition], start + HEAD_OFFSETS) for partition, start in starts.items()}
    for upto in (head, ends):
        oldest = f.min(f.unix_millis("timestamp")).alias("oldest")
        by_partition = source.frame(spark, starts, upto).groupBy("partition").agg(oldest).collect()
        if by_partition:
            return min(int(row["oldest"]) for row in by_partition)
    return None
