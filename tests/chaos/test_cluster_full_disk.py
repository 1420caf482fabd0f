"""One broker's disk is full: the others go on, nothing acknowledged is lost, and with room again it comes back.

As root the disk is a tmpfs of a few megabytes; otherwise a limit on the size of files, which fills up alike.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.clients.history_clients import Traffic
from support.processes.cluster import ClusterProcesses, NodeProcess
from support.processes.promises import Tell, check_promises, describe_traffic

TOPIC = "chaos"
SMALL_BYTES, LARGE_BYTES = 12 << 20, 512 << 20
SETTINGS = {"log.segment.bytes": str(64 << 20), "log.index.size.max.bytes": "65536"}


class SmallDisk:
    """Under the data directory of a node that does not run yet."""

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self._is_mounted = False

    def __enter__(self) -> SmallDisk:
        if os.geteuid() == 0:
            self._node.data.mkdir()
            self._mount("-t", "tmpfs", "-o", f"size={SMALL_BYTES}", "penstock-test", str(self._node.data))
            self._is_mounted = True
        else:
            self._node.file_size_limit = SMALL_BYTES
        return self

    def make_room(self) -> None:
        if self._is_mounted:
            self._mount("-o", f"remount,size={LARGE_BYTES}", str(self._node.data))
        else:
            resource.prlimit(self._node.pid, resource.RLIMIT_FSIZE, (LARGE_BYTES, resource.RLIM_INFINITY))

    @staticmethod
    def _mount(*arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)

    def __exit__(self, *_: object) -> None:
        if self._is_mounted:
            subprocess.run(["umount", "--lazy", str(self._node.data)], check=True, capture_output=True)


@contextmanager
def with_small_disk(
    directory: Path, node_id: int, assignment: list[int]
) -> Iterator[tuple[ClusterProcesses, SmallDisk]]:
    cluster = ClusterProcesses(directory, SETTINGS)
    with SmallDisk(cluster.nodes[node_id]) as disk, cluster:
        cluster.create_topic(TOPIC, assignment=[assignment])
        yield cluster, disk


def traffic_on(cluster: ClusterProcesses) -> Traffic:
    """About 4 MB/s."""
    return Traffic(cluster.bootstrap_servers, TOPIC, 1, rate=400, value_bytes=10_000)


def test_full_disk_of_a_follower(tmp_path: Path, tell: Tell) -> None:
    with with_small_disk(tmp_path, 3, [1, 2, 3]) as (cluster, disk):
        with traffic_on(cluster) as traffic:
            took_s = cluster.wait_until(
                lambda: 3 not in cluster.partitions(TOPIC)[0].isrs, "the follower leaves the ISR", timeout_s=90
            )
            traffic.await_progress()
            disk.make_room()
            cluster.wait_in_sync(TOPIC, timeout_s=90)
            traffic.await_progress()
        tell(f"full and out of the ISR {took_s:.1f} s after the start")
        tell(describe_traffic(traffic))
        check_promises(cluster, traffic, TOPIC, 1)


def test_full_disk_of_the_leader(tmp_path: Path, tell: Tell) -> None:
    """It cannot store, so it does not acknowledge: another one leads, and writing goes on while the disk is full."""
    with with_small_disk(tmp_path, 1, [1, 2, 3]) as (cluster, disk):
        with traffic_on(cluster) as traffic:
            took_s = cluster.wait_until(
                lambda: cluster.partitions(TOPIC)[0].leader in (2, 3), "another one leads", timeout_s=90
            )
            traffic.await_progress()
            cluster.wait_until(lambda: 1 not in cluster.partitions(TOPIC)[0].isrs, "it leaves the ISR")
            traffic.pause(2.0)
            disk.make_room()
            traffic.await_progress()
            cluster.wait_in_sync(TOPIC, timeout_s=120)
            assert cluster.nodes[1].is_running
        tell(f"full, and led by another {took_s:.1f} s after the start; {describe_traffic(traffic)}")
        check_promises(cluster, traffic, TOPIC, 1)


@pytest.fixture(autouse=True)
def _no_mounts_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text(), "a disk is still mounted"
