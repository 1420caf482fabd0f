"""The checks at the end of every test of a real cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from support.clients.history import assert_kept
from support.clients.history_clients import Traffic, read_back
from support.processes.cluster import ClusterProcesses

Tell = Callable[[str], None]
"""Prints what was measured, whatever pytest captures (a fixture of tests/chaos)."""


def describe_traffic(traffic: Traffic) -> str:
    history = traffic.history
    latencies = sorted(_latencies(traffic))
    middle, late = (latencies[int(len(latencies) * share)] * 1000 for share in (0.5, 0.99))
    names = Counter(text.split(",")[0] for text in history.client_errors)
    said = ", ".join(f"{count}x {name}" for name, count in names.most_common(3))
    return (
        f"{len(history.acknowledged)} acknowledged, {len(history.failed)} failed, {len(history.read)} read; "
        f"acknowledged after {middle:.0f} ms (median), {late:.0f} ms (p99); clients said: {said or 'nothing'}"
    )


def _latencies(traffic: Traffic) -> list[float]:
    sent = {one[1:]: one.time_s for one in traffic.history.sent}
    return [one.time_s - sent[one.producer, one.partition, one.number] for one in traffic.history.acknowledged] or [0.0]


def check_promises(cluster: ClusterProcesses, traffic: Traffic, topic: str, partitions: int) -> None:
    """No request of a patient producer failed, its history holds, all replicas agree to the byte, nobody crashed."""
    try:
        _check_promises(cluster, traffic, topic, partitions)
    except AssertionError as error:
        said = "\n".join(traffic.history.client_errors[-20:])
        raise AssertionError(f"{error}\nclients said:\n{said}\n{cluster.log_tails(40)}") from None


def _check_promises(cluster: ClusterProcesses, traffic: Traffic, topic: str, partitions: int) -> None:
    history = traffic.history
    assert not history.failed, f"{len(history.failed)} failed, first {history.failed[0]}"
    assert len(history.acknowledged) == len(history.sent)
    assert history.read, "the consumer read nothing"
    cluster.wait_in_sync(topic)
    assert_kept(history, read_back(cluster.bootstrap_servers, topic, partitions))
    check_replicas(cluster, topic)
    cluster.check_logs()


def check_replicas(cluster: ClusterProcesses, topic: str) -> None:
    """After the last acknowledgement every replica in sync holds the same bytes."""
    cluster.wait_in_sync(topic)
    for partition, state in cluster.partitions(topic).items():
        digests = {replica: cluster.nodes[replica].partition_digest(topic, partition) for replica in state.replicas}
        assert len(dict.fromkeys(digests.values())) == 1, f"{topic}-{partition}: replicas differ: {digests}"
