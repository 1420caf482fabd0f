"""Kafka's own dump tool on all that a broker wrote for transactions: decisions, offsets, markers, aborted ones.

Needs Java and Kafka's jars (`conftest.py`). Runs only with `-m kafka_jars`.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from test_kafka_dump_log import kafka_dump
from test_kafka_java_clients import seen_by_java

from penstock.wire.apis import Api
from penstock.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from support.clients.prepared_transactions import prepare
from support.clients.raw import RawClient
from support.processes.broker import BrokerProcess

pytestmark = pytest.mark.kafka_jars

PATIENCE_S = 40
LINE = re.compile(r"key: (\{.*?\}\}) payload: (.*)$")
MARKER = re.compile(r"offset: (\d+) .*endTxnMarker: (\w+)")
ABORTED = re.compile(r"lastOffset: (\d+)")
ROWS = 600
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
TWO_PHASE_TIMEOUT_MS = 2**31 - 1
FORGOTTEN = {
    "transactional.id.expiration.ms": "1",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
}


class Written(NamedTuple):
    data: Path
    java: dict[str, str]
    """What the Java client says it did."""


@pytest.fixture(scope="module")
def written(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Java's client of version 2, librdkafka's of version 1, a prepared one that is decided, one that is left open."""
    settings = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
    with BrokerProcess(tmp_path_factory.mktemp("transactions"), settings) as broker:
        servers = broker.bootstrap_servers
        topics = [NewTopic(name, 1) for name in ("java-in", "java-out-0", "java-out-1", "old", "prepared")]
        admin = AdminClient({"bootstrap.servers": servers})
        for made in admin.create_topics(topics).values():
            made.result(PATIENCE_S)
        source = Producer({"bootstrap.servers": servers})
        for row in range(ROWS):
            source.produce("java-in", str(row))
        assert source.flush(PATIENCE_S) == 0
        java = seen_by_java(jars, broker, "transaction", str(ROWS))
        prepare(broker.port, "two-phase", "prepared").end(commit=True)
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "version 1", "log_level": 0})
        producer.init_transactions(PATIENCE_S)
        for ends in (producer.abort_transaction, producer.commit_transaction, None):
            producer.begin_transaction()
            producer.produce("old", b"row")
            assert producer.flush(PATIENCE_S) == 0
            if ends is not None:
                ends(PATIENCE_S)
        broker.kill()
        broker.start()
        assert broker.terminate() == 0
        return Written(broker.data, java)


def decoded(jars: str, data: Path, partition: str, decoder: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Key and value of every record."""
    said = kafka_dump(jars, sorted((data / partition).glob("*.log")), decoder)
    found = [match.groups() for line in said.splitlines() if (match := LINE.search(line))]
    assert len(found) == said.count("payload:") > 0, said
    return [(json.loads(key), None if value == "<DELETE>" else json.loads(value)) for key, value in found]


def told(records: list[tuple[dict[str, Any], dict[str, Any] | None]], name: str) -> list[dict[str, Any]]:
    """The coordinator's records of one transactional id, in order."""
    values = (value for key, value in records if key["data"]["transactionalId"] == name)
    return [value["data"] for value in values if value is not None]


def test_every_decision_of_the_coordinator_is_decoded(jars: str, written: Written) -> None:
    records = decoded(jars, written.data, "__transaction_state-0", "--transaction-log-decoder")
    java = told(records, "java")
    states = [value["transactionStatus"] for value in java]
    assert states[0] == EMPTY
    assert states[-2:] == [PREPARE_COMMIT, COMPLETE_COMMIT]
    assert states.count(COMPLETE_ABORT) == int(written.java["aborted"])
    assert {value["producerEpoch"] for value in java} == set(range(int(written.java["epochs"]) + 1))
    partitions = {one["topic"]: one["partitionIds"] for value in java for one in value["transactionPartitions"] or ()}
    assert partitions == {"java-out-0": [0], "java-out-1": [0], "__consumer_offsets": [0]}
    assert all(value["clientTransactionVersion"] == 2 for value in java[1:])

    old = told(records, "version 1")
    assert [value["transactionStatus"] for value in old] == [
        *(EMPTY, ONGOING, PREPARE_ABORT, COMPLETE_ABORT, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT, ONGOING)
    ]
    assert len({(value["producerId"], value["producerEpoch"]) for value in old}) == 1

    prepared = told(records, "two-phase")
    assert [value["transactionStatus"] for value in prepared] == [EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT]
    assert {value["transactionTimeoutMs"] for value in prepared} == {TWO_PHASE_TIMEOUT_MS}


def test_offsets_of_transactions_are_decoded(jars: str, written: Written) -> None:
    """Committed and aborted ones, and the markers between them."""
    records = decoded(jars, written.data, "__consumer_offsets-0", "--offsets-decoder")
    offsets = [
        value["data"]["offset"]
        for key, value in records
        if value is not None and key["type"] == "1" and key["data"]["group"] == "java-transactions"
    ]
    assert offsets[-1] == ROWS
    assert len(offsets) > len(set(offsets)), "an aborted transaction was done again"
    assert offsets == sorted(offsets)


@pytest.mark.parametrize("topic", ["java-out-0", "java-out-1", "old", "prepared"])
def test_every_abort_marker_has_its_entry_in_the_index(jars: str, written: Written, topic: str) -> None:
    directory = written.data / f"{topic}-0"
    markers = MARKER.findall(kafka_dump(jars, sorted(directory.glob("*.log")), "--print-data-log"))
    assert "COMMIT" in {kind for _, kind in markers}
    aborts = [offset for offset, kind in markers if kind == "ABORT"]
    if topic == "prepared":
        assert not aborts
        assert not list(directory.glob("*.txnindex"))
    else:
        assert aborts
        assert ABORTED.findall(kafka_dump(jars, sorted(directory.glob("*.txnindex")))) == aborts


def test_a_transactional_id_that_is_forgotten_is_a_tombstone(jars: str, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"transaction.state.log.num.partitions": "1", **FORGOTTEN}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
        prepare(broker.port, "short-lived", "t").end(commit=False)
        client = RawClient(broker.port)
        asked = Api.LIST_TRANSACTIONS, ListTransactionsRequest(), ListTransactionsResponse, 1
        deadline = time.monotonic() + PATIENCE_S
        while client.call(*asked).transaction_states:
            assert time.monotonic() < deadline, "it is still known"
            time.sleep(0.1)
        assert broker.terminate() == 0
        records = decoded(jars, broker.data, "__transaction_state-0", "--transaction-log-decoder")
    assert records[-1] == ({"type": "0", "data": {"transactionalId": "short-lived"}}, None)
