"""/metrics of a broker process, read by Prometheus' own parser and held against what clients say."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from support.processes.broker import BrokerProcess
from support.processes.gateway import gateway_port

GATEWAY = {"penstock.line.listener": "", "penstock.http.listener": "127.0.0.1:0"}
OLD_MS = 60_000
PAGE = Path(__file__).resolve().parents[2] / "docs" / "observability.md"
OF_TABLES = "\n### Of a followed topic\n"  # the last ones, served by another process


class Scrape:
    """One reading: numbers by name and labels."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(url, timeout=30) as response:
            self.content_type = response.headers["content-type"]
            self.page = response.read().decode()
        self.kinds: dict[str, str] = {}
        self._numbers: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(self.page):
            assert family.name not in self.kinds, f"{family.name} is there twice"
            self.kinds[family.name] = family.type
            for sample in family.samples:
                self._numbers[sample.name, frozenset(sample.labels.items())] = sample.value

    def get(self, name: str, **labels: str) -> float:
        return self._numbers[name, frozenset(labels.items())]

    def all(self, name: str, **labels: str) -> dict[str, float]:
        """By partition."""
        wanted = frozenset(labels.items())
        return {
            dict(given)["partition"]: number
            for (found, given), number in self._numbers.items()
            if found == name and given >= wanted
        }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("metrics"), GATEWAY) as process:
        yield process
        assert process.terminate() == 0
        assert "Traceback" not in process.log()


def scrape(broker: BrokerProcess) -> Scrape:
    return Scrape(f"http://127.0.0.1:{gateway_port(broker, 'HTTP')}/metrics")


def create(broker: BrokerProcess, topic: str, partitions: int) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(10)
    return admin


def lag_by_client(consumer: Consumer, topic: str, partitions: int) -> dict[str, float]:
    """As monitoring tools compute it: the end of each partition less what the group has committed there."""
    committed = consumer.committed([TopicPartition(topic, index) for index in range(partitions)], 10)
    lags: dict[str, float] = {}
    for position in committed:
        if position.offset >= 0:
            _, end = consumer.get_watermark_offsets(position, 10, cached=False)
            lags[str(position.partition)] = end - position.offset
    return lags


def test_lag_is_what_a_client_computes(broker: BrokerProcess) -> None:
    config = {"bootstrap.servers": broker.bootstrap_servers}
    create(broker, "lagging", 4)
    producer = Producer(config)
    written_ms = int(time.time() * 1000) - OLD_MS
    for number in range(100):
        producer.produce("lagging", b"x", partition=number % 3, timestamp=written_ms)
    assert producer.flush(10) == 0

    consumer = Consumer({**config, "group.id": 'behind "quotes"', "enable.auto.commit": False})
    wanted = [TopicPartition("lagging", 0, 34), TopicPartition("lagging", 1, 10), TopicPartition("lagging", 2, 0)]
    consumer.commit(offsets=wanted, asynchronous=False)
    computed = lag_by_client(consumer, "lagging", 4)
    assert computed == {"0": 0, "1": 23, "2": 33}

    seen = scrape(broker)
    group = {"consumergroup": 'behind "quotes"', "topic": "lagging"}
    assert seen.all("kafka_consumergroup_lag", **group) == computed
    assert seen.get("kafka_consumergroup_lag_sum", **group) == 56
    assert seen.all("kafka_consumergroup_current_offset", **group) == {"0": 34, "1": 10, "2": 0}
    assert seen.get("kafka_consumergroup_current_offset_sum", **group) == 44
    assert seen.get("kafka_consumergroup_members", consumergroup=group["consumergroup"]) == 0
    assert seen.all("kafka_topic_partition_current_offset", topic="lagging") == {"0": 34, "1": 33, "2": 33, "3": 0}

    ages = seen.all("kafka_consumergroup_lag_seconds", **group)
    age = time.time() - written_ms / 1000
    assert ages.pop("0") == 0
    assert set(ages) == {"1", "2"}
    assert all(OLD_MS / 1000 <= seconds <= age for seconds in ages.values())

    # The group moves on and so does its lag; a second topic comes in beside it.
    consumer.commit(offsets=[TopicPartition("lagging", 2, 33)], asynchronous=False)
    producer.produce("lagging", b"y", partition=0)
    assert producer.flush(10) == 0
    seen = scrape(broker)
    assert seen.all("kafka_consumergroup_lag", **group) == lag_by_client(consumer, "lagging", 4)
    assert seen.all("kafka_consumergroup_lag", **group) == {"0": 1, "1": 23, "2": 0}
    assert seen.all("kafka_consumergroup_lag_seconds", **group)["0"] < OLD_MS / 1000
    consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_a_group_and_their_lag(broker: BrokerProcess, protocol: str) -> None:
    config = {"bootstrap.servers": broker.bootstrap_servers}
    topic = f"read-{protocol}"
    create(broker, topic, 2)
    producer = Producer(config)
    for number in range(50):
        producer.produce(topic, b"x", partition=number % 2)
    assert producer.flush(10) == 0
    consumer = Consumer(
        {**config, "group.id": topic, "group.protocol": protocol, "auto.offset.reset": "earliest"}
        | {"enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    messages = consumer.consume(20, 30)
    assert len(messages) == 20
    consumer.commit(asynchronous=False)
    seen = scrape(broker)
    assert seen.get("kafka_consumergroup_members", consumergroup=topic) == 1
    computed = lag_by_client(consumer, topic, 2)
    assert sum(computed.values()) == 30 - 25 * (2 - len(computed))  # a partition not read yet has no commit
    assert seen.all("kafka_consumergroup_lag", consumergroup=topic, topic=topic) == computed
    consumer.close()


def test_traffic_requests_and_sizes(broker: BrokerProcess) -> None:
    config = {"bootstrap.servers": broker.bootstrap_servers}
    create(broker, "busy", 1)
    before = scrape(broker)
    producer = Producer({**config, "linger.ms": 0, "batch.num.messages": 1})
    for _ in range(200):  # a request a record: most of them take the lane
        producer.produce("busy", b"x" * 1000, partition=0)
    assert producer.flush(30) == 0
    reader = Consumer({**config, "group.id": "busy", "auto.offset.reset": "earliest"})
    reader.assign([TopicPartition("busy", 0, 0)])
    assert len(reader.consume(200, 30)) == 200
    reader.close()
    seen = scrape(broker)
    assert seen.content_type.startswith("text/plain; version=0.0.4")
    assert seen.get("kafka_server_brokertopicmetrics_messagesin_total", topic="busy") == 200
    assert seen.get("penstock_batches_in_total", topic="busy") == 200
    size = seen.get("kafka_log_log_size", topic="busy", partition="0")
    assert size > 200 * 1000
    assert seen.get("kafka_server_brokertopicmetrics_bytesin_total", topic="busy") == size
    assert seen.get("kafka_server_brokertopicmetrics_bytesout_total", topic="busy") >= size
    assert seen.get("penstock_messages_out_total", topic="busy") >= 200
    produced = "kafka_network_requestmetrics_requests_total"
    assert seen.get(produced, request="Produce") - before.get(produced, request="Produce") == 200
    took = "penstock_request_duration_seconds"
    assert seen.get(f"{took}_count", request="Fetch") > 0
    # One in seventeen is timed and counts for seventeen: roughly what came in.
    timed = seen.get(f"{took}_count", request="Produce") - before.get(f"{took}_count", request="Produce")
    assert 150 <= timed <= 250
    assert seen.get("penstock_log_flushes_total") > before.get("penstock_log_flushes_total")
    assert seen.get("penstock_connections", listener="PLAINTEXT") >= 1
    assert seen.kinds["kafka_server_brokertopicmetrics_messagesin"] == "counter"


def test_the_state_of_the_cluster(broker: BrokerProcess) -> None:
    config = {"bootstrap.servers": broker.bootstrap_servers}
    admin = create(broker, "short-lived", 2)
    producer = Producer(config)
    producer.produce("short-lived", b"x", partition=1)
    assert producer.flush(10) == 0
    seen = scrape(broker)
    assert seen.get("kafka_brokers") == 1
    assert seen.get("kafka_topic_partitions", topic="short-lived") == 2
    for name, number in {
        "kafka_topic_partition_leader": 1,
        "kafka_topic_partition_leader_is_preferred": 1,
        "kafka_topic_partition_replicas": 1,
        "kafka_topic_partition_in_sync_replica": 1,
        "kafka_topic_partition_under_replicated_partition": 0,
        "kafka_topic_partition_oldest_offset": 0,
    }.items():
        assert seen.all(name, topic="short-lived") == {"0": number, "1": number}, name
    assert seen.get("kafka_server_replicamanager_underreplicatedpartitions") == 0
    assert seen.get("kafka_controller_kafkacontroller_offlinepartitionscount") == 0
    assert seen.get("process_resident_memory_bytes") > 1 << 20
    admin.delete_topics(["short-lived"])["short-lived"].result(10)
    assert "short-lived" not in scrape(broker).page


def test_the_page_names_every_metric(broker: BrokerProcess) -> None:
    of_brokers, _ = PAGE.read_text(encoding="utf-8").split(OF_TABLES)
    described = set(re.findall(r"`((?:kafka|penstock|process)_\w+)`", of_brokers))
    shown = set(re.findall(r"^# TYPE (\w+) ", scrape(broker).page, re.MULTILINE))
    assert len(shown) > 30
    assert described == shown


def test_another_process_of_the_gateway_serves_them_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, GATEWAY) as broker:
        first = scrape(broker)
        (gateway,) = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
        os.kill(int(gateway), signal.SIGKILL)
        second = scrape(broker)  # waits in the backlog until there is a process again
        assert second.get("process_start_time_seconds") == first.get("process_start_time_seconds")
        assert broker.terminate() == 0


def test_logs_as_json_from_both_processes(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {**GATEWAY, "penstock.log.format": "json"}) as broker:
        assert "kafka_brokers 1" in scrape(broker).page
        assert broker.terminate() == 0
        lines = [json.loads(line) for line in broker.log().splitlines()]
    assert {"broker"} <= {line["process"] for line in lines} <= {"broker", "gateway"}
    assert lines[-1]["message"] == "stopped cleanly"
    assert lines[-1]["level"] == "info"
