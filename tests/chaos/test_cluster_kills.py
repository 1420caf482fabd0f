"""Three brokers, three replicas, acks=all: what was acknowledged stays, once and in order, whoever dies.

Idempotent librdkafka producers at a steady rate and a consumer never stop while brokers are killed with -9, one at a
time or all at once, or are frozen. PENSTOCK_CLUSTER_SECONDS sets for how long leaders are killed (default 20;
`make chaos-cluster` two minutes).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clients.history import pauses
from support.clients.history_clients import IMPATIENT, Traffic
from support.processes.cluster import ClusterProcesses, frozen
from support.processes.promises import Tell, check_promises, describe_traffic

SECONDS = float(os.environ.get("PENSTOCK_CLUSTER_SECONDS", "20"))
KILL_EVERY_S = 5.0
DOWN_S = 1.5
TOPIC, PARTITIONS = "chaos", 3
# Small segments, so that kills meet rolls.
SETTINGS = {"log.segment.bytes": str(1 << 20)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, SETTINGS) as processes:
        processes.create_topic(TOPIC, PARTITIONS)
        yield processes


def test_leaders_killed_one_after_another(cluster: ClusterProcesses, tell: Tell) -> None:
    kills: list[float] = []
    with Traffic(cluster.bootstrap_servers, TOPIC, PARTITIONS) as traffic:
        traffic.pause(1.0)
        begin = time.monotonic()
        while not kills or time.monotonic() - begin < SECONDS:
            leader = cluster.leader_of(TOPIC, len(kills) % PARTITIONS)
            kills.append(time.monotonic())
            leader.kill()
            traffic.pause(DOWN_S)
            leader.start()
            cluster.wait_in_sync(TOPIC)
            traffic.await_progress()
            traffic.pause(max(0.0, kills[-1] + KILL_EVERY_S - time.monotonic()))
    tell(f"{len(kills)} kills; pause of a producer: {pauses(traffic.history, kills, traffic.ended_s)}")
    tell(describe_traffic(traffic))
    check_promises(cluster, traffic, TOPIC, PARTITIONS)


def test_all_killed_at_once(cluster: ClusterProcesses, tell: Tell) -> None:
    rng = random.Random(3)
    kills: list[float] = []
    with Traffic(cluster.bootstrap_servers, TOPIC, PARTITIONS, rate=1000) as traffic:
        for _ in range(2):
            traffic.pause(rng.uniform(1.0, 2.0))
            kills.append(time.monotonic())
            nodes = list(cluster.nodes.values())
            for node in nodes:
                node.kill()
            for node in nodes:
                node.launch()
            for node in nodes:
                node.wait_ready()
            traffic.await_progress()
    tell(f"all killed and started again; pause of a producer: {pauses(traffic.history, kills, traffic.ended_s)}")
    tell(describe_traffic(traffic))
    check_promises(cluster, traffic, TOPIC, PARTITIONS)


def test_frozen_leader(cluster: ClusterProcesses, tell: Tell) -> None:
    """SIGSTOP: it answers nobody, yet its sockets stay open. Thawed, it must find out that others lead now."""
    frozen_at: list[float] = []
    with Traffic(cluster.bootstrap_servers, TOPIC, PARTITIONS, settings=IMPATIENT) as traffic:
        traffic.pause(1.0)
        leader = cluster.leader_of(TOPIC, 0)
        frozen_at.append(time.monotonic())
        with frozen(leader):
            cluster.wait_until(
                lambda: cluster.partitions(TOPIC)[0].leader not in (-1, leader.node_id), "another leader of partition 0"
            )
            moved_s = time.monotonic() - frozen_at[0]
            traffic.await_progress(timeout_s=90)
        cluster.wait_in_sync(TOPIC)
        traffic.await_progress()
    tell(f"another leader after {moved_s:.2f} s; pause: {pauses(traffic.history, frozen_at, traffic.ended_s)}")
    tell(describe_traffic(traffic))
    check_promises(cluster, traffic, TOPIC, PARTITIONS)


def test_frozen_for_a_moment(cluster: ClusterProcesses, tell: Tell) -> None:
    """Too short for anybody to be given up: no leader changes, nothing is lost."""
    moments: list[float] = []
    with Traffic(cluster.bootstrap_servers, TOPIC, PARTITIONS) as traffic:
        for node in cluster.nodes.values():
            traffic.pause(0.3)
            moments.append(time.monotonic())
            with frozen(node):
                time.sleep(0.5)
            traffic.await_progress()
    tell(f"each frozen for 0.5 s; pause of a producer: {pauses(traffic.history, moments, traffic.ended_s)}")
    check_promises(cluster, traffic, TOPIC, PARTITIONS)
