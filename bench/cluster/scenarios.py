"""The scenarios for a cluster of three brokers, as a table. Only data.

Stock settings means each broker's own flush setting: Penstock flushes before it acknowledges, Apache Kafka leaves that
to the system. The rows with flush off on both compare equal settings, but have no target.
"""

from __future__ import annotations

from bench.scenarios import (
    Compare,
    CoordinatorKilled,
    Flush,
    Idle,
    LeaderKilled,
    OneRecord,
    Produce,
    Rate,
    Scenario,
    Stock,
    Target,
)

REPLICAS = 3
MIN_IN_SYNC = 2

_THROUGHPUT = "Throughput, 3 replicas, acks=all"
_ONE_RECORD = "One record a request, 3 replicas, acks=all"
_LATENCY = "Latency at 1,000 requests/s (open loop, 1 KB requests, 3 replicas, acks=all)"
_KB128 = "1 KB records, 128 KB batches, 3 partitions"
_KB16 = "1 KB records, 16 KB batches, 3 partitions"
_MACHINE_GB = "machine_cpu_s_per_gb"
_TITLE = {Flush.DEFAULT: "stock settings", Flush.OFF: "flush off on both"}


def _ratio_at_least(metric: str, limit: float) -> Target:
    return Target(metric, Compare.RATIO_AT_LEAST, limit)


def _ratio_at_most(metric: str, limit: float) -> Target:
    return Target(metric, Compare.RATIO_AT_MOST, limit)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "throughput-128k-default",
        _THROUGHPUT,
        f"{_KB128}, {_TITLE[Flush.DEFAULT]}",
        Produce(1024, 128 * 1024, 3, total_mb=800, max_seconds=8.0),
        Flush.DEFAULT,
        (
            _ratio_at_least("mb_s", 3.0),
            _ratio_at_most("cpu_s_per_gb", 0.3),
            _ratio_at_most("machine_cpu_s_per_gb", 0.3),
            _ratio_at_most("rss_mb", 0.1),
        ),
        (_MACHINE_GB, "rss_mb"),
    ),
    Scenario(
        "throughput-128k-noflush",
        _THROUGHPUT,
        f"{_KB128}, {_TITLE[Flush.OFF]}",
        Produce(1024, 128 * 1024, 3, total_mb=800, max_seconds=8.0),
        Flush.OFF,
        also_shown=(_MACHINE_GB,),
    ),
    Scenario(
        "throughput-16k-default",
        _THROUGHPUT,
        f"{_KB16}, {_TITLE[Flush.DEFAULT]}",
        Produce(1024, 16 * 1024, 3, total_mb=400, max_seconds=8.0),
        Flush.DEFAULT,
        also_shown=(_MACHINE_GB,),
    ),
    Scenario(
        "stock-client-default",
        "Stock client (confluent-kafka, no setting but the address), 3 replicas",
        f"1 KB records, 1 partition, {_TITLE[Flush.DEFAULT]}",
        Stock(record_count=200_000),
        Flush.DEFAULT,
    ),
    *(
        Scenario(
            f"one-record-{name}",
            _ONE_RECORD,
            f"100 B, 1 connection, 5 in flight, {_TITLE[flush]}",
            OneRecord(50_000, max_seconds=6.0),
            flush,
            (_ratio_at_least("requests_s", 3.0),) if flush is Flush.DEFAULT else (),
            ("machine_cpu_us_per_request",),
        )
        for flush, name in ((Flush.DEFAULT, "default"), (Flush.OFF, "noflush"))
    ),
    *(
        Scenario(
            f"rate-1000-{name}",
            _LATENCY,
            f"3 partitions, {_TITLE[flush]}",
            Rate(1000, partitions=3),
            flush,
            (_ratio_at_most("p99_ms", 0.5),) if flush is Flush.DEFAULT else (),
        )
        for flush, name in ((Flush.DEFAULT, "default"), (Flush.OFF, "noflush"))
    ),
    Scenario(
        "leader-killed",
        "kill -9 of a leader",
        "stock settings; idempotent confluent-kafka producer",
        LeaderKilled(),
        Flush.DEFAULT,
        (_ratio_at_most("pause_median_s", 0.15),),
    ),
    Scenario(
        "coordinator-killed",
        "kill -9 of a transaction coordinator",
        "stock settings; transactional confluent-kafka producers, a consumer of committed records",
        CoordinatorKilled(),
        Flush.DEFAULT,
        (Target("committed_pause_worst_s", Compare.VALUE_AT_MOST, 2.0),),
    ),
    Scenario(
        "idle",
        "Three idle brokers",
        "fresh cluster, one topic of 3 partitions",
        Idle(),
        Flush.DEFAULT,
        (_ratio_at_most("idle_rss_mb", 0.1),),
    ),
)
