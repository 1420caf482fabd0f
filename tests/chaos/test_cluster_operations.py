"""The work of an operator on a cluster under traffic: look, restart, grow, shrink. No client may notice."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clients.history import pauses
from support.clients.history_clients import Traffic
from support.processes import cluster_admin
from support.processes.cluster import ClusterProcesses, run_command
from support.processes.promises import Tell, check_promises, describe_traffic

TOPIC, PARTITIONS = "events", 3
NONE_UNDER_REPLICATED = ""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path) as processes:
        processes.create_topic(TOPIC, PARTITIONS)
        yield processes


def wait_for_output(cluster: ClusterProcesses, arguments: tuple[str, ...], pattern: str) -> str:
    """Run a command until all it prints matches."""
    outputs: list[str] = []

    def matches() -> bool:
        outputs.append(run_command(cluster, *arguments))
        return re.fullmatch(pattern, outputs[-1]) is not None

    cluster.wait_until(matches, f"{' '.join(arguments)} prints {pattern!r}")
    return outputs[-1]


def test_describe_and_under_replicated(cluster: ClusterProcesses, tell: Tell) -> None:
    """Both commands through a follower's stop and return."""
    shown = run_command(cluster, "topics", "describe", "--name", TOPIC)
    tell("\n" + shown)
    lines = [re.fullmatch(r"Partition (\d): Leader=(\d), ISR=\[(\d),(\d),(\d)\]", line) for line in shown.splitlines()]
    assert len(lines) == PARTITIONS
    for number, line in enumerate(lines):
        assert line is not None, shown
        assert int(line[1]) == number
        assert sorted(line.groups()[2:]) == ["1", "2", "3"]
        assert line[2] in line.groups()[2:]
    assert sorted(line[2] for line in lines if line) == ["1", "2", "3"], "leaders are spread evenly"
    under_replicated = ("cluster", "under-replicated")
    assert run_command(cluster, *under_replicated) == NONE_UNDER_REPLICATED

    leader = cluster.leader_of(TOPIC, 0)
    follower = next(node for node in cluster.running if node is not leader)
    assert follower.terminate() == 0
    missing = rf"(?:\S+ Partition \d+: Leader=\d, ISR=\[\d(?:,\d)?\], Missing=\[{follower.node_id}\]\n)+"
    shown = wait_for_output(cluster, under_replicated, missing)
    tell(f"broker {follower.node_id} stopped:\n{shown}")
    assert [line for line in shown.splitlines() if line.startswith(f"{TOPIC} Partition 0:")]
    described = run_command(cluster, "topics", "describe", "--name", TOPIC)
    assert re.match(rf"Partition 0: Leader={leader.node_id}, ISR=\[\d,\d\]\n", described), described

    follower.start()
    wait_for_output(cluster, under_replicated, re.escape(NONE_UNDER_REPLICATED))
    cluster.check_logs()


def test_rolling_restart(cluster: ClusterProcesses, tell: Tell) -> None:
    """One after another is stopped and started again: leaders move first, so no request fails."""
    moments: list[float] = []
    with Traffic(cluster.bootstrap_servers, TOPIC, PARTITIONS) as traffic:
        for node in cluster.nodes.values():
            traffic.pause(0.5)
            moments.append(time.monotonic())
            assert node.terminate() == 0
            traffic.await_progress()
            node.start()
            cluster.wait_in_sync(TOPIC)
            traffic.await_progress()
    tell(f"pause of a producer: {pauses(traffic.history, moments, traffic.ended_s)}")
    tell(describe_traffic(traffic))
    check_promises(cluster, traffic, TOPIC, PARTITIONS)


def test_a_voter_moves_to_another_port(cluster: ClusterProcesses, tell: Tell) -> None:
    """Under traffic. Nobody's file is changed but its own: the quorum takes its new address over."""
    moments: list[float] = []
    mover, watcher = cluster.nodes[3], cluster.nodes[1]
    before = mover.address
    with Traffic(cluster.bootstrap_servers, TOPIC, PARTITIONS) as traffic:
        traffic.pause(0.5)
        moments.append(time.monotonic())
        assert mover.terminate() == 0
        cluster.move(mover)
        mover.start()
        cluster.wait_for_brokers()
        cluster.wait_in_sync(TOPIC)
        traffic.await_progress()
    tell(f"pause of a producer: {pauses(traffic.history, moments, traffic.ended_s)}")
    assert mover.address != before
    cluster.wait_until(
        lambda: cluster_admin.voter_addresses(cluster)[3] == (mover.host, mover.port), "the quorum has it at its port"
    )
    assert "still waiting to join" not in mover.log()
    assert watcher.terminate() == 0
    watcher.start()  # with a file that has the old address
    warning = f"names 3@{before}, but the quorum has node 3 at {mover.address}, which is used instead"
    cluster.wait_until(lambda: warning in watcher.log(), "it warns of its file")
    cluster.wait_in_sync(TOPIC)
    check_promises(cluster, traffic, TOPIC, PARTITIONS)


def test_a_vote_at_the_wrong_address_is_refused_and_an_id_is_never_used_up(cluster: ClusterProcesses) -> None:
    fourth, first = cluster.add(4), cluster.nodes[1]
    add = (sys.executable, "-m", "penstock.cli", "cluster", "add-voter", "4")
    for address, says in (
        (first.address, f"{first.address} says: this is node 1"),
        ("127.0.0.1", "127.0.0.1 has no port: write HOST:PORT"),
    ):
        command = (*add, address, "--bootstrap-server", cluster.bootstrap_servers)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode != 0
        assert says in ran.stderr
    assert cluster_admin.voter_ids(cluster) == [1, 2, 3]
    cluster_admin.add_voter(cluster, fourth)
    cluster_admin.remove_voter(cluster, fourth)
    for is_wiped in (False, True):
        assert fourth.terminate() == 0
        if is_wiped:
            cluster.wait_for_brokers()
            cluster_admin.unregister(cluster, 4)
            shutil.rmtree(fourth.data)
        cluster.move(fourth)
        fourth.start()
        cluster.wait_for_brokers()
        cluster.wait_until(
            lambda: any(one.replica_id == 4 for one in cluster_admin.quorum(cluster).observers), "4 is an observer"
        )
        cluster_admin.add_voter(cluster, fourth)
        assert cluster_admin.voter_addresses(cluster)[4] == (fourth.host, fourth.port)
        cluster_admin.remove_voter(cluster, fourth)
    cluster.check_logs()


def test_a_voter_whose_disk_is_lost_is_replaced_under_its_id(cluster: ClusterProcesses, tell: Tell) -> None:
    """As docs/cluster.md says: its vote first, as it has forgotten for whom it voted."""
    moments: list[float] = []
    lost = cluster.nodes[3]
    with Traffic(cluster.bootstrap_servers, TOPIC, PARTITIONS) as traffic:
        traffic.pause(0.5)
        moments.append(time.monotonic())
        lost.kill()
        shutil.rmtree(lost.data)
        lost.launch()
        cluster.wait_until(lambda: "its data directory is not the one" in lost.log(), "it is not let in")
        lost.kill()
        run_command(cluster, "cluster", "remove-voter", "3")
        lost.start()
        cluster.wait_for_brokers()
        wait_for_output(cluster, ("cluster", "under-replicated"), re.escape(NONE_UNDER_REPLICATED))
        run_command(cluster, "cluster", "add-voter", "3", lost.address)
        traffic.await_progress()
    tell(f"pause of a producer: {pauses(traffic.history, moments, traffic.ended_s)}")
    assert cluster_admin.voter_ids(cluster) == [1, 2, 3]
    cluster.wait_in_sync(TOPIC)
    check_promises(cluster, traffic, TOPIC, PARTITIONS)


def test_grow_and_shrink(cluster: ClusterProcesses, tell: Tell) -> None:
    """A fourth broker joins and gets its share; the first one is drained, stops and is forgotten."""
    moments: list[float] = []
    with Traffic(cluster.bootstrap_servers, TOPIC, PARTITIONS) as traffic:
        traffic.pause(0.5)
        moments.append(time.monotonic())
        fourth, first = cluster.add(4), cluster.nodes[1]
        tell("\n" + run_command(cluster, "cluster", "balance", "--watch"))
        shares = Counter(
            replica
            for topic in cluster.admin().list_topics(timeout=10).topics.values()
            for state in topic.partitions.values()
            for replica in state.replicas
        )
        assert sorted(shares) == [1, 2, 3, 4]
        assert max(shares.values()) - min(shares.values()) <= 1, shares
        moments.append(time.monotonic())
        tell("\n" + run_command(cluster, "cluster", "drain", "1", "--watch"))
        cluster.wait_in_sync(TOPIC)
        cluster.wait_until(
            lambda: not any(first.partition_bytes(TOPIC, number) for number in range(PARTITIONS)),
            "the first broker's files go",
        )
        run_command(cluster, "cluster", "add-voter", "4", fourth.address)
        moments.append(time.monotonic())
        assert first.terminate() == 0
        del cluster.nodes[1]
        cluster.wait_for_brokers()  # one that is not fenced yet may be running
        run_command(cluster, "cluster", "remove", "1")
        traffic.await_progress()
    tell(
        "pause of a producer (broker 4 joins, 1 is drained, 1 goes): "
        f"{pauses(traffic.history, moments, traffic.ended_s)}"
    )
    assert cluster_admin.voter_ids(cluster) == [2, 3, 4]
    for state in cluster.partitions(TOPIC).values():
        assert sorted(state.replicas) == [2, 3, 4]
    check_promises(cluster, traffic, TOPIC, PARTITIONS)
