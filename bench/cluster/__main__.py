"""`python -m bench.cluster`: three Penstock brokers beside three of Apache Kafka; writes docs/benchmarks-cluster.md.

Needs Java 17 and Maven for Kafka; without them Penstock is measured alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from bench import machine, report, results
from bench.brokers import JVM_FLAGS, ROOT, WORK, KafkaUnavailable, java_version, kafka_jars
from bench.cluster import runner
from bench.cluster.clusters import ClusterMaker, makers
from bench.cluster.runner import Side
from bench.cluster.scenarios import SCENARIOS
from bench.scenarios import Idle, Scenario

DOCS = ROOT / "docs" / "benchmarks-cluster.md"
RESULTS = report.RESULTS / "cluster.json"
NOTES = Path(__file__).with_name("notes.md")
QUICK_SHARE = 0.1

_HEAD = """# Benchmarks of a cluster

This page is written by `make bench-cluster`; do not edit it. Three Penstock brokers and three of Apache Kafka (KRaft,
each broker and controller in one) run on the same machine with the same properties files, both clusters up, one
measured at a time, in interleaved rounds. Every figure is the median of the rounds, with the lowest and highest in
brackets; the ratio is Penstock / Apache Kafka, the median of the ratios round by round. "hit" and "missed" judge the
median against the target.
"""

_METHOD = """## How it is measured

- Topics have three replicas and `min.insync.replicas=2`; every write is acks=all. All else is each system's default:
  with "stock settings" Penstock flushes to disk before a replica counts a record as stored (`flush.messages=1`),
  Apache Kafka leaves flushing to the system (`flush.messages=9223372036854775807`). "flush off on both" sets the
  latter on both.
- The load is the raw-protocol driver of `make bench` (one thread, one connection to each partition's leader, five
  requests in flight on each, prebuilt requests), except where a row names a stock client. It shares the machine's
  cores with all brokers. "driver" is the share of a core it used (Penstock / Apache Kafka).
- MB are record values as the producer sends them, 10^6 bytes, not times three. CPU and memory are sums over the three
  brokers; CPU includes half a second after the last answer, memory is resident memory right after it. A flush is the
  work of the kernel's own threads, on both sides; the row "CPU of the machine" counts them too.
- Latency is open loop: each request counts from the moment it was due. The first two seconds are not counted.
- kill -9 of a leader: a confluent-kafka producer with idempotence and no other setting sends 300 records/s over three
  partitions while the leader of one is killed; a pause is the longest time that a partition got no acknowledgement. The
  broker is started again, and the next kill comes when every replica is in sync. A round is three kills.
- Idle: a fresh cluster with one empty topic, beside the other two clusters.
- Before the rounds each cluster gets the same warm-up of about a minute and a half.
- The cluster that is not measured is idle, which costs what the idle row says.
"""


def _say(line: str) -> None:
    print(line, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description="Three brokers beside three of Kafka")
    parser.add_argument("command", nargs="?", default="all", choices=("all", "render", "list"))
    parser.add_argument("--rounds", type=int, default=None, help="rounds by cluster and scenario (default 3)")
    parser.add_argument("--only", default="", metavar="NAME,...", help="scenarios whose name starts with one of these")
    parser.add_argument("--quick", action="store_true", help="tiny loads, one round: shows that it works, no numbers")
    parser.add_argument("--penstock-only", action="store_true", help="without Apache Kafka")
    parser.add_argument("--kafka-only", action="store_true", help="without Penstock, to try the driver")
    parser.add_argument("--kafka-home", type=Path, default=None, metavar="DIR", help="jars in DIR/libs, no Maven")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks-cluster.md")
    return parser.parse_args()


def _makers(options: argparse.Namespace) -> dict[str, ClusterMaker]:
    sides = [results.PENSTOCK] if not options.kafka_only else []
    jars: Path | None = None
    if not options.penstock_only:
        try:
            jars = kafka_jars(options.kafka_home)
            sides.append(results.KAFKA)
        except KafkaUnavailable as error:
            if options.kafka_only:
                raise SystemExit(f"Apache Kafka cannot be measured: {error}") from None
            _say(f"Apache Kafka is not here ({error}): measuring Penstock alone, without ratios.")
    return makers(WORK, jars, sides)


@contextlib.contextmanager
def _running(made: dict[str, ClusterMaker], wanted: bool) -> Iterator[list[Side]]:
    """The clusters that are up for the whole run; whatever happens, they are ended."""
    sides = [Side(key, make(key), make) for key, make in made.items()]
    try:
        if wanted:
            for side in sides:
                begin = time.monotonic()
                side.cluster.start()
                _say(f"{side.cluster.label} is up after {time.monotonic() - begin:.1f} s")
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
    _say(f"{len(scenarios)} scenarios x {rounds} rounds x {len(made)} clusters: about {estimate / 60 + 1:.0f} minutes")
    if machine.load_average() > 0.7:
        _say(f"the machine is not quiet (load average {machine.load_average():.1f}): figures will be worse")
    earlier = results.load(out)
    begin = time.monotonic()
    wanted = any(not isinstance(scenario.load, Idle) for scenario in scenarios)
    with _running(made, wanted) as sides:
        kept = results.Results(_environment(sides), earlier.outcomes if earlier else {})
        if wanted:
            for side in sides:
                _say(f"warming {side.cluster.label} up")
                runner.warm_up(side.cluster, share)
        for position, scenario in enumerate(scenarios, 1):
            _say(f"[{position}/{len(scenarios)}, {time.monotonic() - begin:.0f} s] {scenario.name}")
            load = runner.scaled(scenario.load, share) if options.quick else scenario.load
            now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            outcome = results.Outcome(now, machine.source_revision(ROOT), scenario.flush.value)
            runner.run_rounds(sides, replace(scenario, load=load), rounds, outcome, lambda line: _say("  " + line))
            kept.outcomes[scenario.name] = outcome
            kept.save(out)
    return kept


def _render() -> None:
    measured = results.load(RESULTS)
    if measured is None:
        raise SystemExit("nothing measured yet")
    parts = [_HEAD, report.targets_line(SCENARIOS, measured) + "\n", report.environment(measured)]
    parts += report.tables(SCENARIOS, measured)
    if NOTES.exists():
        parts.append(NOTES.read_text())
    parts.append(_METHOD)
    DOCS.write_text("\n".join(parts))
    _say(f"wrote {DOCS.relative_to(ROOT)}")


def _end_on_terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = _arguments()
    signal.signal(signal.SIGTERM, _end_on_terminate)
    prefixes = tuple(part.strip() for part in options.only.split(",") if part.strip())
    scenarios = [one for one in SCENARIOS if not prefixes or one.name.startswith(prefixes)]
    if options.command == "render":
        _render()
        return 0
    if options.command == "list" or not scenarios:
        for scenario in SCENARIOS:
            _say(f"{scenario.name:<28} {scenario.section}: {scenario.title}")
        return 0 if scenarios else 2
    machine.raise_file_limit()
    (WORK / "run").mkdir(parents=True, exist_ok=True)
    out = WORK / "cluster-quick.json" if options.quick or options.kafka_only else RESULTS
    made = _makers(options)
    try:
        kept = _measure(scenarios, made, options, out)
    except runner.FAILURES as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted; finished scenarios are kept")
        return 130
    finally:
        if not os.environ.get("BENCH_KEEP"):
            shutil.rmtree(WORK / "run", ignore_errors=True)
    report.print_tables(scenarios, kept)
    if options.docs:
        _render()
    return 1 if any(kept.outcomes[one.name].failures for one in scenarios) else 0


if __name__ == "__main__":
    sys.exit(main())
