"""State that a Spark worker process keeps between tasks: its connections, and a heap that the collector need not
search."""

from __future__ import annotations

import gc
from functools import cache

from penstock.spark.options.cluster import ClusterOptions
from penstock.wire_client.blocking.cluster import BlockingCluster, shared_cluster


@cache
def spare_the_heap(kind_of_task: str) -> None:
    """Call at the end of the first task of each kind, when everything is imported and compiled. Spark's worker collects
    garbage after every task. That would take 50 ms for the objects of Arrow, numba and Spark: time that the driver
    needs, too."""
    gc.collect()
    gc.freeze()


def cluster_for(options: ClusterOptions, timeout_s: float = 60.0) -> BlockingCluster:
    """The cluster client of this process, which is kept."""
    return shared_cluster(options.bootstrap, options.client_id, options.security, timeout_s)
