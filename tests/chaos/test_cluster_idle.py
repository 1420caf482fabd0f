"""Three brokers that nobody uses: what they cost."""

from __future__ import annotations

import os
import time
from pathlib import Path

from support.processes.cluster import ClusterProcesses
from support.processes.promises import Tell

SECONDS = float(os.environ.get("PENSTOCK_CLUSTER_IDLE_SECONDS", "8"))
SETTLE_S = 2.0
BUSY_SHARE = 0.5
BUSY_SWITCHES_PER_S = 5000


def test_idle(tmp_path: Path, tell: Tell) -> None:
    with ClusterProcesses(tmp_path) as cluster:
        cluster.create_topic("idle", 10)
        time.sleep(SETTLE_S)
        before, begin = {node.node_id: node.usage() for node in cluster.running}, time.monotonic()
        time.sleep(SECONDS)
        after, seconds = {node.node_id: node.usage() for node in cluster.running}, time.monotonic() - begin
        for node_id, usage in after.items():
            cpu_share = (usage.cpu_s - before[node_id].cpu_s) / seconds
            switches = (usage.context_switches - before[node_id].context_switches) / seconds
            tell(
                f"broker {node_id}: {usage.rss_bytes / 1e6:.1f} MB resident, {100 * cpu_share:.2f} % of a core, "
                f"{switches:.0f} context switches/s"
            )
            # Neither is a bound on what idling may cost: a loop without a wait in it is far above both.
            assert cpu_share < BUSY_SHARE, f"broker {node_id} is busy"
            assert switches < BUSY_SWITCHES_PER_S, f"broker {node_id} wakes all the time"
        cluster.check_logs()
