"""Every row once and in order, whatever is stopped or killed: queries, workers, executors, drivers, brokers.

Always in the middle of a micro-batch: its tasks are held after the first rows that they read, with more to come.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import held_query
import pytest
from held_query import Gate, Rows, eventually, finished, held_since, planned, read_topic, start, written
from pyspark.sql import SparkSession
from spark_topics import Topics
from standalone_cluster import StandaloneCluster

from support.processes.broker import BrokerProcess
from support.processes.tree import command_line, descendants, parent

PARTITIONS = 2
RECORDS = 900
VALUE_BYTES = 2000
# A split is fetched batch by batch, and is larger than all the buffers between a reader and the gate.
IN_PIECES = {"kafka.max.partition.fetch.bytes": "20000"}
# Two batches for what `produce` makes in one go.
IN_BATCHES = {**IN_PIECES, "maxOffsetsPerTrigger": str(RECORDS)}
PROGRAM_TIMEOUT_S = 150


def produce(topics: Topics, topic: str, expected: Rows, records: int = RECORDS) -> None:
    for partition in range(PARTITIONS):
        rows = expected.setdefault(partition, [])
        first = len(rows)
        values = [b"%d:%d:" % (partition, n) + bytes(VALUE_BYTES) for n in range(first, first + records)]
        topics.fill(topic, ((None, value) for value in values), partition, settings={"batch.num.messages": 10})
        rows += enumerate(values, first)


@pytest.fixture
def expected() -> Rows:
    return {}


@pytest.fixture
def topic(topics: Topics, expected: Rows) -> str:
    name = topics.create(partitions=PARTITIONS)
    produce(topics, name, expected)
    return name


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def workers() -> list[int]:
    """Python processes that run tasks: forks of the daemon of the JVM that this process started."""
    found = descendants(os.getpid(), "pyspark.daemon", "pyspark.worker")
    return [pid for pid in found if "pyspark.daemon" in command_line(parent(pid))]


def test_runs_and_restarts_with_records_between(
    spark: SparkSession, topics: Topics, topic: str, expected: Rows, gate: Gate, tmp_path: Path
) -> None:
    for _ in range(2):
        start(read_topic(spark, topics.bootstrap_servers, topic, IN_BATCHES), tmp_path, gate).awaitTermination()
        assert written(tmp_path) == expected
        produce(topics, topic, expected, 50)

    # Stopped in the middle of a batch, and more records before it goes on.
    gate.close()
    number = finished(tmp_path) + 1
    query = start(
        read_topic(spark, topics.bootstrap_servers, topic, IN_BATCHES), tmp_path, gate, processingTime="0 seconds"
    )
    held_since(query, gate, number, PARTITIONS)
    query.stop()
    assert (finished(tmp_path), planned(tmp_path)) == (number - 1, number)
    gate.open()
    produce(topics, topic, expected, 50)
    query = start(read_topic(spark, topics.bootstrap_servers, topic, IN_BATCHES), tmp_path, gate)
    query.awaitTermination()
    assert written(tmp_path) == expected


def test_python_workers_killed(
    spark: SparkSession, topics: Topics, topic: str, expected: Rows, gate: Gate, tmp_path: Path
) -> None:
    gate.close(from_batch=1)
    query = start(read_topic(spark, topics.bootstrap_servers, topic, IN_BATCHES), tmp_path, gate)
    held_since(query, gate, 1, PARTITIONS)
    killed = workers()
    assert len(killed) >= 2 * PARTITIONS, "readers, and those that wait at the gate"
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    held_since(query, gate, 1, PARTITIONS, attempt=1)
    gate.open()
    query.awaitTermination()
    assert written(tmp_path) == expected


@contextmanager
def driver(arguments: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The query as a program; what it says is in `directory`."""
    command = [
        sys.executable,
        held_query.__file__,
        *arguments,
        *(f"{name}={value}" for name, value in IN_BATCHES.items()),
    ]
    with (directory / "driver.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_driver(process)


def kill_driver(process: subprocess.Popen[bytes]) -> None:
    """It and its JVM; the Python processes of the JVM end with it."""
    jvms = descendants(process.pid, "java", "SparkSubmit")
    left = descendants(process.pid)
    for pid in (*jvms, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    eventually(lambda: not any("python" in command_line(pid) for pid in left), lambda: f"left: {left}")


def awaited(process: subprocess.Popen[bytes], gate: Gate, batch: int, tasks: int, attempt: int = 0) -> None:
    is_held = gate.held_at(batch, tasks, attempt)
    log = gate.directory.parent / "driver.log"
    eventually(lambda: is_held() or process.poll() is not None, lambda: log.read_text()[-4000:])
    assert is_held(), log.read_text()[-4000:]


def test_driver_killed(
    spark: SparkSession, topics: Topics, topic: str, expected: Rows, gate: Gate, tmp_path: Path
) -> None:
    gate.close(from_batch=1)
    with driver(["local[2,4]", topics.bootstrap_servers, topic, str(tmp_path)], tmp_path) as process:
        awaited(process, gate, 1, PARTITIONS)
        kill_driver(process)
    assert (finished(tmp_path), planned(tmp_path)) == (0, 1)
    half = written(tmp_path)
    assert half != expected
    assert all(expected[partition][: len(rows)] == rows for partition, rows in half.items())

    # Another driver goes on from what that one left.
    gate.open()
    produce(topics, topic, expected, 50)
    start(read_topic(spark, topics.bootstrap_servers, topic, IN_BATCHES), tmp_path, gate).awaitTermination()
    assert written(tmp_path) == expected


def test_executor_of_a_cluster_killed(topics: Topics, topic: str, expected: Rows, gate: Gate, tmp_path: Path) -> None:
    gate.close(from_batch=1)
    with (
        StandaloneCluster(tmp_path, workers=1) as cluster,
        driver([cluster.master, topics.bootstrap_servers, topic, str(tmp_path)], tmp_path) as process,
    ):
        awaited(process, gate, 1, 1)
        (executor,) = descendants(os.getpid(), "CoarseGrainedExecutorBackend")
        os.kill(executor, signal.SIGKILL)
        awaited(process, gate, 1, 1, attempt=1)
        assert descendants(os.getpid(), "CoarseGrainedExecutorBackend") != [executor]
        gate.open()
        code = process.wait(PROGRAM_TIMEOUT_S)
        assert code == 0, (tmp_path / "driver.log").read_text()[-4000:]
    assert written(tmp_path) == expected


def test_broker_killed(spark: SparkSession, expected: Rows, gate: Gate, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        topics = Topics(broker.bootstrap_servers)
        topic = topics.create(partitions=PARTITIONS)
        produce(topics, topic, expected)
        gate.close(from_batch=1)
        query = start(
            read_topic(spark, topics.bootstrap_servers, topic, IN_BATCHES), tmp_path, gate, processingTime="0 seconds"
        )
        held_since(query, gate, 1, PARTITIONS)
        broker.kill()
        gate.open()
        # Readers go on with what they have, and it is not all.
        time.sleep(1)
        assert (query.isActive, finished(tmp_path)) == (True, 0)
        broker.start()
        produce(topics, topic, expected, 50)
        eventually(lambda: (finished(tmp_path) >= 1 and written(tmp_path) == expected) or not query.isActive)
        assert query.exception() is None
        query.stop()
        assert written(tmp_path) == expected
        topics.admin.close()
