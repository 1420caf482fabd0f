"""A topic as a table: records of 1 KB from a broker into a table, by `penstock table follow --once`.

The time is that of the following process alone, of its processor and of the clock; the broker is another process.
Everything is flushed to disk. Records are JSON objects with ten fields, half of their bytes random.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from bench.brokers import WORK, Penstock
from bench.load.client import HOST, Client

RECORD_BYTES = 1024
PARTITIONS = 4
MEGABYTES = 512
DISTINCT = 100_000  # more than a compressor or a dictionary remembers
MIB = 1 << 20


def values() -> list[bytes]:
    random = Random(1)
    found = []
    for number in range(DISTINCT):
        fields: dict[str, Any] = {
            "id": number,
            "user": {"country": random.choice(["NO", "SE", "DE", "FR"]), "age": random.randrange(100)},
            "page": f"/products/{random.randrange(10_000)}",
            "price": random.randrange(10_000) / 100,
            "count": random.randrange(100),
            "is_new": random.random() < 0.5,
            "at": "2026-01-31T12:00:00Z",
            "session": random.randbytes(16).hex(),
            "agent": random.randbytes(190).hex(),
            "text": "",
        }
        fields["text"] = "e" * (RECORD_BYTES - len(json.dumps(fields)))
        found.append(json.dumps(fields).encode())
    return found


SCHEMA = (
    "id long, user struct<country: string, age: int>, page string, price double, count int, is_new boolean, "
    "at timestamp, session string, agent string, text string"
)


def fill(port: int, topic: str, records: int, partitions: int = PARTITIONS) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": f"{HOST}:{port}", "linger.ms": 20, "batch.size": 128 << 10})
    given = values()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, given[number % DISTINCT], partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError(f"not all of {records} records were delivered")


def measure(scale: float) -> dict[str, dict[str, object]]:
    """By mode."""
    records = max(1000, int(MEGABYTES * scale * 1e6) // RECORD_BYTES)
    broker = Penstock(WORK / "run" / "tables")
    broker.prepare()
    broker.start()
    try:
        topic = f"rows-{time.monotonic_ns()}"
        with Client(broker.port) as client:
            client.create_topic(topic, PARTITIONS, {})
            client.wait_for_leaders({topic: PARTITIONS})
        fill(broker.port, topic, records)
        found: dict[str, dict[str, object]] = {}
        for mode in ("raw", "json"):
            command = [sys.executable, "-m", "bench.tables.topics", str(broker.port), topic, mode]
            run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=3600)
            found[mode] = json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else {"failed": run.returncode}
        return found
    finally:
        broker.discard()


def follow(port: int, topic: str, mode: str) -> dict[str, object]:
    """In a process of its own. What is imported and compiled before does not count."""
    import threading

    from penstock.arrow.decode import warm_up
    from penstock.arrow.values import parse_schema
    from penstock.topic_tables.follower import Audience, FollowedTopic, Follower, FollowOptions
    from penstock.topic_tables.opening import Wanted, open_topic_table, topic_id_text
    from penstock.wire_client.blocking.cluster import BlockingCluster

    warm_up()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-tables-", dir=os.environ.get("BENCH_TABLES_DIR")) as place:
        cluster = BlockingCluster([(HOST, port)])
        info = cluster.topic(topic)
        schema = parse_schema(SCHEMA) if mode == "json" else None
        wanted = Wanted(topic, topic_id_text(info.topic_id), mode, schema)
        table, shape = open_topic_table(Path(place, "table"), wanted, lambda: None, lambda line: None)
        followed = FollowedTopic(topic, info.topic_id)
        follower = Follower(cluster, followed, table, shape, FollowOptions(once=True), Audience(threading.Event()))
        cpu, wall = time.process_time(), time.perf_counter()
        follower.run(lambda reader, partitions: reader.starts(partitions))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        cluster.close()
        done = follower.progress
        value_bytes = done.records * RECORD_BYTES
        assert table.rows == done.records - done.dead_letters
        return {
            "records": done.records,
            "dead_letters": done.dead_letters,
            "commits": done.commits,
            "mib_per_cpu_s": round(value_bytes / cpu / MIB, 1),
            "mib_per_wall_s": round(value_bytes / wall / MIB, 1),
            "stored_share": round(table.size_bytes / value_bytes, 2),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(follow(int(sys.argv[1]), sys.argv[2], sys.argv[3])) + "\n")
