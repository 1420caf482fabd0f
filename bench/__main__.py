"""`python -m bench`: measure, print, keep the results, write docs/benchmarks.md.

python -m bench              every scenario, Penstock and Apache Kafka in interleaved rounds
python -m bench partitions   4,000 partitions on one broker
python -m bench groups       the time for a group of 100 members to form, and to settle when 10 leave
python -m bench driver       the driver against a sink that does nothing
python -m bench render       docs/benchmarks.md from the saved results
python -m bench list         the scenarios
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench import command, groups, machine, partitions, report, results, runner
from bench.brokers import JVM_FLAGS, ROOT, WORK, BrokerMaker, Kafka, Penstock, java_version
from bench.command import new_outcome, say, warn_if_busy
from bench.load.selftest import against_sink
from bench.runner import Side
from bench.scenarios import GROUPS, PARTITIONS, SCENARIOS, GroupOfMembers, ManyPartitions, Scenario, Start

QUICK_SHARE = 0.04
DOCS = ROOT / "docs" / "benchmarks.md"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Penstock beside Apache Kafka")
    commands = ("all", "partitions", "groups", "driver", "render", "list")
    parser.add_argument("command", nargs="?", default="all", choices=commands)
    command.add_options(parser, "broker", DOCS)
    command.add_kafka_options(parser)
    parser.add_argument("--out", type=Path, default=None, metavar="FILE", help="results file (default bench/results/)")
    return parser.parse_args()


def _makers(options: argparse.Namespace) -> dict[str, BrokerMaker]:
    makers: dict[str, BrokerMaker] = {}
    if not options.kafka_only:
        makers[results.PENSTOCK] = lambda name: Penstock(WORK / "run" / name)
    jars = command.wanted_kafka_jars(options)
    if jars is not None:
        makers[results.KAFKA] = lambda name: Kafka(WORK / "run" / name, jars)
    return makers


def _environment(makers: dict[str, BrokerMaker], ceiling: str | None) -> dict[str, str]:
    WORK.mkdir(exist_ok=True)
    facts = machine.facts(WORK)
    if results.PENSTOCK in makers:
        facts["Penstock"] = makers[results.PENSTOCK]("version").version()
    if results.KAFKA in makers:
        version = makers[results.KAFKA]("version").version()
        facts["Apache Kafka"] = f"{version}, {java_version()}, {JVM_FLAGS}"
    else:
        facts["Apache Kafka"] = "not measured"
    if ceiling is not None:
        facts["driver alone, against a sink"] = ceiling
    return facts


def _driver_ceiling(share: float) -> str:
    parts = []
    for label, record_bytes, batch_bytes, requests in (
        ("128 KB batches", 1024, 128 * 1024, 10_000),
        ("16 KB batches", 1024, 16 * 1024, 50_000),
        ("one record", 100, 0, 100_000),
    ):
        result = against_sink(record_bytes, batch_bytes, int(requests * share))
        mb_s, requests_s = result.value_bytes / result.seconds / 1e6, result.requests / result.seconds
        parts.append(f"{label} {mb_s:,.0f} MB/s ({requests_s:,.0f} requests/s)")
    return ", ".join(parts)


@contextlib.contextmanager
def _running(makers: dict[str, BrokerMaker], wanted: bool) -> Iterator[list[Side]]:
    """The brokers that are up for the whole run; they are ended in any case."""
    sides = [Side(key, make(key), make) for key, make in makers.items()]
    try:
        if wanted:
            for side in sides:
                side.broker.prepare()
                side.broker.start()
                say(f"{side.broker.label} {side.broker.version()} is up")
        yield sides
    finally:
        for side in sides:
            side.broker.discard()


def _measure(
    scenarios: Sequence[Scenario], makers: dict[str, BrokerMaker], options: argparse.Namespace, out: Path
) -> results.Results:
    rounds = options.rounds or (1 if options.quick else 3)
    share = QUICK_SHARE if options.quick else 1.0
    estimate = sum(s.estimate_s for s in scenarios) * rounds * len(makers) * (0.3 if options.quick else 1.0)
    estimate += 60.0 * share + 10.0
    say(f"{len(scenarios)} scenarios x {rounds} rounds x {len(makers)} brokers: about {estimate / 60:.0f} minutes")
    warn_if_busy()
    ceiling = _driver_ceiling(share)
    say(f"driver alone, against a sink: {ceiling}")
    earlier = results.load(out)
    kept = results.Results(_environment(makers, ceiling), earlier.outcomes if earlier else {})
    begin = time.monotonic()
    long_lived = any(not isinstance(scenario.load, Start) for scenario in scenarios)
    with _running(makers, long_lived) as sides:
        if long_lived:
            for side in sides:
                say(f"warming {side.broker.label} up")
                runner.warm_up(side.broker, share)
        for scenario, outcome in command.each(scenarios, kept, out, begin):
            load = runner.scaled(scenario.load, share) if options.quick else scenario.load
            runner.run_rounds(sides, replace(scenario, load=load), rounds, outcome, lambda line: say("  " + line))
    return kept


def _measure_partitions(makers: dict[str, BrokerMaker], options: argparse.Namespace, out: Path) -> results.Results:
    rounds = options.rounds or (1 if options.quick else 3)
    load = runner.scaled(PARTITIONS.load, QUICK_SHARE) if options.quick else PARTITIONS.load
    assert isinstance(load, ManyPartitions)
    say(f"{load.topics} topics of {load.partitions} partitions, {rounds} rounds: about {rounds * len(makers)} minutes")
    warn_if_busy()
    outcome = new_outcome(PARTITIONS)
    kept = results.Results(_environment(makers, None), {PARTITIONS.name: outcome})
    partitions.run_rounds(makers, load, rounds, outcome, lambda line: say("  " + line))
    kept.save(out)
    return kept


def _measure_groups(makers: dict[str, BrokerMaker], options: argparse.Namespace, out: Path) -> results.Results:
    rounds = options.rounds or (1 if options.quick else 3)
    pairs: list[tuple[Scenario, GroupOfMembers]] = []
    for scenario in GROUPS:
        load = runner.scaled(scenario.load, QUICK_SHARE) if options.quick else scenario.load
        assert isinstance(load, GroupOfMembers)
        pairs.append((scenario, load))
    estimate = sum(scenario.estimate_s for scenario in GROUPS) * (rounds + 1) * len(makers)
    say(f"both protocols x {rounds} rounds x {len(makers)} brokers: about {estimate / 60:.0f} minutes")
    warn_if_busy()
    kept = results.Results(_environment(makers, None), {scenario.name: new_outcome(scenario) for scenario in GROUPS})
    configured = {key: groups.configured(make) for key, make in makers.items()}
    with _running(configured, True) as sides:
        groups.run_rounds(sides, pairs, rounds, kept.outcomes, lambda line: say("  " + line))
    kept.save(out)
    return kept


def _chosen(only: str) -> list[Scenario]:
    chosen = command.chosen(SCENARIOS, only)
    if not chosen:
        raise SystemExit(f"no scenario starts with {only}; `python -m bench list` names them")
    return chosen


def _render() -> None:
    DOCS.parent.mkdir(exist_ok=True)
    DOCS.write_text(report.render())
    say(f"wrote {DOCS.relative_to(ROOT)}")


def main() -> int:
    options = _arguments()
    command.end_on_terminate()
    match options.command:
        case "list":
            command.list_scenarios([*SCENARIOS, PARTITIONS, *GROUPS])
            return 0
        case "driver":
            say(_driver_ceiling(1.0))
            return 0
        case "render":
            _render()
            return 0
    machine.raise_file_limit()
    makers = _makers(options)
    scenarios: list[Scenario]
    match options.command:
        case "partitions":
            scenarios, real = [PARTITIONS], report.PARTITIONS_FILE
        case "groups":
            scenarios, real = list(GROUPS), report.GROUPS_FILE
        case _:
            scenarios, real = _chosen(options.only), report.BENCH_FILE
    out = options.out or (WORK / f"{real.stem}-quick.json" if options.quick else real)
    with command.measuring(runner.FAILURES):
        match options.command:
            case "partitions":
                kept = _measure_partitions(makers, options, out)
            case "groups":
                kept = _measure_groups(makers, options, out)
            case _:
                kept = _measure(scenarios, makers, options, out)
    report.print_tables(scenarios, kept)
    if options.docs:
        _render()
    if len(makers) == 1:
        say("Only one broker was measured: there are no ratios.")
    failures = [failure for one in scenarios for failure in kept.outcomes[one.name].failures]
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
