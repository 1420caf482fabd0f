"""Archive: topics to date-partitioned Parquet files, each record exactly once.

The manifest of the archive (`archives.manifest`) has the start of each run, so every run has a new Spark checkpoint,
which serves only to repeat a batch within the run. A topic that was deleted and created again is refused, also during
the run. A new partition is archived from its first record on.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.model.topic_partition import TopicPartition
from penstock.spark.jobs.archives.manifest import Archive, ArchivedFile, Manifest
from penstock.spark.jobs.clusters import COMMITTED_ONLY, Brokers, existing_topics
from penstock.spark.jobs.pieces import in_pieces_of, record_bytes, rows_for
from penstock.spark.jobs.running import Audience, JobProgress, JobRun, Stop, check_started, run_queries
from penstock.spark.pipeline.lag import LagMeter
from penstock.spark.source.offsets import topic_id_text
from penstock.wire_client.requests.metadata import TopicMetadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EARLIEST = -2
BATCH_BYTES = 1 << 30
"""Bytes of records per micro-batch: large files need few merges, and a crash repeats at most one batch."""
FOLLOW_INTERVAL = "10 seconds"


@dataclass(frozen=True, slots=True)
class ArchiveJob:
    brokers: Brokers
    topics: tuple[str, ...]
    directory: Path
    follow: bool = False
    date_column: str = "timestamp"
    """"timestamp", or "archived" for the day on which a record is archived."""
    max_file_bytes: int = 128 << 20
    checkpoint: Path | None = None
    allow_gaps: bool = False
    """Continue if retention has removed records before they were archived."""

    @property
    def archive(self) -> Archive:
        return Archive(self.directory.absolute())

    @property
    def log_path(self) -> Path:
        return self.archive.state / "spark.log"

    @property
    def checkpoint_path(self) -> Path:
        """Always a separate directory: it is deleted when a run begins."""
        return (self.checkpoint.absolute() if self.checkpoint else self.archive.state) / f"checkpoint-{self.group}"

    @property
    def group(self) -> str:
        """The group that shows the lag, the same for every run into this directory."""
        return f"penstock-archive-{hashlib.sha256(str(self.archive.directory).encode()).hexdigest()[:8]}"

    def check(self) -> dict[str, TopicMetadata]:
        """Raises WrongJob, JobError."""
        return existing_topics(self.brokers, self.topics)


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    progress: JobProgress
    rows: int
    """New records in the archive."""
    files: int
    """All files of the archive."""
    size_bytes: int


def run_archive(run: JobRun, job: ArchiveJob, topics: dict[str, TopicMetadata]) -> ArchiveReport:
    """The caller must hold the archive's lock. Raises WrongJob, JobFailed."""
    archive = job.archive
    with job.brokers.cluster() as cluster:
        starts = cluster.list_offsets(dict.fromkeys(_partitions(topics), EARLIEST))
        archive.create(
            {name: topic_id_text(info.topic_id) for name, info in topics.items()},
            {tp: found.offset for tp, found in starts.items()},
        )
        before = archive.recover(run.audience.warn)
        rows = rows_for(record_bytes(cluster, job.topics))
    with in_pieces_of(run.spark, rows):
        query = _start(run.spark, job, topics, before)
    with LagMeter(job.brokers.options) as meter:
        progress = run_queries(run, {"archive": query}, ["archive"], meter)
    if not run.stop.is_urgent:
        merge_files(job, run.stop, run.audience)
    after = archive.load()
    return ArchiveReport(
        progress,
        rows=_rows(after) - _rows(before),
        files=len(after.files),
        size_bytes=sum(file.size_bytes for file in after.files),
    )


def merge_files(job: ArchiveJob, stop: Stop, audience: Audience, *, is_thorough: bool = False) -> int:
    """Returns by how many the number of files was reduced. The caller must hold the lock; call `recover` first."""
    from penstock.spark.jobs.archives.compaction import compact

    def tell(old: list[ArchivedFile], new: ArchivedFile) -> None:
        audience.say(f"Merged {len(old)} files into {new.path}: {new.rows} records, {new.size_bytes / 1e6:.1f} MB")

    return compact(
        job.archive, job.max_file_bytes, is_thorough=is_thorough, watch=tell, is_stopping=lambda: stop.is_asked
    )


def starting_offsets(topics: dict[str, TopicMetadata], ends: Mapping[TopicPartition, int]) -> str:
    """The end of the archive, in the form of the source's option."""
    found: dict[str, dict[str, int]] = {}
    for tp in _partitions(topics):
        found.setdefault(tp.topic, {})[str(tp.partition)] = ends[tp]
    return json.dumps(found)


def _partitions(topics: dict[str, TopicMetadata]) -> list[TopicPartition]:
    return [TopicPartition(name, part.partition) for name, info in topics.items() for part in info.partitions]


def _start(spark: SparkSession, job: ArchiveJob, topics: dict[str, TopicMetadata], manifest: Manifest) -> Any:
    from penstock.spark.jobs.archives.datasource import FORMAT, ArchiveDataSource

    spark.dataSource.register(ArchiveDataSource)
    shutil.rmtree(job.checkpoint_path, ignore_errors=True)
    source = {
        **COMMITTED_ONLY,
        **job.brokers.source_options,
        "subscribe": ",".join(job.topics),
        "startingOffsets": starting_offsets(topics, manifest.ends),
        "includeHeaders": "true",
        "groupId": job.group,
        "failOnDataLoss": str(not job.allow_gaps).lower(),
        "maxBytesPerTrigger": str(BATCH_BYTES),
    }
    sink = {
        **job.brokers.options,
        "checkpoint": str(job.checkpoint_path),
        "path": str(job.archive.directory),
        "maxFileBytes": str(job.max_file_bytes),
        "dateColumn": job.date_column,
        "checkpointLocation": job.checkpoint_path.as_uri(),
    }
    try:
        writer = spark.readStream.format("penstock").options(**source).load().writeStream.format(FORMAT)
        writer = writer.options(**sink).queryName("archive")
        trigger: Any = {"processingTime": FOLLOW_INTERVAL} if job.follow else {"availableNow": True}
        return writer.trigger(**trigger).start()
    except Exception as error:
        raise check_started(error) from error


def _rows(manifest: Manifest) -> int:
    return sum(file.rows for file in manifest.files)
