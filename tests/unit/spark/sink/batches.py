"""Batches as Spark runs them: tasks that may fail or be repeated, then commit or abort on the driver, on real brokers.

A process that dies is a `Died` raised at a step: nothing of the sink handles it. Its memory is lost
with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record, build_batch
from penstock.records.decoding import Aborted, decode
from penstock.spark.sink import deciding, decisions, exactly_once
from penstock.spark.sink.deciding import Decider
from penstock.spark.sink.decisions import driver_id
from penstock.spark.sink.delivery import Slice
from penstock.spark.sink.exactly_once import ExactlyOnce
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.slots import Slots
from penstock.spark.sink.steps import Step
from penstock.spark.sink.writers import TaskWritten
from penstock.testing import Broker
from penstock.wire_client.blocking.cluster import BlockingCluster, FetchStream
from penstock.wire_client.blocking.transaction_admin import TransactionAdmin
from penstock.wire_client.requests.transactions import TransactionFilter

MODULES = (deciding, decisions, exactly_once)
PARTITIONS = 3
PATIENCE_S = 20.0


class Died(BaseException):
    """kill -9"""


def cluster_of(broker: Broker) -> BlockingCluster:
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    return BlockingCluster([(host, int(port))], timeout_s=20.0)


class Query:
    """One streaming query, whose batch n has the values n*100 to n*100+29."""

    ROWS = 30

    def __init__(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch, query_id: str, topic: str, **options: str
    ) -> None:
        self.cluster = cluster_of(broker)
        self.query_id = query_id
        self.topic = topic
        self.options = SinkOptions.parse(
            {
                "kafka.bootstrap.servers": broker.bootstrap_servers,
                "topic": topic,
                "deliveryGuarantee": "exactly-once",
                **options,
            }
        )
        self._patch = monkeypatch
        self.run_id = "run-1"
        self.runs = 1

    @contextmanager
    def dying_at(self, step: Step | None) -> Iterator[None]:
        def reach(reached: Step) -> None:
            if reached is step:
                raise Died(step)

        with self._patch.context() as patch:
            for module in MODULES:
                patch.setattr(module, "reach", reach)
            yield

    def restart(self, *, with_new_workers: bool = True) -> None:
        self.runs += 1
        self.run_id = f"run-{self.runs}"
        if with_new_workers:
            self._patch.setattr(exactly_once, "slots", Slots())

    def values(self, batch_id: int) -> range:
        return range(batch_id * 100, batch_id * 100 + self.ROWS)

    # -- as Spark calls them ----------------------------------------------------------------

    def attempt(self, batch_id: int, task: int, tasks: int, run_id: str | None = None) -> TaskWritten:
        """One attempt of one task, which raises `Died` or succeeds."""
        writer = ExactlyOnce(self.options)
        if not writer.begin(Slice(self.query_id, batch_id, task, run_id or self.run_id)):
            return TaskWritten((), is_repeat=True, query_id=self.query_id)
        for value in self.values(batch_id)[task::tasks]:
            count = writer.partition_count(self.topic)
            batch = bytearray(build_batch([Record(None, b"%d" % value)]))
            writer.write(self.topic, value % count, batch, 1)
        done = writer.finish()
        return TaskWritten(done.partitions, done.is_repeat, self.query_id, done.transaction)

    def tasks(self, batch_id: int, tasks: int, run_id: str | None = None) -> list[TaskWritten]:
        return [self.attempt(batch_id, task, tasks, run_id) for task in range(tasks)]

    @property
    def decider(self) -> Decider:
        return Decider(self.cluster, self.cluster, self.query_id)

    def commit(self, batch_id: int, messages: Sequence[TaskWritten]) -> None:
        transactions = [one.transaction for one in messages if one.transaction is not None]
        if transactions or any(one.is_repeat for one in messages):
            self.decider.commit(batch_id, transactions)

    def abort(self, batch_id: int, messages: Sequence[TaskWritten]) -> None:
        self.decider.abort(batch_id, [one.transaction for one in messages if one.transaction is not None])

    def run(self, batch_id: int, tasks: int = 2) -> None:
        self.commit(batch_id, self.tasks(batch_id, tasks))

    # -- what came of it --------------------------------------------------------------------

    def committed(self) -> list[int]:
        """The committed values of all partitions, sorted. Fails where an open transaction holds readers back."""
        found: list[int] = []
        for partition in range(PARTITIONS):
            tp = TopicPartition(self.topic, partition)
            end = self.cluster.list_offsets({tp: -1})[tp].offset
            deadline = time.monotonic() + PATIENCE_S  # markers are written a moment after the decision
            while self.cluster.list_offsets({tp: -1}, read_committed=True)[tp].offset < end:
                assert time.monotonic() < deadline, f"{tp}: a transaction is open"
                time.sleep(0.01)
            for chunk in FetchStream(self.cluster, tp, 0, end, read_committed=True):
                aborted = [Aborted(first, producer_id) for producer_id, first in chunk.aborted]
                found += [int(record.value or b"") for record in decode(chunk.records, 0, aborted).records]
        return sorted(found)

    def expected(self, batches: int) -> list[int]:
        return [value for batch_id in range(batches) for value in self.values(batch_id)]

    def open_ids(self) -> list[str]:
        """Of this query alone: tests that die leave transactions on a broker that others use."""
        found = TransactionAdmin(self.cluster).transactional_ids(TransactionFilter(states=("Ongoing",)))
        prefix = driver_id(self.query_id)
        return [one.transactional_id for one in found if one.transactional_id.startswith(prefix)]
