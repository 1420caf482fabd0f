"""The same code on a cluster: a real master and two workers, each with an executor of one core."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from spark_topics import Topics
from standalone_cluster import StandaloneCluster

RUN_TIMEOUT_S = 200
PARTITIONS = 4
RECORDS = 400

# A process of its own: there is one Spark context a process, and the tests share a local one.
PROGRAM = """\
import json, os, sys
import pyarrow as pa
from penstock.spark import session

master, servers, topic = sys.argv[1:]
spark = session("standalone", master, bootstrap_servers=servers, fast_start=True, config={
    "spark.cores.max": "2", "spark.executor.cores": "1", "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
})

source = spark.readStream.format("penstock").option("subscribe", topic).option("startingOffsets", "earliest")
stream = source.load().select("partition", "offset")
query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
query.awaitTermination()
print(json.dumps(sorted(map(list, spark.table("seen").collect()))))
print(json.dumps(open("started").read().split()))

def place(batches):
    for batch in batches:
        yield batch.append_column("place", pa.array([os.getcwd()] * batch.num_rows, pa.string()))

rows = spark.read.format("penstock").option("subscribe", topic).load().select("partition", "offset", "value")
read = rows.mapInArrow(place, "partition int, offset long, value binary, place string").collect()
print(json.dumps([[row.partition, row.offset, bytes(row.value).decode(), row.place] for row in read]))
"""


def executors_python(directory: Path) -> Path:
    """A Python that only executors are told of; it notes where each of them starts it: below its worker."""
    program = directory / "executors-python"
    program.write_text(f'#!/bin/sh\npwd >> {directory}/started\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return program


def test_both_workers_of_a_cluster_read(topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        topics.fill(topic, ((None, b"%d" % n) for n in range(partition, RECORDS, PARTITIONS)), partition)
    with StandaloneCluster(tmp_path, workers=2) as cluster:
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, cluster.master, topics.bootstrap_servers, topic],
            env={**cluster.environment, "PYSPARK_PYTHON": str(executors_python(tmp_path))},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr[:4000]
    streamed, started, read = map(json.loads, ran.stdout.splitlines())
    workers = {cluster.work_directory(number) for number in range(2)}
    assert streamed == sorted([n % 4, n // 4] for n in range(RECORDS))
    assert {Path(place).parents[1] for place in started} == workers
    assert sorted(row[:3] for row in read) == sorted([n % 4, n // 4, str(n)] for n in range(RECORDS))
    assert {Path(place).parents[1] for *_, place in read} == workers
