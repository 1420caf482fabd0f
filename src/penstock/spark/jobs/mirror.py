"""Mirror: topics to topics of another cluster, with keys, headers, timestamps, and in the same partitions.

A streaming query from one cluster to the other. At least once: a batch that is run again after a crash is written
again. Its group on the source cluster shows how far it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client.cluster import TopicInfo
from penstock.spark.jobs.clusters import Brokers, create_missing, existing_topics
from penstock.spark.jobs.errors import WrongJob
from penstock.spark.jobs.pieces import in_pieces_of, record_bytes, rows_for
from penstock.spark.jobs.places import JobPlace
from penstock.spark.jobs.running import JobProgress, Stop, Watcher, check_started, run_queries
from penstock.spark.offsets import NO_TOPIC_ID
from penstock.spark.pipeline.lag import LagMeter

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

    @property
    def place(self) -> JobPlace:
        identity = {
            "from": self.source.servers,
            "to": self.target.servers,
            "topics": sorted(self.topics),
            "rename": self.rename,
        }
        return JobPlace.of("mirror", identity, self.checkpoint)

    def renamed(self, topic: str) -> str:
        return self.rename.replace(PLACEHOLDER, topic)

    def prepare(self) -> list[str]:
        """Looks for the topics and makes those that are missing on the other side, whose names it returns.

        Raises WrongJob, JobError.
        """
        if self.rename.count(PLACEHOLDER) != 1:
            raise WrongJob(f"--rename is '{self.rename}': write {PLACEHOLDER} in it once, for example eu.{PLACEHOLDER}")
        found = existing_topics(self.source, self.topics)
        self._refuse_itself(found)
        return create_missing(self.target, {self.renamed(name): len(info.partitions) for name, info in found.items()})

    def _refuse_itself(self, found: dict[str, TopicInfo]) -> None:
        """Two addresses may lead to one cluster: what tells is the topic's id."""
        with self.target.cluster() as cluster:
            there = cluster.topics([self.renamed(name) for name in found])
        for name, info in found.items():
            same = there.get(self.renamed(name))
            if same is not None and same.topic_id == info.topic_id != NO_TOPIC_ID:
                raise WrongJob(
                    f"topic {name} of {self.source.servers} would be mirrored into itself: "
                    f"{self.target.servers} is the same cluster: take --rename copy.{PLACEHOLDER}"
                )


def run_mirror(spark: SparkSession, job: MirrorJob, stop: Stop, watch: Watcher) -> JobProgress:
    """Raises JobFailed."""
    with job.source.cluster() as cluster:
        rows = rows_for(record_bytes(cluster, job.topics))
    with in_pieces_of(spark, rows):
        query = _start(spark, job)
    with LagMeter(job.source.options) as meter:
        return run_queries({"mirror": query}, "mirror", meter, stop, watch)


def _start(spark: SparkSession, job: MirrorJob) -> Any:
    from pyspark.sql import functions as f

    source = {
        **job.source.source_options,
        "subscribe": ",".join(job.topics),
        "startingOffsets": job.starting,
        "includeHeaders": "true",
        "groupId": job.place.group,
        "maxBytesPerTrigger": str(BATCH_BYTES),
    }
    before, _, after = job.rename.partition(PLACEHOLDER)
    columns = ("key", "value", "headers", "timestamp", "partition")
    try:
        rows = spark.readStream.format("penstock").options(**source).load()
        rows = rows.select(*columns, f.concat(f.lit(before), "topic", f.lit(after)).alias("topic"))
        writer = rows.writeStream.format("penstock").options(**job.target.sink_options).queryName("mirror")
        writer = writer.option("checkpointLocation", job.place.checkpoint.as_uri())
        trigger: Any = {"processingTime": FOLLOW_INTERVAL} if job.follow else {"availableNow": True}
        return writer.trigger(**trigger).start()
    except Exception as error:
        raise check_started(error) from error
