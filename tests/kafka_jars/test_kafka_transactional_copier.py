"""Kafka's own judge of transactions: rows copied from topic to topic while brokers and copiers are killed with -9.

As Kafka's system tests do it (transactions_test.py, group_mode_transactions_test.py): three brokers, three replicas,
100,000 rows, copiers that abort every third transaction. In the end the output holds each row of the input once and
in order, for a reader that watched all the time and for one that comes after. Rounds alternate between copiers that
have a partition each and copiers that share a group. PENSTOCK_COPIER_ROUNDS sets how many (default 1; `make
txn-copier` ten). Needs Java and Kafka's jars (`conftest.py`). Runs only with `-m kafka_jars`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec
from copiers import Copier, read_with_console_consumer

from support.clients.committed_reader import CommittedReader
from support.processes.cluster import ClusterProcesses, NodeProcess
from support.processes.promises import check_replicas

pytestmark = pytest.mark.kafka_jars

ROUNDS = int(os.environ.get("PENSTOCK_COPIER_ROUNDS", "1"))
ROWS = 100_000
ROWS_PER_TRANSACTION = 250
TRANSACTION_TIMEOUT_MS = 40_000
PROGRESS_TIMEOUT_S = 120.0
"""Longer than a transaction times out, a session ends and a request is waited for."""
INTERNAL = ("__transaction_state", "__consumer_offsets")
SETTINGS = {"transaction.state.log.num.partitions": "6", "offsets.topic.num.partitions": "6"}


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    copiers: int
    partitions: int
    arguments: tuple[str, ...] = ()


ASSIGNED = Mode("2 copiers, a partition each", 2, 2)
IN_A_GROUP = Mode("3 copiers in a group", 3, 6, ("--group-mode", "--use-group-metadata"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path / "cluster", SETTINGS) as processes:
        yield processes


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def say(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {line}", flush=True)

    return say


class Round:
    def __init__(self, number: int, mode: Mode, cluster: ClusterProcesses, libs: Path, directory: Path) -> None:
        self._mode, self._cluster, self._libs = mode, cluster, libs
        self._rng = random.Random(number)
        self._source, self._sink, self._group = (f"{what}-{number}" for what in ("input", "output", "copying"))
        self.late = 0
        """Kills that came when all was copied."""
        self._copiers = [
            Copier(libs, directory / f"round-{number}-{index}.log", f"copier-{number}-{index}", self._arguments(index))
            for index in range(mode.copiers)
        ]

    def _arguments(self, index: int) -> list[str]:
        return [
            *("--broker-list", self._cluster.bootstrap_servers, "--consumer-group", self._group),
            *("--input-topic", self._source, "--output-topic", self._sink),
            *("--input-partition", "-1" if self._mode is IN_A_GROUP else str(index)),
            *("--transaction-size", str(ROWS_PER_TRANSACTION), "--transaction-timeout", str(TRANSACTION_TIMEOUT_MS)),
            *("--enable-random-aborts", *self._mode.arguments),
        ]

    def run(self) -> str:
        """Returns a line about the run."""
        for topic in (self._source, self._sink):
            self._cluster.create_topic(topic, self._mode.partitions)
        self._seed()
        begin = time.monotonic()
        servers, partitions = self._cluster.bootstrap_servers, self._mode.partitions
        try:
            with CommittedReader(servers, self._sink, partitions) as reader:
                for copier in self._copiers:
                    copier.start()
                self._bounce(reader)
                self._await(reader, ROWS)
                self._cluster.wait_until(self._all_done, "every copier is done", PROGRESS_TIMEOUT_S)
                took_s = time.monotonic() - begin
                self._cluster.wait_until(self._nothing_is_open, "no transaction is open", PROGRESS_TIMEOUT_S)
                reader.wait_for(ROWS + 1, 2.0)  # a row too many would come now
                watched = reader.rows
        finally:
            for copier in self._copiers:
                copier.discard()
        self._check("read while they copied", watched)
        self._check("read afterwards", read_with_console_consumer(self._libs, servers, self._sink, partitions))
        assert self._committed_offsets() == {index: len(rows) for index, rows in enumerate(self._expected())}
        check_replicas(self._cluster, self._sink)
        return self._story(took_s)

    def _story(self, took_s: float) -> str:
        kills = sum(copier.kills for copier in self._copiers)
        gave_up = [text for copier in self._copiers for text in copier.gave_up]
        offsets = sum(self._ends(IsolationLevel.READ_UNCOMMITTED).values())
        return (
            f"{self._mode.name}: {ROWS} rows in {took_s:.0f} s, each once and in order, for two readers; "
            f"{len(self._cluster.nodes)} brokers and {kills} copiers killed, {self.late} of them after the last row; "
            f"{offsets - ROWS} aborted rows and markers; {len(gave_up)} copiers ended early by themselves"
            + "".join(f"\n    {text}" for text in gave_up)
        )

    def _expected(self) -> list[list[int]]:
        return [list(range(index, ROWS, self._mode.partitions)) for index in range(self._mode.partitions)]

    def _seed(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._cluster.bootstrap_servers, "enable.idempotence": True, "linger.ms": 20}
        )
        for row in range(ROWS):
            producer.produce(self._source, str(row), partition=row % self._mode.partitions)
            if row % 1000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0

    # -- kill -9 ------------------------------------------------------------------------

    def _bounce(self, reader: CommittedReader) -> None:
        """Every broker once and every copier twice, in random order, spread over the first part of the rows."""
        victims: list[NodeProcess | Copier] = [*self._cluster.nodes.values(), *self._copiers, *self._copiers]
        self._rng.shuffle(victims)
        for number, victim in enumerate(victims):
            self._await(reader, ROWS * (number + 1) // (2 * len(victims)))
            self.late += reader.count >= ROWS
            if isinstance(victim, NodeProcess):
                self._bounce_broker(victim)
            elif not victim.is_done:
                victim.kill()
                time.sleep(self._rng.uniform(0, 1))
                victim.start()

    def _bounce_broker(self, node: NodeProcess) -> None:
        node.kill()
        time.sleep(self._rng.uniform(0.5, 4))
        node.start()
        for topic in (self._source, self._sink, *INTERNAL):
            self._cluster.wait_in_sync(topic)

    def _await(self, reader: CommittedReader, count: int) -> None:
        """Until so many rows are read; there has to be progress."""
        seen, since = reader.count, time.monotonic()
        while reader.count < count:
            for copier in self._copiers:
                copier.look_after()
            if reader.count > seen:
                seen, since = reader.count, time.monotonic()
            assert time.monotonic() - since < PROGRESS_TIMEOUT_S, (
                f"{seen} of {ROWS} rows, and no more for {PROGRESS_TIMEOUT_S:.0f} s; {self._group}\n"
                f"{self._cluster.log_tails()}"
            )
            time.sleep(0.05)

    # -- what there is in the end -------------------------------------------------------

    def _all_done(self) -> bool:
        for copier in self._copiers:
            copier.look_after()
        return all(copier.is_done for copier in self._copiers)

    def _ends(self, level: IsolationLevel) -> dict[int, int]:
        places = {TopicPartition(self._sink, index): OffsetSpec.latest() for index in range(self._mode.partitions)}
        admin = self._cluster.admin()  # held, as its end would be that of the request too
        found = admin.list_offsets(places, isolation_level=level)
        return {place.partition: future.result(30).offset for place, future in found.items()}

    def _nothing_is_open(self) -> bool:
        """A transaction that nobody ends would hold the last stable offset back."""
        return self._ends(IsolationLevel.READ_COMMITTED) == self._ends(IsolationLevel.READ_UNCOMMITTED)

    def _committed_offsets(self) -> dict[int, int]:
        places = [TopicPartition(self._source, index) for index in range(self._mode.partitions)]
        admin = self._cluster.admin()
        asked = ConsumerGroupTopicPartitions(self._group, places)
        (found,) = admin.list_consumer_group_offsets([asked], require_stable=True).values()
        return {place.partition: place.offset for place in found.result(30).topic_partitions}

    def _check(self, how: str, rows: Sequence[Sequence[int]]) -> None:
        for index, (expected, found) in enumerate(zip(self._expected(), rows, strict=True)):
            surplus, missing = len(found) - len(set(found)), len(set(expected) - set(found))
            assert (surplus, missing) == (0, 0), f"{how}, partition {index}: {surplus} twice, {missing} missing"
            assert list(found) == expected, f"{how}, partition {index}: not in order, or rows that nobody sent"


@pytest.mark.timeout(0)
def test_each_row_is_copied_once(
    cluster: ClusterProcesses, kafka_libs: Path, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    for number in range(1, ROUNDS + 1):
        mode = ASSIGNED if number % 2 else IN_A_GROUP
        story = Round(number, mode, cluster, kafka_libs, tmp_path).run()
        cluster.check_logs()
        tell(f"round {number} of {ROUNDS}: {story}")
