"""Process metrics under the names of every Prometheus client: CPU, memory, descriptors, start time.

Memory and descriptors come from /proc and are left out if there is none.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import AsyncIterator

from penstock.observability.exposition import Family, Sample, counter, gauge


class ProcessMetrics:
    def __init__(self, started_ms: int) -> None:
        self._started_s = started_ms / 1000

    async def families(self) -> AsyncIterator[Family]:
        yield counter("process_cpu_seconds_total", "CPU time of this process.", (), [((), time.process_time())])
        yield gauge("process_start_time_seconds", "When this broker started.", (), [((), self._started_s)])
        yield gauge("process_resident_memory_bytes", "Memory in RAM.", (), _resident())
        yield gauge("process_open_fds", "Open file descriptors.", (), _open_files())
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield gauge("process_max_fds", "Limit of open file descriptors.", (), [((), limit)])


def _resident() -> list[Sample]:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return []
    return [((), pages * resource.getpagesize())]


def _open_files() -> list[Sample]:
    try:
        return [((), len(os.listdir("/proc/self/fd")))]
    except OSError:
        return []
