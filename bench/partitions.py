"""Many partitions on one broker: create them, write to each, stop, restart cleanly and after kill -9.

One broker runs at a time, on a fresh directory with its default settings. Creating ends with the answer to the last
CreateTopics request (one per topic). A broker's later work to open its logs is part of the time to write, which is one
request at a time with one record per partition. "To the first acknowledged record" counts from the start of the process
to the acknowledgement on the last partition of the last topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bench import machine
from bench.brokers import Broker, BrokerMaker
from bench.load import wire
from bench.load.client import Client, first_acknowledged
from bench.results import Metrics, Outcome
from bench.rounds import Rounds
from bench.runner import FAILURES
from bench.scenarios import ManyPartitions

_RESTART_TIMEOUT_S = 180.0


def _write_to_each(client: Client, names: Sequence[str], partitions: int) -> None:
    batch = wire.random_batch(1024, 1)
    for name in names:
        for partition in range(partitions):
            client.produce_when_ready(name, partition, batch)


def _restart(broker: Broker, topic: str, partition: int) -> float:
    machine.settle()
    begin = time.perf_counter()
    broker.launch()
    alive = broker.check_alive
    first_acknowledged(broker.port, topic, partition, _RESTART_TIMEOUT_S, create=False, check_alive=alive)
    return time.perf_counter() - begin


def measure(broker: Broker, load: ManyPartitions) -> Metrics:
    """Measures one broker from creation to removal of its data."""
    names = [f"many-{number}" for number in range(load.topics)]
    last = names[-1], load.partitions - 1
    metrics: Metrics = {}
    try:
        broker.prepare()
        broker.start()
        with Client(broker.port) as client:
            begin = time.perf_counter()
            for name in names:
                client.create_topic(name, load.partitions)
            metrics["create_s"] = time.perf_counter() - begin
            begin = time.perf_counter()
            _write_to_each(client, names, load.partitions)
            metrics["write_s"] = time.perf_counter() - begin
        metrics["partitions_rss_mb"] = broker.rss_mb()
        metrics["stop_s"] = broker.stop()
        metrics["clean_restart_s"] = _restart(broker, *last)
        with Client(broker.port) as client:  # something to recover in every log
            client.wait_for_leaders(dict.fromkeys(names, load.partitions), timeout_s=120.0)
            _write_to_each(client, names, load.partitions)
        broker.kill()
        metrics["crash_restart_s"] = _restart(broker, *last)
        metrics["restarted_rss_mb"] = broker.rss_mb()
    finally:
        broker.discard()
        machine.settle()
    return metrics


def run_rounds(
    makers: Mapping[str, BrokerMaker],
    load: ManyPartitions,
    rounds: int,
    outcome: Outcome,
    progress: Callable[[str], None],
) -> None:
    measured = Rounds(outcome, load.shown, FAILURES, progress)
    for number in range(1, rounds + 1):
        for key, make in makers.items():
            broker = make(f"{key}-partitions")
            measured.run(number, key, broker.label, partial(measure, broker, load))
