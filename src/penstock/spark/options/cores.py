"""How many tasks Spark runs at the same time, for the processes beside its driver that plan tasks.

They see neither Spark's settings nor its executors. So `session()` computes the number from its settings and puts it
into the environment, which they inherit from the JVM. Without it, the cores of the driver's machine count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

CORES_VARIABLE = "PENSTOCK_SPARK_CORES"
DEFAULT_PARALLELISM = "spark.default.parallelism"
ALL_CORES = "spark.cores.max"
EXECUTORS, CORES_OF_EACH = "spark.executor.instances", "spark.executor.cores"


def known_cores() -> int:
    text = os.environ.get(CORES_VARIABLE, "")
    return max(int(text), 1) if text.isdecimal() else machine_cores()


def machine_cores() -> int:
    return len(os.sched_getaffinity(0))


def cores_of(settings: Mapping[str, str]) -> int | None:
    """As Spark's `defaultParallelism`. None for a cluster whose size the settings do not tell."""
    if settings.get(DEFAULT_PARALLELISM, "").isdecimal():
        return int(settings[DEFAULT_PARALLELISM])
    master = settings.get("spark.master", "")
    if found := re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", master):
        return int(found[1]) * int(found[2])
    if found := re.match(r"local(?:\[(\*|\d+)|$)", master):
        return machine_cores() if found[1] == "*" else int(found[1] or 1)
    if settings.get(ALL_CORES, "").isdecimal():
        return int(settings[ALL_CORES])
    instances, cores = settings.get(EXECUTORS, ""), settings.get(CORES_OF_EACH, "1")
    return int(instances) * int(cores) if instances.isdecimal() and cores.isdecimal() else None
