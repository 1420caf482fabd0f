"""Metrics show trouble: states that a healthy broker of one node does not have."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from penstock.config.broker import BrokerConfig
from penstock.config.gateway import CLOSED
from penstock.core.group.records import OffsetCommit
from penstock.core.shard.exchange import Marker
from penstock.core.txn.exchange import AddRequest, InitRequest
from penstock.model.new_topic import NewTopic
from penstock.model.sink_names import SINK_PREFIX, SINKS_TOPIC
from penstock.node.node import Node, no_supervisor
from penstock.records.batch import TRANSACTIONAL_BIT, read_header
from penstock.records.builder import Record, build_batch

AGE_MS = 120_000


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    settings = {**CLOSED, "log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    config, _ = BrokerConfig.load(None, {**settings, "log.flush.interval.messages": str(2**62)})
    started = Node(config, no_supervisor)
    await started.start()
    await started.controller.topics.create_topic(NewTopic("t", 2, 1))
    yield started
    await started.stop()


async def read(node: Node, name: str) -> dict[tuple[str, ...], float]:
    """By the values of the labels."""
    page = (await node.metrics_page()).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    return {tuple(sample.labels.values()): sample.value for sample in families[name].samples}


def append(node: Node, index: int, timestamp_ms: int, count: int = 1) -> None:
    data = build_batch([Record(b"k", b"v", timestamp_ms=timestamp_ms)] * count)
    node.partitions.get("t", index).append(read_header(data), data, node.clock.now_ms())


async def commit(node: Node, offset: int, group: str = "g", topic: str = "t") -> None:
    await node.groups.ensure_topic()
    shard = next(node.groups.shards()).shard
    shard.replay(OffsetCommit(group, topic, 0, offset, -1, "", node.clock.now_ms()))


@pytest.mark.asyncio
async def test_the_marker_of_a_spark_sink_is_no_lag(node: Node) -> None:
    await node.controller.topics.create_topic(NewTopic(SINKS_TOPIC, 1, 1))
    data = build_batch([Record(b"k", b"v")] * 5)
    node.partitions.get(SINKS_TOPIC, 0).append(read_header(data), data, node.clock.now_ms())
    await commit(node, 0)
    await commit(node, 1, f"{SINK_PREFIX}query", SINKS_TOPIC)
    for name in ("lag", "lag_sum", "lag_seconds", "current_offset"):
        assert {labels[0] for labels in await read(node, f"kafka_consumergroup_{name}")} == {"g"}


@pytest.mark.asyncio
async def test_offline_and_under_replicated_partitions(node: Node) -> None:
    assert await read(node, "kafka_controller_kafkacontroller_offlinepartitionscount") == {(): 0}
    broken, lonely = node.partitions.get("t", 0), node.partitions.get("t", 1)
    broken.log.offline = OSError(errno.EIO, "the disk is gone")
    lonely.metadata = replace(lonely.metadata, isr=())
    assert await read(node, "kafka_controller_kafkacontroller_offlinepartitionscount") == {(): 1}
    assert await read(node, "kafka_server_replicamanager_underreplicatedpartitions") == {(): 1}
    under = await read(node, "kafka_topic_partition_under_replicated_partition")
    assert under == {("t", "0"): 0, ("t", "1"): 1}
    broken.log.offline = None


@pytest.mark.asyncio
async def test_lag_in_seconds_is_the_age_of_the_first_record_not_committed(node: Node) -> None:
    now_ms = node.clock.now_ms()
    append(node, 0, now_ms - AGE_MS, 3)
    append(node, 0, now_ms, 2)
    await commit(node, 1)
    assert await read(node, "kafka_consumergroup_lag") == {("g", "t", "0"): 4}
    for _ in range(2):  # the second time from what was remembered
        ages = await read(node, "kafka_consumergroup_lag_seconds")
        assert AGE_MS / 1000 <= ages["g", "t", "0"] < AGE_MS / 1000 + 30
    await commit(node, 3)
    assert (await read(node, "kafka_consumergroup_lag_seconds"))["g", "t", "0"] < 30
    await commit(node, 5)
    assert await read(node, "kafka_consumergroup_lag_seconds") == {("g", "t", "0"): 0}
    await commit(node, 99)  # beyond the end, as a reset may leave it
    assert await read(node, "kafka_consumergroup_lag") == {("g", "t", "0"): 0}


@pytest.mark.asyncio
async def test_what_was_deleted_unread_is_lag_and_has_no_age(node: Node) -> None:
    now_ms = node.clock.now_ms()
    append(node, 0, now_ms - AGE_MS, 3)
    append(node, 0, now_ms, 2)
    await commit(node, 0)
    node.partitions.get("t", 0).delete_records(3)
    assert await read(node, "kafka_consumergroup_lag") == {("g", "t", "0"): 5}
    assert (await read(node, "kafka_consumergroup_lag_seconds"))["g", "t", "0"] < 30


@pytest.mark.asyncio
async def test_an_offline_partition_has_lag_without_an_age(node: Node) -> None:
    append(node, 0, node.clock.now_ms())
    await commit(node, 0)
    log = node.partitions.get("t", 0).log
    log.offline = OSError(errno.EIO, "the disk is gone")
    assert await read(node, "kafka_consumergroup_lag") == {("g", "t", "0"): 1}
    assert await read(node, "kafka_consumergroup_lag_seconds") == {}
    log.offline = None


def append_transactional(node: Node, producer_id: int, timestamp_ms: int, count: int = 2) -> None:
    """As of a client of transaction version 1, where transactions are not verified."""
    data = build_batch(
        [Record(b"k", b"v", timestamp_ms=timestamp_ms)] * count,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL_BIT,
    )
    node.partitions.get("t", 0).append(read_header(data), data, node.clock.now_ms())


@pytest.mark.asyncio
async def test_an_open_transaction_holds_the_last_stable_offset(node: Node) -> None:
    late = "kafka_server_replicamanager_partitionswithlatetransactionscount"
    append(node, 0, node.clock.now_ms(), 3)
    assert await read(node, "penstock_last_stable_offset_lag") == {}
    append_transactional(node, 7, node.clock.now_ms())
    assert await read(node, "penstock_last_stable_offset_lag") == {("t", "0"): 2}
    assert await read(node, late) == {(): 0}
    append_transactional(node, 8, node.clock.now_ms() - 3_600_000)
    assert await read(node, "penstock_last_stable_offset_lag") == {("t", "0"): 4}
    assert await read(node, late) == {(): 1}
    for producer_id in (7, 8):
        node.partitions.get("t", 0).append_marker(Marker(producer_id, 0, False, 0, 0), node.clock.now_ms())
    assert await read(node, "penstock_last_stable_offset_lag") == {}
    assert await read(node, late) == {(): 0}


@pytest.mark.asyncio
async def test_transactions_of_the_coordinator(node: Node) -> None:
    transactions = node.coordinators.transactions
    await transactions.ensure_topic()
    for _ in range(500):
        if all(hosted.is_ready for hosted in transactions.shards()):
            break
        await asyncio.sleep(0.02)
    nobody = await read(node, "penstock_transactional_ids")
    assert set(nobody.values()) == {0}
    assert ("PrepareCommit",) in nobody
    assert await read(node, "penstock_transaction_oldest_age_seconds") == {(): 0}

    begun = await transactions.init_producer_id(InitRequest("slow", 300))
    await transactions.add_partitions(
        AddRequest("slow", begun.producer_id, begun.epoch, frozenset((("t", 0),)), version=2)
    )
    states = await read(node, "penstock_transactional_ids")
    assert states["Ongoing",] == 1
    assert await read(node, "penstock_transactions_open") == {(): 1}
    assert 0 < (await read(node, "penstock_transaction_oldest_age_seconds"))[()] < 60
    assert await read(node, "penstock_transaction_timeouts") == {(): 0}
    for _ in range(200):
        if (await read(node, "penstock_transactional_ids"))["CompleteAbort",]:
            break
        await asyncio.sleep(0.05)
    assert await read(node, "penstock_transaction_timeouts") == {(): 1}
    assert await read(node, "penstock_transaction_markers_waiting") == {(): 0}
    assert await read(node, "penstock_transactions_open") == {(): 0}
