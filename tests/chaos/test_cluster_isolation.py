"""A leader cut off from the other brokers, while clients still reach it.

Records that it receives meanwhile are not acknowledged, except to clients that asked for no replicas. Another leads,
clients move over by themselves, and when the cable is back the old leader's own records are cut off its log.
Cables are pulled between network namespaces: root only, elsewhere these tests are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.errors import ErrorCode
from penstock.records.builder import Record, build_batch
from support.clients.history import pauses
from support.clients.history_clients import IMPATIENT, Traffic
from support.clients.raw import RawClient
from support.processes.cluster import ClusterProcesses, NodeProcess, isolated
from support.processes.network import CLIENTS, NetworkUnavailable, RoutedNetwork
from support.processes.promises import Tell, check_promises, describe_traffic

TOPIC = "chaos"
REFUSED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    try:
        network = RoutedNetwork(3).__enter__()
    except NetworkUnavailable as error:
        pytest.skip(str(error))
    try:
        with ClusterProcesses(tmp_path, network=network) as processes:
            processes.create_topic(TOPIC, 1)
            yield processes
    finally:
        network.close()


def stray(number: int) -> bytes:
    """A record of a writer that no history knows: if it is in the log in the end, that is a violation."""
    value = b"stray:0:%d:" % number
    return build_batch([Record(None, value, timestamp_ms=int(time.time() * 1000))])


def write_to(node: NodeProcess, number: int, acks: int) -> ErrorCode:
    with RawClient(node.port, host=node.host, timeout_s=60) as client:
        client.send_batch(TOPIC, 0, stray(number), acks)
        return ErrorCode(client.read_produced().error_code)


def wait_for_another(cluster: ClusterProcesses, leader: NodeProcess) -> float:
    return cluster.wait_until(
        lambda: cluster.partitions(TOPIC)[0].leader not in (-1, leader.node_id), "another leader", timeout_s=90
    )


def test_isolated_leader(cluster: ClusterProcesses, tell: Tell) -> None:
    with Traffic(cluster.bootstrap_servers, TOPIC, 1, settings=IMPATIENT) as traffic:
        traffic.pause(1.0)
        leader = cluster.leader_of(TOPIC, 0)
        cut_at = time.monotonic()
        with isolated(cluster, leader):
            without_replicas = write_to(leader, 0, acks=1)
            answers = [write_to(leader, 1, acks=-1)]
            took_s = time.monotonic() - cut_at
            wait_for_another(cluster, leader)
            moved_s = time.monotonic() - cut_at
            traffic.await_progress(timeout_s=90)
            answers.append(write_to(leader, 2, acks=-1))
        cluster.wait_in_sync(TOPIC)
        traffic.await_progress()
    tell(
        f"acks=1 at once: {without_replicas.name}; acks=all: {answers[0].name} after {took_s:.2f} s, "
        f"{answers[1].name} once another led ({moved_s:.2f} s)"
    )
    tell(f"pause of a producer: {pauses(traffic.history, [cut_at], traffic.ended_s)}")
    tell(describe_traffic(traffic))
    assert all(answer in REFUSED for answer in answers)
    check_promises(cluster, traffic, TOPIC, 1)


def test_isolated_with_its_clients(cluster: ClusterProcesses, tell: Tell) -> None:
    """As above, but clients lose it too: they must not wait for it forever."""
    network = cluster.network
    assert isinstance(network, RoutedNetwork)
    with Traffic(cluster.bootstrap_servers, TOPIC, 1, settings=IMPATIENT) as traffic:
        traffic.pause(1.0)
        leader = cluster.leader_of(TOPIC, 0)
        cut_at = time.monotonic()
        with isolated(cluster, leader):
            network.cut(CLIENTS, leader.node_id)
            network.cut(leader.node_id, CLIENTS)
            wait_for_another(cluster, leader)
            moved_s = time.monotonic() - cut_at
            traffic.await_progress(timeout_s=110)
        cluster.wait_in_sync(TOPIC)
    tell(f"another leader after {moved_s:.2f} s; pause: {pauses(traffic.history, [cut_at], traffic.ended_s)}")
    check_promises(cluster, traffic, TOPIC, 1)


def test_follower_that_hears_but_cannot_speak(cluster: ClusterProcesses, tell: Tell) -> None:
    """One way only: what a follower sends is lost. It leaves the ISR, the others go on, it comes back."""
    network = cluster.network
    assert isinstance(network, RoutedNetwork)
    with Traffic(cluster.bootstrap_servers, TOPIC, 1, settings=IMPATIENT) as traffic:
        leader = cluster.leader_of(TOPIC, 0)
        follower = next(node for node in cluster.running if node is not leader)
        cut_at = time.monotonic()
        follower.is_aside = True
        for other in cluster.nodes:
            if other != follower.node_id:
                network.cut(follower.node_id, other)
        cluster.wait_until(
            lambda: follower.node_id not in cluster.partitions(TOPIC)[0].isrs, "it leaves the ISR", timeout_s=90
        )
        left_s = time.monotonic() - cut_at
        traffic.await_progress()
        network.heal()
        follower.is_aside = False
        cluster.wait_in_sync(TOPIC)
    tell(f"out of the ISR after {left_s:.2f} s; pause: {pauses(traffic.history, [cut_at], traffic.ended_s)}")
    check_promises(cluster, traffic, TOPIC, 1)
