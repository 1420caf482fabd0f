"""What a process of Spark keeps from one task to the next: its connections, and a heap that is not searched again."""

from __future__ import annotations

import gc
from functools import cache

from penstock.spark.options.cluster import ClusterOptions
from penstock.wire_client.blocking.cluster import BlockingCluster, shared_cluster


@cache
def spare_the_heap(kind_of_task: str) -> None:
    """At the end of the first task of its kind, when everything is imported and compiled. Spark's worker collects
    garbage after every task, which takes 50 ms over all that Arrow, numba and Spark brought: time that the driver
    wants, too."""
    gc.collect()
    gc.freeze()


def cluster_for(options: ClusterOptions, timeout_s: float = 60.0) -> BlockingCluster:
    """This process's own, kept."""
    return shared_cluster(options.bootstrap, options.client_id, options.security, timeout_s)
