"""The lag of a query, as the command line, a stock admin client and a scrape of the broker see it: all the same."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from held_query import Gate, eventually, held_since, read_topic, start
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from spark_topics import Topics

from penstock.spark.progress import group_of
from support.processes.broker import BrokerProcess
from support.processes.command_line import CommandLine
from support.processes.gateway import gateway_port

Lag = dict[int, int]


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With the listener that has /metrics."""
    with BrokerProcess(tmp_path_factory.mktemp("lag"), {"penstock.http.listener": "127.0.0.1:0"}) as process:
        yield process


class Observers:
    def __init__(self, broker: BrokerProcess, topic: str, command_line: CommandLine) -> None:
        self.broker = broker
        self.topic = topic
        self.command_line = command_line
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    def lag(self, group: str) -> Lag:
        """Of each partition, when all three say the same."""
        described, computed, scraped = self.described(group), self.computed(group), self.scraped(group)
        assert described == computed == scraped
        return described

    def described(self, group: str) -> Lag:
        ran = self.command_line(
            "groups", "describe", "--group", group, "--bootstrap-server", self.broker.bootstrap_servers, "--json"
        )
        assert ran.code == 0, ran.err
        return {entry["partition"]: entry["lag"] for entry in json.loads(ran.out)["partitions"]}

    def computed(self, group: str) -> Lag:
        """As monitoring tools do it, by librdkafka."""
        (asked,) = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        committed = {tp.partition: tp.offset for tp in asked.result(30).topic_partitions if tp.topic == self.topic}
        ends = self.admin.list_offsets({TopicPartition(self.topic, p): OffsetSpec.latest() for p in committed})
        return {tp.partition: end.result(30).offset - committed[tp.partition] for tp, end in ends.items()}

    def scraped(self, group: str) -> Lag:
        url = f"http://127.0.0.1:{gateway_port(self.broker, 'HTTP')}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            page = response.read().decode()
        return {
            int(sample.labels["partition"]): int(sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "kafka_consumergroup_lag" and sample.labels["consumergroup"] == group
        }


@pytest.fixture(scope="module")
def topics(own_broker: BrokerProcess) -> Iterator[Topics]:
    made = Topics(own_broker.bootstrap_servers)
    yield made
    made.admin.close()


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create(partitions=2)


@pytest.fixture
def observers(
    own_broker: BrokerProcess,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Observers:
    return Observers(own_broker, topic, CommandLine(monkeypatch, capsys))


def fill(topics: Topics, topic: str, *counts: int) -> None:
    for partition, count in enumerate(counts):
        topics.fill(topic, [(None, b"x")] * count, partition)


def test_lag_of_a_running_an_idle_and_a_finished_query(
    spark: SparkSession, topics: Topics, topic: str, observers: Observers, tmp_path: Path
) -> None:
    fill(topics, topic, 40, 20)
    gate = Gate(tmp_path)
    gate.close(from_batch=1)
    options = {"maxOffsetsPerTrigger": "30", "groupIdPrefix": "lagging"}
    query = start(
        read_topic(spark, topics.bootstrap_servers, topic, options), tmp_path, gate, processingTime="0 seconds"
    )
    try:
        # Running: the first batch is done, the second is under way.
        held_since(query, gate, 1, 2)
        group = group_of(query)
        assert group is not None
        assert group.startswith("lagging-")
        eventually(lambda: observers.computed(group) == {0: 20, 1: 10})
        assert observers.lag(group) == {0: 20, 1: 10}
        fill(topics, topic, 5, 0)
        assert observers.lag(group) == {0: 25, 1: 10}

        # Idle: nothing is left to read, and no batch runs any more that would say so.
        gate.open()
        eventually(lambda: observers.computed(group) == {0: 0, 1: 0})
        assert observers.lag(group) == {0: 0, 1: 0}
    finally:
        query.stop()

    # Stopped: the topic goes on without it.
    fill(topics, topic, 3, 4)
    assert observers.lag(group) == {0: 3, 1: 4}

    # Finished: all there was, and its last batch counts.
    query = start(read_topic(spark, topics.bootstrap_servers, topic, options), tmp_path, gate)
    query.awaitTermination()
    assert group_of(query) == group
    assert observers.lag(group) == {0: 0, 1: 0}
    fill(topics, topic, 0, 6)
    assert observers.lag(group) == {0: 0, 1: 6}


def test_lag_does_not_wait_for_the_next_trigger(
    spark: SparkSession, topics: Topics, topic: str, observers: Observers, tmp_path: Path
) -> None:
    fill(topics, topic, 40, 20)
    frame = read_topic(spark, topics.bootstrap_servers, topic, {"groupId": "seldom"})
    query = start(frame, tmp_path, processingTime="1 hour")
    try:
        eventually(lambda: query.lastProgress is not None)
        eventually(lambda: observers.computed("seldom") == {0: 0, 1: 0})
        fill(topics, topic, 5, 6)
        assert observers.lag("seldom") == {0: 5, 1: 6}
    finally:
        query.stop()
    # A run of one batch, which no other follows.
    start(frame, tmp_path, once=True).awaitTermination()
    eventually(lambda: observers.computed("seldom") == {0: 0, 1: 0})
    assert observers.lag("seldom") == {0: 0, 1: 0}
