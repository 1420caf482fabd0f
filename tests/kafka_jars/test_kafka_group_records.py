"""Kafka's own dump-log tool decodes our group records: committed offsets, classic and consumer groups.

Needs Java and Kafka's jars (`conftest.py`). Runs only with `-m kafka_jars`.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from test_kafka_dump_log import kafka_dump

from support.processes.broker import BrokerProcess

pytestmark = pytest.mark.kafka_jars

PATIENCE_S = 40
LINE = re.compile(r"key: (\{.*?\}) payload: (.*)$")
# Types of key: an offset, a classic group; a consumer group's epoch, member, target epoch, target,
# assignment and expression.
EVERYTHING = {"1", "2", "3", "5", "6", "7", "8", "16"}


def wait_until_assigned(consumers: list[Consumer], *counts: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while [len(consumer.assignment()) for consumer in consumers] != list(counts):
        assert time.monotonic() < deadline, f"not assigned: {counts}"
        for consumer in consumers:
            consumer.poll(0.05)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A group that moved to the new protocol, committed, and moved back."""
    settings = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("groups"), settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 4)])["t"].result(PATIENCE_S)
        common = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0}
        strategy = {"partition.assignment.strategy": "cooperative-sticky"}
        old = Consumer({**common, **strategy})
        old.subscribe(["t"])
        wait_until_assigned([old], 4)
        new = Consumer({**common, "group.protocol": "consumer", "group.remote.assignor": "range"})
        new.subscribe(["^t.*"])
        wait_until_assigned([old, new], 2, 2)
        new.commit(offsets=[TopicPartition("t", 3, 7)], asynchronous=False)
        new.close()
        wait_until_assigned([old], 4)
        old.close()
        assert broker.terminate() == 0
        return broker.data


def test_every_kind_of_record_is_decoded(jars: str, data: Path) -> None:
    said = kafka_dump(jars, sorted((data / "__consumer_offsets-0").glob("*.log")), "--offsets-decoder")
    records = [(json.loads(found[1]), found[2]) for line in said.splitlines() if (found := LINE.search(line))]
    assert len(records) == said.count("| offset: ")
    values: dict[str, list[dict[str, object]]] = {}
    for key, payload in records:
        if payload != "<DELETE>":
            values.setdefault(key["type"], []).append(json.loads(payload)["data"])
    assert set(values) == EVERYTHING
    deleted = {key["type"] for key, payload in records if payload == "<DELETE>"}
    assert deleted == EVERYTHING - {"1"}
    assert values["1"][0]["offset"] == 7
    assert {value["serverAssignor"] for value in values["5"]} == {None, "range"}
    assert any("classicMemberMetadata" in value for value in values["5"])
    assert values["16"][0]["topics"] == ["t"]
    assert all(value["memberEpoch"] != 0 for value in values["8"])
