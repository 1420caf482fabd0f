"""Milliseconds of the Spark source's own work, without Spark: what its tasks read, and what an idle query costs.

    python -m bench.micro.source

A broker runs in a process of its own. `read` is the work of all tasks of a micro-batch with two records in each
partition, in one process, one task after the other: with a task for each partition, and with the tasks for two cores.

`idle` asks for the next end as Spark does, again 10 ms after each answer: the processor time of the source and of the
broker while nothing arrives, and how long it takes until a record that arrives then is noticed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from penstock.arrow.decode import warm_up
from penstock.sdk import BlockingAdmin
from penstock.spark.source.columns import arrow_schema, source_schema
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.reading import read_task
from penstock.spark.source.splits import Split, Task, together
from penstock.spark.source.stream_reader import PenstockStreamReader

CORES, RUNS, RECORDS = 2, 7, 2
IDLE_S, RECORDS_NOTICED, POLLING_DELAY_S = 5.0, 20, 0.01
BROKER = """
import sys
from penstock.testing import Broker
with Broker() as broker:
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.read()
"""


class Broker:
    def __enter__(self) -> Broker:
        self._child = subprocess.Popen(
            [sys.executable, "-c", BROKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._child.stdout is not None
        self.servers = self._child.stdout.readline().strip()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(300)  # the machine may be busy

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(servers: str, topic: str, partitions: int) -> None:
    with BlockingAdmin(servers) as admin:
        admin.create_topic(topic, partitions)
    producer = Producer({"bootstrap.servers": servers})
    for partition in range(partitions):
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number * 100, partition=partition)
    assert producer.flush(60) == 0


def rows(tasks: Sequence[Task], options: SourceOptions, schema: Any) -> int:
    return sum(batch.num_rows for task in tasks for batch in read_task(task, options, schema))


def best(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of the wall clock and of this process's processor."""
    found = []
    for _ in range(RUNS):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - begin, time.process_time() - begin_cpu))
    return min(wall for wall, _ in found) * 1e3, min(cpu for _, cpu in found) * 1e3


def reading(servers: str, partitions: int) -> None:
    topic = f"read-{partitions}"
    fill(servers, topic, partitions)
    options = SourceOptions.for_batch({"subscribe": topic, "kafka.bootstrap.servers": servers})
    schema = arrow_schema(source_schema(False))
    splits = [Split(topic, number, 0, RECORDS) for number in range(partitions)]
    for name, tasks in (("a task each", list[Task](splits)), ("together", together(splits, CORES))):
        assert rows(tasks, options, schema) == partitions * RECORDS
        wall, cpu = best(lambda tasks=tasks: rows(tasks, options, schema))  # type: ignore[misc]
        print(f"read {partitions:4} partitions, {name:12} {len(tasks):4} tasks {wall:8.1f} ms, CPU {cpu:8.1f} ms")


def idle(broker: Broker, partitions: int) -> None:
    topic = f"idle-{partitions}"
    fill(broker.servers, topic, partitions)
    given = {"subscribe": topic, "kafka.bootstrap.servers": broker.servers}
    reader = PenstockStreamReader(given, source_schema(False))
    limit = reader.getDefaultReadLimit()
    at = reader.latestOffset(reader.initialOffset(), limit)
    calls, begin, own, brokers = 0, time.perf_counter(), time.process_time(), broker.cpu_s()
    while (elapsed := time.perf_counter() - begin) < IDLE_S:
        at = reader.latestOffset(at, limit)
        time.sleep(POLLING_DELAY_S)
        calls += 1
    own_ms = (time.process_time() - own) / elapsed * 1e3
    broker_ms = (broker.cpu_s() - brokers) / elapsed * 1e3
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 0})
    noticed = []
    for number in range(RECORDS_NOTICED):
        pause_until = time.perf_counter() + 1.2  # so that the query is idle
        arrived: list[float] = []
        while True:
            found = reader.latestOffset(at, limit)
            if found["topics"] != at["topics"]:
                break
            if not arrived and time.perf_counter() > pause_until:
                threading.Timer(0.001 * (number * 17 % 60), _produce, (producer, topic, arrived)).start()
                pause_until = float("inf")
            time.sleep(POLLING_DELAY_S)
        noticed.append(time.perf_counter() - arrived[0] if arrived else 0.0)
        at = found
    reader.stop()
    print(
        f"idle {partitions:4} partitions, {calls / elapsed:5.1f} questions a second: CPU {own_ms:6.1f} ms/s, broker's "
        f"{broker_ms:6.1f} ms/s; a record is noticed after {statistics.median(noticed) * 1e3:5.1f} ms"
    )


def _produce(producer: Producer, topic: str, arrived: list[float]) -> None:
    producer.produce(topic, b"x", partition=0, on_delivery=lambda *_: arrived.append(time.perf_counter()))
    producer.flush(10)


def main() -> None:
    warm_up()
    with Broker() as broker:
        for partitions in (2, 100):
            idle(broker, partitions)
        for partitions in (2, 10, 100, 1000):
            reading(broker.servers, partitions)


if __name__ == "__main__":
    main()
