"""A Spark session that runs tasks: it reads a task as a JSON line, and answers with its measurement as a JSON line.

Both formats run in the same JVM with the same settings, so only the connector differs. A read is a stream that takes
the records of the topic in batches of a fixed number of rows. The first batches warm up the JVM and do not count.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.streaming import StreamingQuery

WARM_BATCHES = 2
MASTER = "local[2]"
Task = dict[str, Any]
Measured = dict[str, float]


def start(settings: str, jars: str) -> SparkSession:
    if settings == "stock":
        builder = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false")
        spark = builder.config("spark.jars", jars).getOrCreate() if jars else builder.getOrCreate()
    else:
        from penstock.spark import session

        spark = session("penstock-bench", MASTER, config={"spark.jars": jars} if jars else {})
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _stream(spark: SparkSession, task: Task, limit: int, **options: str) -> DataFrame:
    reader = spark.readStream.format(task["format"]).option("kafka.bootstrap.servers", task["bootstrap"])
    reader = reader.option("subscribe", task["topic"]).option("startingOffsets", "earliest")
    return reader.options(**options).option("maxOffsetsPerTrigger", str(limit)).load()


def _batches(frame: DataFrame, to: str, directory: str) -> list[tuple[int, float]]:
    """(rows, seconds) of each batch that had rows."""
    writer = frame.writeStream.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
    if to == "noop":
        query = writer.format("noop").start()
    else:
        query = writer.format("parquet").option("path", f"{directory}/out").start()
    return _done(query)


def _done(query: StreamingQuery) -> list[tuple[int, float]]:
    query.awaitTermination()
    done = [(one["numInputRows"], one["durationMs"]["triggerExecution"] / 1e3) for one in query.recentProgress]
    return [(rows, seconds) for rows, seconds in done if rows]


def read(spark: SparkSession, task: Task, directory: str) -> Measured:
    """Rows a second through a streaming query to `to`, the median of its batches."""
    return _rate(_batches(_stream(spark, task, task["rows_per_batch"]), task["to"], directory), task)


def typed(spark: SparkSession, task: Task, directory: str) -> Measured:
    """The same for JSON values as a struct, by one of two decoders."""
    limit, schema = task["rows_per_batch"], task["schema"]
    if task["decoder"] == "from_json":
        frame = _stream(spark, task, limit).select(from_json(col("value").cast("string"), schema).alias("value"))
    else:
        frame = _stream(spark, task, limit, valueFormat="json", valueSchema=schema).select("value")
    return _rate(_batches(frame, "noop", directory), task)


def _rate(batches: list[tuple[int, float]], task: Task) -> Measured:
    total = sum(rows for rows, _ in batches)
    if total != task["rows"]:
        raise RuntimeError(f"{task['format']} read {total} rows of {task['rows']}")
    rates = [rows / seconds for rows, seconds in batches[WARM_BATCHES:]]
    rate = statistics.median(rates)
    return {"rows_s": rate, "mb_s": rate * task["value_bytes"] / 1e6, "batches": len(rates)}


def overhead(spark: SparkSession, task: Task, directory: str) -> Measured:
    """The time that a micro-batch of a few rows takes."""
    batches = _batches(_stream(spark, task, 2), "noop", directory)
    times = sorted(seconds * 1e3 for _, seconds in batches[10:])
    return {"batch_p50_ms": statistics.median(times), "batch_p95_ms": times[int(len(times) * 0.95)]}


def deliver(spark: SparkSession, task: Task, directory: str) -> Measured:
    """Rows a second of a stream from topic to topic with one of the sink's guarantees, the median of its batches."""
    writer = _stream(spark, task, task["rows_per_batch"]).select("key", "value").writeStream.format("penstock")
    writer = writer.option("kafka.bootstrap.servers", task["bootstrap"]).option("topic", task["to"])
    writer = writer.option("deliveryGuarantee", task["guarantee"])
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
    batches = _done(writer.start())
    total = sum(rows for rows, _ in batches)
    if total != task["rows"]:
        raise RuntimeError(f"{task['guarantee']} wrote {total} rows of {task['rows']}")
    counted = batches[WARM_BATCHES:]
    return {
        "rows_s": statistics.median(rows / seconds for rows, seconds in counted),
        "delivery_batch_ms": statistics.median(seconds for _, seconds in counted) * 1e3,
        "batches": len(counted),
    }


def write(spark: SparkSession, task: Task, directory: str) -> Measured:
    """Rows a second of a batch write; the rows come from Parquet that was made before the clock started."""
    frame = spark.read.parquet(task["parquet"])
    writer = frame.write.format(task["format"]).mode("append")
    writer = writer.option("kafka.bootstrap.servers", task["bootstrap"]).option("topic", task["topic"])
    begin = time.perf_counter()
    writer.save()
    seconds = time.perf_counter() - begin
    rate = task["rows"] / seconds
    return {"rows_s": rate, "mb_s": rate * task["value_bytes"] / 1e6}


def make_parquet(spark: SparkSession, task: Task, directory: str) -> Measured:
    """Random values, so that neither Parquet nor anything else can squeeze them."""
    size = int(task["value_bytes"])
    pieces = ", ".join(f"unhex(sha2(concat(id, '-{n}'), 256))" for n in range((size + 31) // 32))
    value = f"substring(concat({pieces}), 1, {size}) AS value"
    frame = spark.range(0, task["rows"], 1, 2).selectExpr("encode(cast(id as string), 'utf-8') AS key", value)
    frame.write.mode("overwrite").option("compression", "none").parquet(task["parquet"])
    return {"rows": float(spark.read.parquet(task["parquet"]).count())}


TASKS: dict[str, Callable[[SparkSession, Task, str], Measured]] = {
    "read": read,
    "typed": typed,
    "overhead": overhead,
    "write": write,
    "deliver": deliver,
    "make_parquet": make_parquet,
}


def main() -> int:
    settings, jars = sys.argv[1], sys.argv[2]
    os.environ["PYSPARK_PYTHON"] = sys.executable  # as in an activated environment
    logging.disable(logging.WARNING)
    # Whatever Spark and its workers print goes to standard error; answers have a pipe of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = start(settings, jars)
    print(json.dumps({"ready": spark.version}), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        directory = tempfile.mkdtemp(prefix="penstock-bench-", dir=task["work"])
        try:
            answer: dict[str, Any] = {"measured": TASKS[task["do"]](spark, task, directory)}
        except Exception as error:  # of Spark, any; the caller stops the run with it
            answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
