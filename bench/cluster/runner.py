"""Rounds: a fresh topic with three replicas, the load between two readings of the meters, the topic deleted, sync.

Both clusters are up all the time and one is measured at a time, in alternating rounds, as in `bench.runner`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from confluent_kafka import KafkaException

from bench import machine
from bench.brokers import BrokerFailed
from bench.cluster.clusters import Cluster, ClusterMaker
from bench.cluster.committed import SteadyTransactions
from bench.cluster.pause import SteadyProducer
from bench.cluster.scenarios import REPLICAS
from bench.load import driver, stock
from bench.load.driver import LoadFailed, ProduceLoad, RateLoad, percentile
from bench.load.wire import BrokerError, records_per_batch
from bench.results import Metrics, Outcome
from bench.rounds import Rounds
from bench.scenarios import (
    CoordinatorKilled,
    Flush,
    Idle,
    LeaderKilled,
    Load,
    OneRecord,
    Produce,
    Rate,
    Scenario,
    Stock,
)

FAILURES = (BrokerError, BrokerFailed, LoadFailed, KafkaException, OSError)
DECISIONS_TOPIC = "__transaction_state"
_TRAILING_S = 0.5  # for the work of followers and write-back after the last answer


@dataclass(slots=True)
class Side:
    key: str
    cluster: Cluster
    fresh: ClusterMaker


@dataclass(slots=True)
class Meter:
    cpu_s: float = 0.0
    machine_cpu_s: float = 0.0  # with the driver's and the kernel's: a flush is the work of kernel threads
    rss_mb: float = 0.0


@contextmanager
def _metered(cluster: Cluster) -> Iterator[Meter]:
    meter, before, machine_before = Meter(), cluster.cpu_s(), machine.busy_s()
    yield meter
    meter.rss_mb = cluster.rss_mb()
    time.sleep(_TRAILING_S)
    meter.cpu_s = cluster.cpu_s() - before
    meter.machine_cpu_s = machine.busy_s() - machine_before


def _produce(cluster: Cluster, load: Produce, flush: Flush) -> Metrics:
    per_request = records_per_batch(load.record_bytes, load.batch_bytes) * load.record_bytes
    total = min(load.total_mb * 1_000_000, machine.unthrottled_bytes() // REPLICAS)
    requests = max(load.partitions, total // per_request)
    with cluster.topic("produce", load.partitions, flush.configs) as topic:
        request = ProduceLoad(topic, load.partitions, load.record_bytes, load.batch_bytes, requests, load.max_seconds)
        ports = cluster.leader_ports(topic)
        machine.warm_pages(total * REPLICAS * 6 // 5)
        with _metered(cluster) as meter:
            result = driver.produce(ports, request)
    return {
        "mb_s": result.value_bytes / result.seconds / 1e6,
        "cpu_s_per_gb": meter.cpu_s / (result.value_bytes / 1e9),
        "machine_cpu_s_per_gb": (meter.machine_cpu_s - result.driver_cpu_s) / (result.value_bytes / 1e9),
        "rss_mb": meter.rss_mb,
        "seconds": result.seconds,
        "driver_cpu_pct": 100 * result.driver_cpu_s / result.seconds,
    }


def _one_record(cluster: Cluster, load: OneRecord, flush: Flush) -> Metrics:
    with cluster.topic("one", 1, flush.configs) as topic, _metered(cluster) as meter:
        request = ProduceLoad(topic, 1, 100, 0, load.request_count, load.max_seconds)
        result = driver.produce(cluster.leader_ports(topic), request)
    return {
        "requests_s": result.requests / result.seconds,
        "cpu_us_per_request": meter.cpu_s / result.requests * 1e6,
        "machine_cpu_us_per_request": (meter.machine_cpu_s - result.driver_cpu_s) / result.requests * 1e6,
        "seconds": result.seconds,
        "driver_cpu_pct": 100 * result.driver_cpu_s / result.seconds,
    }


def _rate(cluster: Cluster, load: Rate, flush: Flush) -> Metrics:
    with cluster.topic("rate", load.partitions, flush.configs) as topic, _metered(cluster) as meter:
        request = RateLoad(topic, load.partitions, 1024, load.requests_per_s, load.warm_seconds, load.seconds)
        result = driver.rate(cluster.leader_ports(topic), request)
    return {
        "p50_ms": percentile(result.sorted_s, 0.5) * 1e3,
        "p99_ms": percentile(result.sorted_s, 0.99) * 1e3,
        "p999_ms": percentile(result.sorted_s, 0.999) * 1e3,
        "cpu_pct": 100 * meter.cpu_s / result.seconds,
        "unanswered": result.unanswered,
        "driver_late_p99_ms": percentile(result.sorted_late_s, 0.99) * 1e3,
        "driver_cpu_pct": 100 * result.driver_cpu_s / result.seconds,
    }


def _stock(cluster: Cluster, load: Stock, flush: Flush) -> Metrics:
    size = load.record_count * load.record_bytes
    with cluster.topic("stock", 1, flush.configs) as topic:
        machine.warm_pages(size * REPLICAS * 6 // 5)
        with _metered(cluster) as produced:
            produce_s = stock.produce(cluster.any_port, topic, load.record_count, load.record_bytes)
        machine.settle()
        with _metered(cluster) as consumed:
            consume_s = stock.consume(cluster.any_port, topic, load.record_count)
    return {
        "produce_mb_s": size / produce_s / 1e6,
        "produce_cpu_s_per_gb": produced.cpu_s / (size / 1e9),
        "consume_mb_s": size / consume_s / 1e6,
        "consume_cpu_s_per_gb": consumed.cpu_s / (size / 1e9),
    }


def _leader_killed(cluster: Cluster, load: LeaderKilled, flush: Flush) -> Metrics:
    """Each kill: the leader of a partition dies, others take over, it starts again and catches up."""
    pauses: list[float] = []
    with cluster.topic("killed", load.partitions, flush.configs) as topic:
        with SteadyProducer(cluster.bootstrap_servers, topic, load.partitions, load.requests_per_s) as producer:
            for number in range(load.kills):
                leader = cluster.nodes[cluster.leaders(topic)[number % load.partitions]]
                killed_at = time.perf_counter()
                leader.kill()
                producer.await_acknowledgements(time.perf_counter())
                pauses.append(producer.longest_pause_s(killed_at, time.perf_counter()))
                leader.launch()
                cluster.wait_for_brokers()
                cluster.wait_in_sync(topic)
                time.sleep(1.0)
        producer.check()
    return {"pause_median_s": statistics.median(pauses), "pause_worst_s": max(pauses)}


def _coordinator_killed(cluster: Cluster, load: CoordinatorKilled, flush: Flush) -> Metrics:
    """Each kill: the coordinator of a producer dies, which also leads a third of the partitions, and starts again."""
    pauses: list[float] = []
    with cluster.topic("committed", load.partitions, flush.configs) as topic:
        with SteadyTransactions(cluster.bootstrap_servers, topic, load.partitions, load.producers) as flow:
            cluster.wait_in_sync(DECISIONS_TOPIC)
            for number in range(load.kills):
                coordinator = cluster.nodes[cluster.coordinator(flow.transactional_ids[number % load.producers])]
                killed_at = time.perf_counter()
                coordinator.kill()
                flow.await_seen(time.perf_counter())
                pauses.append(flow.longest_pause_s(killed_at, time.perf_counter()))
                coordinator.launch()
                cluster.wait_for_brokers()
                cluster.wait_in_sync(topic)
                cluster.wait_in_sync(DECISIONS_TOPIC)
                time.sleep(1.0)
        flow.check()
    return {"committed_pause_median_s": statistics.median(pauses), "committed_pause_worst_s": max(pauses)}


def _idle(side: Side, load: Idle) -> Metrics:
    cluster = side.fresh(f"{side.key}-idle")
    try:
        cluster.start()
        with cluster.topic("idle", 3, {}):
            time.sleep(3.0)
            cpu, begin = cluster.cpu_s(), time.perf_counter()
            time.sleep(load.seconds)
            cpu_pct = 100 * (cluster.cpu_s() - cpu) / (time.perf_counter() - begin)
            return {"idle_rss_mb": cluster.rss_mb(), "idle_cpu_pct": cpu_pct}
    finally:
        cluster.discard()


def run_once(side: Side, scenario: Scenario) -> Metrics:
    cluster, flush = side.cluster, scenario.flush
    try:
        match scenario.load:
            case Produce() as load:
                return _produce(cluster, load, flush)
            case OneRecord() as load:
                return _one_record(cluster, load, flush)
            case Rate() as load:
                return _rate(cluster, load, flush)
            case Stock() as load:
                return _stock(cluster, load, flush)
            case LeaderKilled() as load:
                return _leader_killed(cluster, load, flush)
            case CoordinatorKilled() as load:
                return _coordinator_killed(cluster, load, flush)
            case Idle() as load:
                return _idle(side, load)
            case other:
                raise ValueError(f"not a load of a cluster: {other}")
    finally:
        machine.settle()


def warm_up(cluster: Cluster, share: float) -> None:
    """Runs every path for about a minute and a half, to warm up a just-in-time compiler. Not measured."""
    for _ in range(2):
        _produce(cluster, Produce(1024, 128 * 1024, 3, int(1000 * share), 15.0 * share), Flush.OFF)
        _produce(cluster, Produce(1024, 16 * 1024, 3, int(500 * share), 10.0 * share), Flush.DEFAULT)
        _one_record(cluster, OneRecord(int(50_000 * share), 15.0 * share), Flush.DEFAULT)
    _rate(cluster, Rate(1000, 3, warm_seconds=0.0, seconds=10.0 * share), Flush.DEFAULT)
    _stock(cluster, Stock(record_count=int(100_000 * share)), Flush.DEFAULT)


def run_rounds(
    sides: Sequence[Side], scenario: Scenario, rounds: int, outcome: Outcome, progress: Callable[[str], None]
) -> None:
    """Fills `outcome`. After a failed run its cluster is replaced by a new one."""
    measured = Rounds(outcome, scenario.shown, FAILURES, progress)
    for number in range(1, rounds + 1):
        for side in sides:
            if not measured.run(number, side.key, side.cluster.label, partial(run_once, side, scenario)):
                _replace(side)


def _replace(side: Side) -> None:
    side.cluster.discard()
    side.cluster = side.fresh(f"{side.key}-{time.monotonic_ns()}")
    side.cluster.start()


def scaled(load: Load, share: float) -> Load:
    """The same load, smaller: for a quick look, not for numbers."""
    match load:
        case Produce():
            return replace(load, total_mb=max(20, int(load.total_mb * share)), max_seconds=3.0)
        case OneRecord():
            return replace(load, request_count=int(load.request_count * share), max_seconds=2.0)
        case Rate():
            return replace(load, warm_seconds=0.5, seconds=2.0)
        case Stock():
            return replace(load, record_count=int(load.record_count * share))
        case LeaderKilled() | CoordinatorKilled():
            return replace(load, kills=1)
        case Idle():
            return replace(load, seconds=2.0)
        case other:
            return other
