"""Aggregate: windowed counts and sums over JSON values, to a topic and to a table of Parquet files.

One stateful query in append mode computes the results. For a topic alone, the sink delivers exactly once. With a table,
each micro-batch goes to the table first, where a repeated batch replaces its own files (exactly once), and then to the
topic by a batch write (at least once). Bad records are counted, and a second query sends them to the dead-letter topic.

    DIR/date=2026-01-31/batch-<number>-<n>.parquet      the date of window_start
    DIR/_penstock/table.json                            the job that owns the table
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.jobs.aggregate_plan import REASON, AggregatePlan
from penstock.spark.jobs.clusters import COMMITTED_ONLY, Brokers, existing_topics
from penstock.spark.jobs.errors import WrongJob
from penstock.spark.jobs.places import JobPlace
from penstock.spark.jobs.running import JobProgress, JobRun, check_started, run_queries
from penstock.spark.pipeline.lag import LagMeter
from penstock.spark.sink.options import AT_LEAST_ONCE, EXACTLY_ONCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_BYTES = 256 << 20
FOLLOW_INTERVAL = "1 second"
METRICS = "records"


@dataclass(frozen=True, slots=True)
class AggregateJob:
    brokers: Brokers
    topics: tuple[str, ...]
    plan: AggregatePlan
    to_topic: str | None = None
    to_table: Path | None = None
    dead_letters: str | None = None
    follow: bool = False
    starting: str = "earliest"
    checkpoint: Path | None = None
    delivery: str = EXACTLY_ONCE

    @property
    def result_delivery(self) -> str:
        """How results reach the topic. With a table they are written in `foreachBatch`, which has no batch id."""
        return self.delivery if self.to_table is None else AT_LEAST_ONCE

    def place(self, cluster_id: str) -> JobPlace:
        plan = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.plan).items()}
        table = None if self.to_table is None else str(self.to_table.resolve())
        identity = {
            "cluster": cluster_id,
            "topics": sorted(self.topics),
            "to_topic": self.to_topic,
            "to_table": table,
            "dead_letters": self.dead_letters,
            **plan,
        }
        topic = None if self.to_topic is None else f"topic {self.to_topic} of cluster {cluster_id}"
        targets = (topic, table and f"table {table}")
        return JobPlace.of("aggregate", identity, tuple(target for target in targets if target), self.checkpoint)

    def check(self) -> None:
        """Raises WrongJob, JobError."""
        self.plan.check()
        if self.to_topic is None and self.to_table is None:
            raise WrongJob("the results have no target: give --to-topic, --to-table or both")
        outputs = [topic for topic in (self.to_topic, self.dead_letters) if topic is not None]
        for topic in outputs:
            if topic in self.topics:
                raise WrongJob(f"topic {topic} would be both read and written: choose another")
        existing_topics(self.brokers, [*self.topics, *outputs])


class ResultTable:
    """Parquet files of results. The names of a batch's files have its number, so a repeated batch replaces them."""

    def __init__(self, directory: Path, place: JobPlace) -> None:
        self._directory = directory.absolute()
        self._staging = self._directory / "_penstock" / "staging"
        self._place = place

    def claim(self) -> None:
        """Claims the table for one checkpoint: batches of another would replace its files. Raises WrongJob."""
        path = self._directory / "_penstock" / "table.json"
        token_path = self._place.checkpoint / "table-token"
        if not token_path.exists():
            token_path.parent.mkdir(parents=True, exist_ok=True)
            token_path.write_text(uuid.uuid4().hex, encoding="utf-8")
        token = token_path.read_text(encoding="utf-8")
        if not path.exists():
            if any(self._directory.glob("**/*.parquet")):
                raise WrongJob(f"{self._directory} has other Parquet files: choose a directory for this table alone")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"job": token}), encoding="utf-8")
        if json.loads(path.read_text(encoding="utf-8")).get("job") != token:
            raise WrongJob(
                f"table {self._directory} was written by a job with other arguments or another checkpoint than "
                f"{self._place.directory}: use the same again, or choose another directory"
            )

    def write(self, rows: DataFrame, batch_id: int) -> None:
        from pyspark.sql import functions as f

        # Otherwise timestamps have a deprecated type that some tools misread. The session belongs to the query.
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        staged = rows.withColumn("date", f.to_date("window_start")).repartition("date")
        staged.write.partitionBy("date").mode("overwrite").parquet(self._staging.as_uri())
        for old in self._directory.glob(f"date=*/batch-{batch_id:010d}-*.parquet"):
            old.unlink()
        for number, path in enumerate(sorted(self._staging.glob("date=*/*.parquet"))):
            day = self._directory / path.parent.name
            day.mkdir(exist_ok=True)
            path.replace(day / f"batch-{batch_id:010d}-{number:05d}.parquet")
        shutil.rmtree(self._staging)


def run_aggregate(run: JobRun, job: AggregateJob, place: JobPlace) -> JobProgress:
    """The caller must hold the lock of the place. Raises WrongJob, JobFailed. The metrics have `bad`, the number of bad
    records."""
    if job.to_table is not None:
        ResultTable(job.to_table, place).claim()
    queries: dict[str, Any] = {}
    try:
        queries["aggregate"] = _start_results(run.spark, job, place)
        if job.dead_letters is not None:
            queries["dead letters"] = _start_dead_letters(run.spark, job, place)
    except Exception as error:
        for query in queries.values():
            query.stop()
        raise check_started(error) from error
    with LagMeter(job.brokers.options) as meter:
        return run_queries(run, queries, ["aggregate"], meter)


def _judged(spark: SparkSession, job: AggregateJob, group: str) -> DataFrame:
    source = {
        **COMMITTED_ONLY,
        **job.brokers.source_options,
        "subscribe": ",".join(job.topics),
        "startingOffsets": job.starting,
        "includeHeaders": "true",
        "groupId": group,
        "maxBytesPerTrigger": str(BATCH_BYTES),
    }
    return job.plan.judged(spark.readStream.format("penstock").options(**source).load())


def _start_results(spark: SparkSession, job: AggregateJob, place: JobPlace) -> Any:
    from pyspark.sql import functions as f

    bad = f.count(f.when(f.col(REASON).isNotNull(), True)).alias("bad")
    judged = _judged(spark, job, place.group).observe(METRICS, f.count(f.lit(1)).alias("all"), bad)
    results = job.plan.results(judged)
    if job.to_table is None:
        writer = _records(job, results).writeStream.format("penstock").options(**_topic_options(job))
    else:
        writer = results.writeStream.foreachBatch(_writer(job, ResultTable(job.to_table, place)))
    writer = writer.outputMode("append").queryName("aggregate")
    return writer.option("checkpointLocation", place.checkpoint.as_uri()).trigger(**_trigger(job)).start()


def _records(job: AggregateJob, results: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    value = f.to_json(f.struct(*job.plan.columns), {"ignoreNullFields": "false"})
    return results.select(job.plan.key().alias("key"), value.alias("value"))


def _topic_options(job: AggregateJob) -> dict[str, str]:
    assert job.to_topic is not None
    return {**job.brokers.sink_options, "topic": job.to_topic, "deliveryGuarantee": job.result_delivery}


def _writer(job: AggregateJob, table: ResultTable) -> Callable[[DataFrame, int], None]:
    def write(rows: DataFrame, batch_id: int) -> None:
        kept = rows.persist()
        try:
            if kept.isEmpty():
                return
            table.write(kept, batch_id)
            if job.to_topic is not None:
                options = _topic_options(job)
                _records(job, kept).write.format("penstock").options(**options).mode("append").save()
        finally:
            kept.unpersist()

    return write


def _start_dead_letters(spark: SparkSession, job: AggregateJob, place: JobPlace) -> Any:
    """Sends bad records unchanged, with headers for the reason and the origin."""
    from pyspark.sql import functions as f

    def header(name: str, column: str) -> Any:
        text = f.encode(f.col(column).cast("string"), "utf-8")
        return f.struct(f.lit(name).alias("key"), text.alias("value"))

    assert job.dead_letters is not None
    said = f.array(
        header("error", REASON),
        header("source.topic", "topic"),
        header("source.partition", "partition"),
        header("source.offset", "offset"),
    )
    headers = f.when(f.col("headers").isNull(), said).otherwise(f.concat("headers", said)).alias("headers")
    bad = _judged(spark, job, f"{place.group}-dead-letters").where(f.col(REASON).isNotNull())
    writer = bad.select("key", "value", "timestamp", headers).writeStream.format("penstock")
    options = {**job.brokers.sink_options, "topic": job.dead_letters, "deliveryGuarantee": job.delivery}
    writer = writer.options(**options).queryName("dead letters")
    writer = writer.option("checkpointLocation", (place.directory / "checkpoint-dead-letters").as_uri())
    return writer.trigger(**_trigger(job)).start()


def _trigger(job: AggregateJob) -> Any:
    return {"processingTime": FOLLOW_INTERVAL} if job.follow else {"availableNow": True}
