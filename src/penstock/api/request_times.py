"""Request latency by API: a histogram each, cheap enough for every request.

A request is timed from the moment its frame is handed over to the moment its answer is queued, so the time of a fetch
includes its long poll, and the time of a produce request its flush. Requests that end without an answer (the connection
closed) are not counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from penstock.ports.clock import Clock

BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# The produce lane answers in microseconds, so it times one request in SAMPLED_EVERY and counts it for all of them. The
# number is a prime: a client that sends to its partitions in turn must not always be sampled at the same one.
SAMPLED_EVERY = 17


class Histogram:
    """`counts` has one more entry than BOUNDS_S, for longer times."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, weight: int = 1) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += weight
        self.sum_s += seconds * weight


class RequestTimes:
    __slots__ = ("by_api", "now")

    def __init__(self, clock: Clock) -> None:
        self.now = clock.monotonic
        self.by_api: defaultdict[int, Histogram] = defaultdict(Histogram)

    def answered(self, api: int, started_s: float, weight: int = 1) -> None:
        self.by_api[api].observe(self.now() - started_s, weight)
