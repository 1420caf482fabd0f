"""A partition moves to another broker under load.

PENSTOCK_CLUSTER_MB sets its size (default 64; `make chaos-cluster` 1000). How far it is is read off the
disks; what is under way off ListPartitionReassignments, the way tools do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from support.clients.history import Acknowledged, History, Sent, pauses
from support.clients.history_clients import Traffic, parse
from support.processes import cluster_admin
from support.processes.cluster import ClusterProcesses
from support.processes.promises import Tell, check_promises, describe_traffic

MB = int(os.environ.get("PENSTOCK_CLUSTER_MB", "64"))
TOPIC = "moved"
FILL_BYTES = 100_000
# What a copy may cost beside its bytes: frames, headers, metadata, and the traffic's own share of both.
OVERHEAD, OVERHEAD_BYTES = 1.05, 4_000_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    # Moving less than the log: throttles and segments as they come, two replicas so that one broker has none.
    with ClusterProcesses(tmp_path) as processes:
        processes.create_topic(TOPIC, assignment=[[1, 2]], config={"min.insync.replicas": "1"})
        yield processes


def fill(cluster: ClusterProcesses, history: History, megabytes: int) -> None:
    """So much, as fast as it goes."""

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, str(error)
        offset = message.offset()
        assert offset is not None
        history.acknowledged.append(Acknowledged(time.monotonic(), "fill", 0, parse(message.value())[1], offset))

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 0})
    padding = os.urandom(FILL_BYTES)
    for number in range(megabytes * 1_000_000 // FILL_BYTES):
        while len(producer) > 200:
            producer.poll(0.05)
        history.sent.append(Sent(time.monotonic(), "fill", 0, number))
        producer.produce(TOPIC, b"fill:0:%d:" % number + padding, partition=0, on_delivery=on_delivery)
    assert producer.flush(120) == 0


def watch(cluster: ClusterProcesses, tell: Tell, timeout_s: float = 600) -> float:
    """Until the move is over, saying how far it is; the seconds it took."""
    begin, told = time.monotonic(), -1
    source, target = cluster.nodes[2], cluster.nodes[3]
    while under_way := cluster_admin.reassignments(cluster):
        assert under_way == {(TOPIC, 0): ([3], [1])}
        share = 100 * target.partition_bytes(TOPIC, 0) // max(1, source.partition_bytes(TOPIC, 0))
        if share // 20 > told:
            told = share // 20
            tell(f"{share} % after {time.monotonic() - begin:.1f} s")
        assert time.monotonic() - begin < timeout_s, f"stuck at {share} %\n{cluster.log_tails()}"
        time.sleep(0.05)
    return time.monotonic() - begin


def test_moved_under_load(cluster: ClusterProcesses, tell: Tell) -> None:
    traffic = Traffic(cluster.bootstrap_servers, TOPIC, 1, rate=400, value_bytes=1000)
    fill(cluster, traffic.history, MB)
    target = cluster.nodes[3]
    with traffic:
        traffic.pause(0.5)
        before, began_at = target.usage(), time.monotonic()
        assert target.partition_bytes(TOPIC, 0) == 0
        cluster_admin.reassign(cluster, {(TOPIC, 0): [2, 3]})
        took_s = watch(cluster, tell)
        traffic.await_progress()
        cluster.wait_until(lambda: cluster.nodes[1].partition_bytes(TOPIC, 0) == 0, "the old replica's files go")
    cluster.wait_in_sync(TOPIC)
    received = target.usage().read_bytes - before.read_bytes
    needed = cluster.nodes[2].partition_bytes(TOPIC, 0)
    tell(
        f"moved in {took_s:.1f} s: {needed / 1e6:.1f} MB needed, {received / 1e6:.1f} MB read by the new replica; "
        f"pause of a producer: {pauses(traffic.history, [began_at], traffic.ended_s)}"
    )
    tell(describe_traffic(traffic))
    state = cluster.partitions(TOPIC)[0]
    assert sorted(state.replicas) == sorted(state.isrs) == [2, 3]
    assert target.partition_bytes(TOPIC, 0) == needed
    assert received < needed * OVERHEAD + OVERHEAD_BYTES, "something was sent more than once"
    check_promises(cluster, traffic, TOPIC, 1)


def test_called_off(cluster: ClusterProcesses, tell: Tell) -> None:
    """Cancelled half way: the old replicas stay, what was copied goes."""
    traffic = Traffic(cluster.bootstrap_servers, TOPIC, 1)
    fill(cluster, traffic.history, 32)
    with traffic:
        # The new replica is away, so the move cannot end by itself.
        cluster.nodes[3].kill()
        cluster_admin.reassign(cluster, {(TOPIC, 0): [2, 3]})
        assert cluster_admin.reassignments(cluster) == {(TOPIC, 0): ([3], [1])}
        traffic.await_progress()
        cluster_admin.reassign(cluster, {(TOPIC, 0): None})
        cluster.wait_until(lambda: not cluster_admin.reassignments(cluster), "no move is under way")
        cluster.nodes[3].start()
        traffic.await_progress()
    assert sorted(cluster.partitions(TOPIC)[0].replicas) == [1, 2]
    cluster.wait_until(lambda: cluster.nodes[3].partition_bytes(TOPIC, 0) == 0, "nothing of it is on broker 3")
    tell(describe_traffic(traffic))
    check_promises(cluster, traffic, TOPIC, 1)
