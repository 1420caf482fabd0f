"""`python -m bench.cluster`: three Penstock brokers beside three of Apache Kafka; writes docs/benchmarks-cluster.md.

Needs Java 17 and Maven for Kafka; without them Penstock is measured alone.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench import command, machine, report, results
from bench.brokers import JVM_FLAGS, ROOT, WORK, java_version
from bench.cluster import runner
from bench.cluster.clusters import ClusterMaker, makers
from bench.cluster.runner import Side
from bench.cluster.scenarios import SCENARIOS
from bench.command import say, warn_if_busy
from bench.scenarios import Idle, Scenario

DOCS = ROOT / "docs" / "benchmarks-cluster.md"
RESULTS = report.RESULTS / "cluster.json"
NOTES = Path(__file__).with_name("notes.md")
QUICK_SHARE = 0.1

_HEAD = """# Benchmarks of a cluster

This page is written by `make bench-cluster`; do not edit it. Three Penstock brokers and three of Apache Kafka (KRaft,
each broker and controller in one) run on the same machine with the same properties files. Both clusters are
up, and the rounds measure them in turn. Every figure is the median of the rounds, with the lowest and the highest in
brackets. The ratio is Penstock / Apache Kafka: each round has a ratio, and the table shows their median, lowest and
highest. "hit" and "missed" compare the median with the target.
"""

_METHOD = """## How it is measured

- Topics have three replicas and `min.insync.replicas=2`; every write is acks=all. All other settings are
  defaults. With "stock settings" Penstock flushes to disk before a replica counts a record as stored
  (`flush.messages=1`), and Apache Kafka leaves flushing to the system (`flush.messages=9223372036854775807`).
  With "flush off on both" both leave it to the system.
- The load comes from the driver of `make bench` (one thread, one connection to each partition's leader, five
  requests in flight on each, prebuilt requests), except where a row names a stock client. It shares the machine's
  cores with all brokers. "driver" is the share of a core that it used (Penstock / Apache Kafka).
- MB are record values as the producer sends them, 10^6 bytes, not times three. CPU and memory are sums over the three
  brokers. CPU is counted until half a second after the last answer, resident memory right after that answer. Kernel
  threads do much of a flush, on both sides; only the row "CPU of the machine" counts them.
- Latency is open loop: the time of a request begins when the request was due. The first two seconds are not counted.
- kill -9 of a leader: a confluent-kafka producer with idempotence and no other setting sends 300 records/s to three
  partitions. Then the leader of one partition is killed. The pause is the longest time without an acknowledgement
  from a partition. The broker is started again, and the next kill comes when every replica is in sync. A round has
  three kills.
- kill -9 of a transaction coordinator: three confluent-kafka producers with a transactional id and no other setting
  write transactions of one record for each of three partitions. Each transaction is open for 50 ms. Then the broker
  that coordinates one producer is killed; it also leads one of the partitions. A confluent-kafka consumer, which reads
  committed records by default, notes when they arrive. The pause is the longest time without a new record from a
  partition: its last stable offset stands still. In the end the consumer must have seen every committed transaction
  as a whole, once, and nothing of aborted ones. A round has three kills, as above.
- Idle: a fresh cluster with one empty topic. The two clusters of the other tables run beside it.
- Before the rounds each cluster gets the same warm-up of about a minute and a half.
- The cluster that is not measured is idle. The table of idle brokers shows what that costs.
"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description="Three brokers beside three of Kafka")
    parser.add_argument("command", nargs="?", default="all", choices=("all", "render", "list"))
    command.add_options(parser, "cluster", DOCS)
    command.add_kafka_options(parser)
    return parser.parse_args()


def _makers(options: argparse.Namespace) -> dict[str, ClusterMaker]:
    sides = [results.PENSTOCK] if not options.kafka_only else []
    jars = command.wanted_kafka_jars(options)
    if jars is not None:
        sides.append(results.KAFKA)
    return makers(WORK, jars, sides)


@contextlib.contextmanager
def _running(made: dict[str, ClusterMaker], wanted: bool) -> Iterator[list[Side]]:
    """The clusters that are up for the whole run; they are ended in any case."""
    sides = [Side(key, make(key), make) for key, make in made.items()]
    try:
        if wanted:
            for side in sides:
                begin = time.monotonic()
                side.cluster.start()
                say(f"{side.cluster.label} is up after {time.monotonic() - begin:.1f} s")
        yield sides
    finally:
        for side in sides:
            side.cluster.discard()


def _environment(sides: Sequence[Side]) -> dict[str, str]:
    facts = machine.facts(WORK)
    versions = {side.key: side.cluster.nodes[1].version() for side in sides}
    facts["Penstock"] = versions.get(results.PENSTOCK, "not measured")
    kafka = versions.get(results.KAFKA)
    facts["Apache Kafka"] = f"{kafka}, {java_version()}, {JVM_FLAGS}" if kafka else "not measured"
    return facts


def _measure(
    scenarios: Sequence[Scenario], made: dict[str, ClusterMaker], options: argparse.Namespace, out: Path
) -> results.Results:
    rounds = options.rounds or (1 if options.quick else 3)
    share = QUICK_SHARE if options.quick else 1.0
    estimate = sum(one.estimate_s + 3 for one in scenarios) * rounds * len(made) * (0.5 if options.quick else 1.0)
    say(f"{len(scenarios)} scenarios x {rounds} rounds x {len(made)} clusters: about {estimate / 60 + 1:.0f} minutes")
    warn_if_busy()
    earlier = results.load(out)
    begin = time.monotonic()
    wanted = any(not isinstance(scenario.load, Idle) for scenario in scenarios)
    with _running(made, wanted) as sides:
        kept = results.Results(_environment(sides), earlier.outcomes if earlier else {})
        if wanted:
            for side in sides:
                say(f"warming {side.cluster.label} up")
                runner.warm_up(side.cluster, share)
        for scenario, outcome in command.each(scenarios, kept, out, begin):
            load = runner.scaled(scenario.load, share) if options.quick else scenario.load
            runner.run_rounds(sides, replace(scenario, load=load), rounds, outcome, lambda line: say("  " + line))
    return kept


def _render() -> None:
    notes = [NOTES.read_text()] if NOTES.exists() else []
    DOCS.write_text(report.page_of(RESULTS, SCENARIOS, _HEAD, *notes, _METHOD))
    say(f"wrote {DOCS.relative_to(ROOT)}")


def main() -> int:
    options = _arguments()
    command.end_on_terminate()
    scenarios = command.chosen(SCENARIOS, options.only)
    if options.command == "render":
        _render()
        return 0
    if options.command == "list" or not scenarios:
        command.list_scenarios(SCENARIOS)
        return 0 if scenarios else 2
    machine.raise_file_limit()
    (WORK / "run").mkdir(parents=True, exist_ok=True)
    out = WORK / "cluster-quick.json" if options.quick or options.kafka_only else RESULTS
    made = _makers(options)
    with command.measuring(runner.FAILURES):
        kept = _measure(scenarios, made, options, out)
    report.print_tables(scenarios, kept)
    if options.docs:
        _render()
    return 1 if any(kept.outcomes[one.name].failures for one in scenarios) else 0


if __name__ == "__main__":
    sys.exit(main())
