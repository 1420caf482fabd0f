"""Milliseconds of the Spark source's own work, without Spark: what its tasks read, and what an idle query costs.

    python -m bench.micro.source

A broker runs in a process of its own. `read` is the work of all tasks of a micro-batch with two records in each
partition, in one process, one task after the other: with a task for each partition, and with the tasks for two cores.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer

from penstock.sdk import BlockingAdmin
from penstock.spark.decode import warm_up
from penstock.spark.source.columns import arrow_schema, source_schema
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.reading import read_task
from penstock.spark.source.splits import Split, Task, together

CORES, RUNS, RECORDS = 2, 7, 2
BROKER = """
from penstock.testing import Broker
with Broker() as broker:
    print(broker.bootstrap_servers, flush=True)
    input()
"""


@contextmanager
def broker() -> Iterator[str]:
    child = subprocess.Popen([sys.executable, "-c", BROKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child.stdout.readline().strip()
    finally:
        child.stdin.close()
        child.wait(300)  # the machine may be busy


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


def main() -> None:
    warm_up()
    with broker() as servers:
        for partitions in (2, 10, 100, 1000):
            reading(servers, partitions)


if __name__ == "__main__":
    main()
