"""Kafka's Java clients: what they alone do on the wire, and what they make of what is not there.

Needs Java and Kafka's jars (`conftest.py`). Runs only with `-m kafka_jars`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from support.processes.broker import BrokerProcess

pytestmark = pytest.mark.kafka_jars

PROGRAM = Path(__file__).with_name("JavaClients.java")
PATIENCE_S = 120
FEW_REQUESTS = 500
ROWS = 1_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("java")) as running:
        yield running


def seen_by_java(jars: str, broker: BrokerProcess, what: str, *more: str) -> dict[str, str]:
    """By the first word of each line."""
    command = ["java", "-cp", jars, str(PROGRAM), what, broker.bootstrap_servers, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    return {word: rest for word, _, rest in lines}


def test_a_consumer_that_subscribes_by_pattern_reads(jars: str, broker: BrokerProcess) -> None:
    """It asks for the topics by id, with an empty name beside it, and used to ask thousands of times a second."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for topic in ("pattern-a", "pattern-b"):
        producer.produce(topic, topic.encode())
    assert producer.flush(PATIENCE_S) == 0
    seen = seen_by_java(jars, broker, "pattern", "2")
    assert sorted(seen["values"].split(",")) == ["pattern-a", "pattern-b"]
    assert seen["partitions"] == "2"
    assert int(seen["requests"]) < FEW_REQUESTS


def test_a_transaction_takes_rows_from_topic_to_topic(jars: str, broker: BrokerProcess) -> None:
    """Version 2 of the protocol: the broker adds the partitions, and the epoch rises at each end."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for row in range(ROWS):
        producer.produce("java-in", str(row))
    assert producer.flush(PATIENCE_S) == 0
    seen = seen_by_java(jars, broker, "transaction", str(ROWS))
    assert seen["rows"].split(",") == [str(row) for row in range(ROWS)]
    assert int(seen["aborted"]) > 0
    assert seen["state"] == "CompleteCommit"
    assert int(seen["epochs"]) > int(seen["aborted"])
    assert seen["listed"] == "1"


def test_an_administrator_is_told_what_is_not_there(jars: str, broker: BrokerProcess) -> None:
    seen = seen_by_java(jars, broker, "administration")
    assert seen == {"acls": "SecurityDisabledException", "quotas": "0", "transactions": "1"}
