"""The disk under one of three brokers hangs or fails, under load: another one leads, nothing acknowledged is lost, and
when the disk is well again the broker comes back by itself. A full disk: `test_cluster_full_disk.py`."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from disk_shim import FAILING, HANGING, WELL, BadDisk, compile_shim

from support.clients.history_clients import Traffic
from support.processes.cluster import ClusterProcesses
from support.processes.promises import Tell, check_promises, describe_traffic

TOPIC = "chaos"
SICK = 1
ROLES = {"leader": [1, 2, 3]}
if "PENSTOCK_CLUSTER_SECONDS" in os.environ:  # `make chaos-cluster`
    ROLES["follower"] = [2, 1, 3]


@pytest.mark.parametrize("assignment", ROLES.values(), ids=ROLES)
@pytest.mark.parametrize("fault", [HANGING, FAILING])
def test_a_disk_that_does_not_sync(fault: str, assignment: list[int], tmp_path: Path, tell: Tell) -> None:
    cluster = ClusterProcesses(tmp_path)
    sick = cluster.nodes[SICK]
    disk = BadDisk(sick, compile_shim(tmp_path))
    with cluster:
        cluster.create_topic(TOPIC, assignment=[assignment])
        with Traffic(cluster.bootstrap_servers, TOPIC, 1, rate=200, value_bytes=1000) as traffic:
            traffic.await_progress()
            disk.become(fault)
            began_s = time.monotonic()
            sick.is_aside = True
            cluster.wait_until(lambda: SICK not in cluster.partitions(TOPIC)[0].isrs, "it leaves the ISR")
            left_s = time.monotonic() - began_s
            traffic.await_progress()
            progress_s = time.monotonic() - began_s
            assert cluster.partitions(TOPIC)[0].leader in (2, 3)
            traffic.pause(3.0)
            disk.become(WELL)
            began_s = time.monotonic()
            sick.is_aside = False
            cluster.wait_in_sync(TOPIC, timeout_s=120)
            back_s = time.monotonic() - began_s
            traffic.await_progress()
        tell(f"out of the ISR after {left_s:.1f} s, acknowledged again after {progress_s:.1f} s")
        tell(f"in sync again {back_s:.1f} s after the disk was well; {describe_traffic(traffic)}")
        assert sick.is_running, "the same process, started once"
        check_promises(cluster, traffic, TOPIC, 1)
    if fault == HANGING:
        said = [line for line in sick.log().splitlines() if f"the disk under {sick.data}" in line]
        assert len(said) == 2, said


def test_one_log_whose_flushes_fail(tmp_path: Path, tell: Tell) -> None:
    """The rest of the disk is well: the broker goes on, and that log comes back without a restart."""
    cluster = ClusterProcesses(tmp_path)
    sick = cluster.nodes[SICK]
    disk = BadDisk(sick, compile_shim(tmp_path), f"{TOPIC}-0")
    with cluster:
        cluster.create_topic(TOPIC, assignment=[[1, 2, 3]])
        with Traffic(cluster.bootstrap_servers, TOPIC, 1, rate=200, value_bytes=1000) as traffic:
            traffic.await_progress()
            disk.become(FAILING)
            cluster.wait_until(lambda: cluster.partitions(TOPIC)[0].leader in (2, 3), "another one leads")
            traffic.await_progress()
            traffic.pause(3.0)
            disk.become(WELL)
            took_s = cluster.wait_until(lambda: SICK in cluster.partitions(TOPIC)[0].isrs, "it is in sync again")
            traffic.await_progress()
        tell(f"in sync again {took_s:.1f} s after the disk was well; {describe_traffic(traffic)}")
        check_promises(cluster, traffic, TOPIC, 1)
    assert f"{TOPIC}-0 is online again" in sick.log()


def test_a_broker_is_stopped_while_its_disk_hangs(tmp_path: Path, tell: Tell) -> None:
    """It hands over, and does not wait for the disk; what it had not flushed is recovered at the next start."""
    cluster = ClusterProcesses(tmp_path)
    sick = cluster.nodes[SICK]
    disk = BadDisk(sick, compile_shim(tmp_path))
    with cluster:
        cluster.create_topic(TOPIC, assignment=[[1, 2, 3]])
        with Traffic(cluster.bootstrap_servers, TOPIC, 1, rate=200, value_bytes=1000) as traffic:
            traffic.await_progress()
            disk.become(HANGING)
            cluster.wait_until(lambda: "hangs" in sick.log(), "the broker notices")
            began_s = time.monotonic()
            assert sick.terminate() == 1, "no clean stop"
            tell(f"stopped after {time.monotonic() - began_s:.1f} s")
            traffic.await_progress()
            disk.become(WELL)
            sick.start()
            cluster.wait_in_sync(TOPIC, timeout_s=120)
            traffic.await_progress()
        check_promises(cluster, traffic, TOPIC, 1)
