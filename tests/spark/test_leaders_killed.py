"""A streaming query out of a topic and into another, on three real brokers whose leaders are killed under it.

It goes on with the two that are left, and nothing is lost on the way. A cluster of its own: its brokers die.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import confluent_kafka
from confluent_kafka import KafkaError, Message
from held_query import WAIT_S, eventually
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.sdk import BlockingAdmin
from penstock.spark.progress import group_of
from support.processes.cluster import QUIET_CLIENT, ClusterProcesses

SOURCE, TARGET = "numbers", "copies"
# Each broker is the first choice for one partition of each topic.
ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
TICK_S, A_TICK = 0.02, 10


class Numbers(threading.Thread):
    """0, 1, 2, ... into a topic at a steady rate, until stopped."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, **QUIET_CLIENT}
        )
        self._topic = topic
        self._stopping = threading.Event()
        self._count = 0
        self.acknowledged: list[int] = []
        self.failure: KafkaError | None = None

    def run(self) -> None:
        while not self._stopping.is_set():
            for _ in range(A_TICK):
                self._send(self._count)
                self._count += 1
            self._producer.poll(TICK_S)
            time.sleep(TICK_S)
        self._producer.flush(WAIT_S)

    def _send(self, number: int) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acknowledged.append(number)
            else:
                self.failure = error

        self._producer.produce(self._topic, b"%d" % number, b"%d" % number, on_delivery=delivered)

    def stop(self) -> list[int]:
        """All that were acknowledged, which is all."""
        self._stopping.set()
        self.join()
        assert self.failure is None, self.failure
        assert len(self.acknowledged) == self._count
        return self.acknowledged


class Copies:
    """The copied records, read by librdkafka from the start."""

    def __init__(self, servers: str, topic: str) -> None:
        settings = {"bootstrap.servers": servers, "group.id": "copies", "enable.auto.commit": False, **QUIET_CLIENT}
        self._consumer = confluent_kafka.Consumer(settings)
        self._consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(len(ASSIGNMENT))])
        self.numbers: Counter[int] = Counter()

    def read_until(self, is_enough: Callable[[], bool], query: StreamingQuery) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_enough():
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, f"only {len(self.numbers)} numbers came: {query.lastProgress}"
            for message in self._consumer.consume(1000, 0.1):
                if message.error() is None:  # else of a broker that is away
                    self.numbers[int(message.value() or b"")] += 1

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def copying(spark: SparkSession, servers: str, checkpoint: str) -> Iterator[StreamingQuery]:
    options = {"kafka.bootstrap.servers": servers}
    source = {"subscribe": SOURCE, "startingOffsets": "earliest", **options}
    rows = spark.readStream.format("penstock").options(**source).load().select("key", "value")
    writer = rows.writeStream.format("penstock").options(topic=TARGET, checkpointLocation=checkpoint, **options)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        yield query
    finally:
        query.stop()


def test_nothing_is_lost_when_leaders_of_source_and_sink_are_killed(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    with ClusterProcesses(tmp_path / "cluster") as cluster:
        for topic in (SOURCE, TARGET):
            cluster.create_topic(topic, assignment=ASSIGNMENT)
        servers = cluster.bootstrap_servers
        numbers = Numbers(servers, SOURCE)
        numbers.start()
        with closing(Copies(servers, TARGET)) as copies, copying(spark, servers, checkpoint) as query:
            copies.read_until(lambda: len(copies.numbers) > 0, query)
            for topic in (SOURCE, TARGET):
                leader = cluster.leader_of(topic, 0)
                leader.kill()
                # Sent now, it has to go the whole way while one of three is missing.
                sent = len(numbers.acknowledged) + 3 * A_TICK
                copies.read_until(lambda sent=sent: len(copies.numbers) > sent, query)  # type: ignore[misc]
                leader.start()
                cluster.wait_in_sync(SOURCE)
                cluster.wait_in_sync(TARGET)
            sent_numbers = numbers.stop()
            copies.read_until(lambda: len(copies.numbers) >= len(sent_numbers), query)
            group = group_of(query)
            assert group is not None
            with BlockingAdmin(servers, settings=QUIET_CLIENT) as admin:
                # Its coordinator may have been among the killed, too.
                eventually(lambda: [one.lag for one in admin.lag(group)] == [0] * len(ASSIGNMENT))
        print(f"{len(sent_numbers)} numbers, {copies.numbers.total() - len(sent_numbers)} copies more than that")
        assert copies.numbers.keys() == set(sent_numbers)
        cluster.check_logs()
