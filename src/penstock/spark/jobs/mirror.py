"""Mirror: copies topics to another cluster, with keys, headers, timestamps, and in the same partitions.

Each topic has a streaming query with its own state and group, so it does not matter which topics are mirrored together.
The sink's option says whether a batch that is repeated after a crash is written again. The groups on the source cluster
show the lag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.jobs.clusters import COMMITTED_ONLY, Brokers, create_missing, existing_topics
from penstock.spark.jobs.errors import WrongJob
from penstock.spark.jobs.pieces import in_pieces_of, record_bytes, rows_for
from penstock.spark.jobs.places import JobPlace
from penstock.spark.jobs.running import JobProgress, JobRun, check_started, run_queries
from penstock.spark.pipeline.lag import LagMeter
from penstock.spark.sink.options import EXACTLY_ONCE
from penstock.spark.source.offsets import NO_TOPIC_ID
from penstock.wire_client.requests.metadata import TopicMetadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACEHOLDER = "{topic}"
BATCH_BYTES = 256 << 20
FOLLOW_INTERVAL = "500 milliseconds"


@dataclass(frozen=True, slots=True)
class MirrorJob:
    source: Brokers
    target: Brokers
    topics: tuple[str, ...]
    rename: str = PLACEHOLDER
    follow: bool = False
    starting: str = "earliest"
    checkpoint: Path | None = None
    delivery: str = EXACTLY_ONCE

    def places(self, source_id: str, target_id: str) -> dict[str, JobPlace]:
        """The place of each topic. The ids are the clusters' ids."""
        found = {}
        for topic in self.topics:
            into = self.renamed(topic)
            identity = {"from": source_id, "to": target_id, "topic": topic, "into": into}
            directory = None if self.checkpoint is None else self.checkpoint / topic
            found[topic] = JobPlace.of("mirror", identity, (f"topic {into} of cluster {target_id}",), directory)
        return found

    def renamed(self, topic: str) -> str:
        return self.rename.replace(PLACEHOLDER, topic)

    def prepare(self) -> list[str]:
        """Checks the topics and creates missing ones in the target cluster. Returns the names of created topics.

        Raises WrongJob, JobError.
        """
        if self.rename.count(PLACEHOLDER) != 1:
            raise WrongJob(f"--rename is '{self.rename}': write {PLACEHOLDER} in it once, for example eu.{PLACEHOLDER}")
        found = existing_topics(self.source, self.topics)
        self._refuse_itself(found)
        return create_missing(self.target, {self.renamed(name): len(info.partitions) for name, info in found.items()})

    def _refuse_itself(self, found: dict[str, TopicMetadata]) -> None:
        """Compares topic ids: two addresses may lead to one cluster."""
        with self.target.cluster() as cluster:
            there = cluster.topics([self.renamed(name) for name in found])
        for name, info in found.items():
            same = there.get(self.renamed(name))
            if same is not None and same.topic_id == info.topic_id != NO_TOPIC_ID:
                raise WrongJob(
                    f"topic {name} of {self.source.servers} would be mirrored into itself, because "
                    f"{self.target.servers} is the same cluster: use --rename copy.{PLACEHOLDER}"
                )


def run_mirror(run: JobRun, job: MirrorJob, places: Mapping[str, JobPlace]) -> JobProgress:
    """The caller must hold the locks of all places. Raises JobFailed."""
    queries: dict[str, Any] = {}
    try:
        for topic, place in places.items():
            with job.source.cluster() as cluster:
                rows = rows_for(record_bytes(cluster, [topic]))
            with in_pieces_of(run.spark, rows):
                queries[f"mirror of {topic}"] = _start(run.spark, job, topic, place)
    except BaseException:
        for query in queries.values():
            query.stop()
        raise
    with LagMeter(job.source.options) as meter:
        return run_queries(run, queries, queries, meter)


def _start(spark: SparkSession, job: MirrorJob, topic: str, place: JobPlace) -> Any:
    source = {
        **COMMITTED_ONLY,
        **job.source.source_options,
        "subscribe": topic,
        "startingOffsets": job.starting,
        "includeHeaders": "true",
        "groupId": place.group,
        "maxBytesPerTrigger": str(BATCH_BYTES),
    }
    sink = {
        **job.target.sink_options,
        "topic": job.renamed(topic),
        "deliveryGuarantee": job.delivery,
        "checkpointLocation": place.checkpoint.as_uri(),
    }
    try:
        rows = spark.readStream.format("penstock").options(**source).load()
        rows = rows.select("key", "value", "headers", "timestamp", "partition")
        writer = rows.writeStream.format("penstock").options(**sink).queryName(f"mirror of {topic}")
        trigger: Any = {"processingTime": FOLLOW_INTERVAL} if job.follow else {"availableNow": True}
        return writer.trigger(**trigger).start()
    except Exception as error:
        raise check_started(error) from error
