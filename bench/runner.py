"""Rounds: a fresh topic, warm pages, the load between two readings of the meters, the topic deleted, sync.

Both brokers are up all the time. The other one is idle during a measurement, which costs next to nothing, while
stopping it would cost warm caches. Rounds alternate between the brokers, so that disturbances of the machine affect
both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from bench import machine
from bench.brokers import Broker, BrokerFailed, BrokerMaker
from bench.load import driver, reader, stock, transactions
from bench.load.client import HOST, Client, first_acknowledged
from bench.load.driver import LoadFailed, ProduceLoad, RateLoad, Throughput, percentile
from bench.load.transactions import TransactionLoad
from bench.load.wire import BrokerError, records_per_batch
from bench.results import Metrics, Outcome
from bench.rounds import Rounds
from bench.scenarios import (
    Fetch,
    Flush,
    GroupOfMembers,
    Load,
    ManyPartitions,
    OneRecord,
    Produce,
    Rate,
    Scenario,
    Start,
    Stock,
    Transactions,
)

FAILURES = (BrokerError, BrokerFailed, LoadFailed, KafkaException, OSError)

# After the last answer a broker may still be at work (write-back, snapshots): that belongs to the load.
_TRAILING_S = 0.2

FLUSH_SETTING = "flush.messages"


@dataclass(slots=True)
class Side:
    key: str
    broker: Broker
    fresh: BrokerMaker
    """Another broker of this kind, on a fresh directory of that name."""


@dataclass(slots=True)
class Meter:
    cpu_s: float = 0.0
    rss_mb: float = 0.0


@contextmanager
def _metered(broker: Broker) -> Iterator[Meter]:
    meter, before = Meter(), broker.cpu_s()
    yield meter
    time.sleep(_TRAILING_S)
    meter.cpu_s = broker.cpu_s() - before
    meter.rss_mb = broker.rss_mb()


@contextmanager
def _topic(broker: Broker, hint: str, partitions: int, flush: Flush) -> Iterator[str]:
    """A topic for one run. At the end its files are deleted and everything is flushed to disk."""
    name = f"{hint}-{time.monotonic_ns()}"
    with Client(broker.port) as client:
        client.create_topic(name, partitions, flush.configs)
        client.wait_for_leaders({name: partitions})
        client.wait_for_fetch(name, partitions)
    try:
        yield name
    finally:
        broker.check_alive()
        with Client(broker.port) as client:
            client.delete_topics([name])
        if not broker.await_gone(name):
            print(f"  {broker.label}: files of a deleted topic are still there", flush=True)
        machine.settle()


def _throughput_metrics(result: Throughput, meter: Meter) -> Metrics:
    return {
        "mb_s": result.value_bytes / result.seconds / 1e6,
        "records_s": result.records / result.seconds,
        "cpu_s_per_gb": meter.cpu_s / (result.value_bytes / 1e9),
        "rss_mb": meter.rss_mb,
        "seconds": result.seconds,
        "driver_cpu_pct": 100 * result.driver_cpu_s / result.seconds,
    }


def _produce_load(topic: str, load: Produce | Fetch, max_seconds: float) -> ProduceLoad:
    per_request = records_per_batch(load.record_bytes, load.batch_bytes) * load.record_bytes
    total = min(load.total_mb * 1_000_000, machine.unthrottled_bytes())
    requests = max(load.partitions, total // per_request)
    return ProduceLoad(topic, load.partitions, load.record_bytes, load.batch_bytes, requests, max_seconds)


def _produce(broker: Broker, load: Produce, flush: Flush) -> Metrics:
    with _topic(broker, "produce", load.partitions, flush) as topic:
        request = _produce_load(topic, load, load.max_seconds)
        machine.warm_pages(load.total_mb * 1_200_000)
        with _metered(broker) as meter:
            result = driver.produce(broker.port, request)
        return _throughput_metrics(result, meter)


def _fetch(broker: Broker, load: Fetch) -> Metrics:
    with _topic(broker, "fetch", load.partitions, Flush.OFF) as topic:
        machine.warm_pages(load.total_mb * 1_200_000)
        written = driver.produce(broker.port, _produce_load(topic, load, 30.0))
        machine.settle()
        with _metered(broker) as meter:
            result = reader.fetch(broker.port, topic, load.partitions, load.record_bytes, written.records)
        return _throughput_metrics(result, meter)


def _one_record(broker: Broker, load: OneRecord, flush: Flush) -> Metrics:
    with _topic(broker, "one", 1, flush) as topic:
        machine.warm_pages(load.request_count * 400)
        with _metered(broker) as meter:
            result = driver.produce(broker.port, ProduceLoad(topic, 1, 100, 0, load.request_count, load.max_seconds))
        return {
            "requests_s": result.requests / result.seconds,
            "cpu_us_per_request": meter.cpu_s / result.requests * 1e6,
            "rss_mb": meter.rss_mb,
            "seconds": result.seconds,
            "driver_cpu_pct": 100 * result.driver_cpu_s / result.seconds,
        }


def _rate(broker: Broker, load: Rate, flush: Flush) -> Metrics:
    with _topic(broker, "rate", load.partitions, flush) as topic:
        request = RateLoad(topic, load.partitions, 1024, load.requests_per_s, load.warm_seconds, load.seconds)
        machine.warm_pages(int(load.requests_per_s * (load.warm_seconds + load.seconds) * 1200))
        with _metered(broker) as meter:
            result = driver.rate(broker.port, request)
        return {
            "p50_ms": percentile(result.sorted_s, 0.5) * 1e3,
            "p99_ms": percentile(result.sorted_s, 0.99) * 1e3,
            "p999_ms": percentile(result.sorted_s, 0.999) * 1e3,
            "max_ms": result.sorted_s[-1] * 1e3,
            "cpu_pct": 100 * meter.cpu_s / result.seconds,
            "cpu_us_per_request": meter.cpu_s / result.requests * 1e6,
            "rss_mb": meter.rss_mb,
            "unanswered": result.unanswered,
            "seconds": result.seconds,
            "driver_late_p99_ms": percentile(result.sorted_late_s, 0.99) * 1e3,
            "driver_cpu_pct": 100 * result.driver_cpu_s / result.seconds,
        }


def _start(side: Side, load: Start) -> Metrics:
    broker = side.fresh(f"{side.key}-start")
    try:
        broker.prepare()
        machine.settle()
        begin = time.perf_counter()
        broker.launch()
        first_acknowledged(broker.port, "first", 0, 60.0, create=True, check_alive=broker.check_alive)
        seconds = time.perf_counter() - begin
        time.sleep(load.idle_seconds)
        return {"first_message_s": seconds, "idle_rss_mb": broker.rss_mb()}
    finally:
        broker.discard()


def _stock(broker: Broker, load: Stock, flush: Flush) -> Metrics:
    size = load.record_count * load.record_bytes
    with _topic(broker, "stock", 1, flush) as topic:
        machine.warm_pages(size * 6 // 5)
        with _metered(broker) as produced:
            produce_s = stock.produce(broker.port, topic, load.record_count, load.record_bytes)
        machine.settle()
        with _metered(broker) as consumed:
            consume_s = stock.consume(broker.port, topic, load.record_count)
        return {
            "produce_mb_s": size / produce_s / 1e6,
            "produce_cpu_s_per_gb": produced.cpu_s / (size / 1e9),
            "consume_mb_s": size / consume_s / 1e6,
            "consume_cpu_s_per_gb": consumed.cpu_s / (size / 1e9),
            "rss_mb": consumed.rss_mb,
        }


def _set_flush_of_decisions(broker: Broker, flush: Flush) -> None:
    """The coordinator's own topic is flushed like the topic of the run."""
    with Client(broker.port) as client:
        transactions.begin(client, "first")  # which creates it
    operation = AlterConfigOpType.SET if flush.configs else AlterConfigOpType.DELETE
    value = flush.configs.get(FLUSH_SETTING)
    entry = ConfigEntry(FLUSH_SETTING, value, incremental_operation=operation)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "__transaction_state", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{broker.port}", "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(30)


def _transactions(broker: Broker, load: Transactions, flush: Flush) -> Metrics:
    _set_flush_of_decisions(broker, flush)
    with _topic(broker, "transactions", load.producers, flush) as topic:
        total = min(load.total_mb * 1_000_000, machine.unthrottled_bytes())
        count = max(load.producers, total // (load.records_each * load.record_bytes))
        request = TransactionLoad(
            topic, load.producers, load.record_bytes, load.records_each, load.batch_bytes, count, load.max_seconds
        )
        machine.warm_pages(total * 6 // 5)
        with _metered(broker) as meter:
            result = transactions.run(broker.port, request)
        return {
            "records_s": result.records / result.seconds,
            "transactions_s": result.transactions / result.seconds,
            "mb_s": result.value_bytes / result.seconds / 1e6,
            "transaction_p50_ms": percentile(result.sorted_s, 0.5) * 1e3,
            "transaction_p99_ms": percentile(result.sorted_s, 0.99) * 1e3,
            "cpu_us_per_record": meter.cpu_s / result.records * 1e6,
            "cpu_us_per_transaction": meter.cpu_s / result.transactions * 1e6,
            "cpu_pct": 100 * meter.cpu_s / result.seconds,
            "refused": result.refused,
            "rss_mb": meter.rss_mb,
            "seconds": result.seconds,
            "driver_cpu_pct": 100 * result.driver_cpu_s / result.seconds,
        }


def run_once(side: Side, scenario: Scenario) -> Metrics:
    broker = side.broker
    match scenario.load:
        case Produce() as load:
            return _produce(broker, load, scenario.flush)
        case Fetch() as load:
            return _fetch(broker, load)
        case OneRecord() as load:
            return _one_record(broker, load, scenario.flush)
        case Rate() as load:
            return _rate(broker, load, scenario.flush)
        case Start() as load:
            return _start(side, load)
        case Stock() as load:
            return _stock(broker, load, scenario.flush)
        case Transactions() as load:
            return _transactions(broker, load, scenario.flush)
        case ManyPartitions() | GroupOfMembers():
            raise ValueError("partitions and groups have commands of their own")


def warm_up(broker: Broker, share: float) -> None:
    """Sends 1.5 GB and more through every path, to warm up a just-in-time compiler. Not measured."""
    for load, flush in (
        (Produce(1024, 128 * 1024, 10, int(600 * share), 20.0), Flush.OFF),
        (Produce(1024, 16 * 1024, 1, int(400 * share), 20.0), Flush.OFF),
        (Produce(1024, 16 * 1024, 1, int(100 * share), 5.0), Flush.ON),
    ):
        _produce(broker, load, flush)
    _fetch(broker, Fetch(1024, 128 * 1024, 1, int(500 * share)))
    _one_record(broker, OneRecord(int(40_000 * share)), Flush.OFF)
    for records in (100, 10_000):
        _transactions(broker, Transactions(records, 10, int(1000 * share), 20.0 * share), Flush.OFF)


# Run once on each side before the rounds: the first start reads the code from the disk, the first consumer makes the
# broker create its internal topics.
_FIRST_OF_ITS_KIND: Mapping[type[Load], Load] = {Start: Start(idle_seconds=0.0), Stock: Stock(record_count=1000)}


def run_rounds(
    sides: Sequence[Side], scenario: Scenario, rounds: int, outcome: Outcome, progress: Callable[[str], None]
) -> None:
    """Fills `outcome`. After a failed run a dead broker is restarted."""
    warm_up_run = _FIRST_OF_ITS_KIND.get(type(scenario.load))
    if warm_up_run is not None:
        for side in sides:
            try:
                run_once(side, replace(scenario, load=warm_up_run))
            except FAILURES as error:
                progress(f"{side.broker.label:<12} warm-up: FAILED: {error}")
                _revive(side.broker)
    measured = Rounds(outcome, scenario.shown, FAILURES, progress)
    for number in range(1, rounds + 1):
        for side in sides:
            if not measured.run(number, side.key, side.broker.label, partial(run_once, side, scenario)):
                _revive(side.broker)


def _revive(broker: Broker) -> None:
    if not broker.was_started:
        return
    try:
        broker.check_alive()
        with Client(broker.port, timeout_s=10.0) as client:
            client.metadata([])
    except FAILURES:
        broker.discard()
        broker.prepare()
        broker.start()


def scaled(load: Load, share: float) -> Load:
    """The same load, smaller: for a quick look, not for numbers."""
    match load:
        case Produce():
            return replace(load, total_mb=max(5, int(load.total_mb * share)), max_seconds=1.0)
        case Fetch():
            return replace(load, total_mb=max(5, int(load.total_mb * share)))
        case OneRecord():
            return replace(load, request_count=int(load.request_count * share), max_seconds=1.0)
        case Rate():
            return replace(load, warm_seconds=0.5, seconds=1.0)
        case Start():
            return replace(load, idle_seconds=0.5)
        case Stock():
            return replace(load, record_count=int(load.record_count * share))
        case Transactions():
            return replace(load, total_mb=max(10, int(load.total_mb * share)), max_seconds=1.0)
        case ManyPartitions():
            return ManyPartitions(topics=2, partitions=20)
        case GroupOfMembers():
            return replace(load, members=10, partitions=30, leaving=2)
