"""`python -m bench`: measure, print, keep the results, write docs/benchmarks.md.

python -m bench              every scenario, Penstock and Apache Kafka in interleaved rounds
python -m bench partitions   4,000 partitions on one broker
python -m bench groups       a consumer group of 100 members forms, and settles when 10 leave
python -m bench driver       the driver against a sink that does nothing
python -m bench render       docs/benchmarks.md from the results at hand
python -m bench list         the scenarios
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

from bench import groups, machine, partitions, report, results, runner
from bench.brokers import (
    JVM_FLAGS,
    ROOT,
    WORK,
    BrokerMaker,
    Kafka,
    KafkaUnavailable,
    Penstock,
    java_version,
    kafka_jars,
)
from bench.runner import Side
from bench.scenarios import GROUPS, PARTITIONS, SCENARIOS, GroupOfMembers, ManyPartitions, Scenario, Start
from bench.selftest import against_sink

QUICK_SHARE = 0.04
DOCS = ROOT / "docs" / "benchmarks.md"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Penstock beside Apache Kafka")
    commands = ("all", "partitions", "groups", "driver", "render", "list")
    parser.add_argument("command", nargs="?", default="all", choices=commands)
    parser.add_argument("--rounds", type=int, default=None, help="rounds by broker and scenario (default 3)")
    parser.add_argument("--only", default="", metavar="NAME,...", help="scenarios whose name starts with one of these")
    parser.add_argument("--quick", action="store_true", help="tiny loads, one round: shows that it works, no numbers")
    parser.add_argument("--penstock-only", action="store_true", help="without Apache Kafka")
    parser.add_argument("--kafka-only", action="store_true", help="without Penstock, to try the driver")
    parser.add_argument("--kafka-home", type=Path, default=None, metavar="DIR", help="jars in DIR/libs, no Maven")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE", help="results file (default bench/results/)")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md")
    return parser.parse_args()


def _say(line: str) -> None:
    print(line, flush=True)


def _makers(options: argparse.Namespace) -> dict[str, BrokerMaker]:
    makers: dict[str, BrokerMaker] = {}
    if not options.kafka_only:
        makers[results.PENSTOCK] = lambda name: Penstock(WORK / "run" / name)
    if not options.penstock_only:
        try:
            jars = kafka_jars(options.kafka_home)
        except KafkaUnavailable as error:
            if options.kafka_only:
                raise SystemExit(f"Apache Kafka cannot be measured: {error}") from None
            _say(f"Apache Kafka is not here ({error}): measuring Penstock alone, without ratios.")
        else:
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
    """The brokers that are up for the whole run; whatever happens, they are ended."""
    sides = [Side(key, make(key), make) for key, make in makers.items()]
    try:
        if wanted:
            for side in sides:
                side.broker.prepare()
                side.broker.start()
                _say(f"{side.broker.label} {side.broker.version()} is up")
        yield sides
    finally:
        for side in sides:
            side.broker.discard()


def _new_outcome(scenario: Scenario) -> results.Outcome:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return results.Outcome(now, machine.source_revision(ROOT), scenario.flush.value)


def _stay_quiet() -> None:
    if machine.load_average() > 0.7:
        _say(
            f"the machine is not quiet (load average {machine.load_average():.1f}): figures will be worse than they are"
        )


def _measure(
    scenarios: Sequence[Scenario], makers: dict[str, BrokerMaker], options: argparse.Namespace, out: Path
) -> results.Results:
    rounds = options.rounds or (1 if options.quick else 3)
    share = QUICK_SHARE if options.quick else 1.0
    estimate = sum(s.estimate_s for s in scenarios) * rounds * len(makers) * (0.3 if options.quick else 1.0)
    estimate += 60.0 * share + 10.0
    _say(f"{len(scenarios)} scenarios x {rounds} rounds x {len(makers)} brokers: about {estimate / 60:.0f} minutes")
    _stay_quiet()
    ceiling = _driver_ceiling(share)
    _say(f"driver alone, against a sink: {ceiling}")
    earlier = results.load(out)
    kept = results.Results(_environment(makers, ceiling), earlier.outcomes if earlier else {})
    begin = time.monotonic()
    long_lived = any(not isinstance(scenario.load, Start) for scenario in scenarios)
    with _running(makers, long_lived) as sides:
        if long_lived:
            for side in sides:
                _say(f"warming {side.broker.label} up")
                runner.warm_up(side.broker, share)
        for position, scenario in enumerate(scenarios, 1):
            _say(f"[{position}/{len(scenarios)}, {time.monotonic() - begin:.0f} s] {scenario.name}")
            load = runner.scaled(scenario.load, share) if options.quick else scenario.load
            outcome = _new_outcome(scenario)
            runner.run_rounds(sides, replace(scenario, load=load), rounds, outcome, lambda line: _say("  " + line))
            kept.outcomes[scenario.name] = outcome
            kept.save(out)
    return kept


def _measure_partitions(makers: dict[str, BrokerMaker], options: argparse.Namespace, out: Path) -> results.Results:
    rounds = options.rounds or (1 if options.quick else 3)
    load = runner.scaled(PARTITIONS.load, QUICK_SHARE) if options.quick else PARTITIONS.load
    assert isinstance(load, ManyPartitions)
    _say(f"{load.topics} topics of {load.partitions} partitions, {rounds} rounds: about {rounds * len(makers)} minutes")
    _stay_quiet()
    outcome = _new_outcome(PARTITIONS)
    kept = results.Results(_environment(makers, None), {PARTITIONS.name: outcome})
    partitions.run_rounds(makers, load, rounds, outcome, lambda line: _say("  " + line))
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
    _say(f"both protocols x {rounds} rounds x {len(makers)} brokers: about {estimate / 60:.0f} minutes")
    _stay_quiet()
    kept = results.Results(_environment(makers, None), {scenario.name: _new_outcome(scenario) for scenario in GROUPS})
    configured = {key: groups.configured(make) for key, make in makers.items()}
    with _running(configured, True) as sides:
        groups.run_rounds(sides, pairs, rounds, kept.outcomes, lambda line: _say("  " + line))
    kept.save(out)
    return kept


def _chosen(only: str) -> list[Scenario]:
    prefixes = tuple(part.strip() for part in only.split(",") if part.strip())
    chosen = [scenario for scenario in SCENARIOS if not prefixes or scenario.name.startswith(prefixes)]
    if not chosen:
        raise SystemExit(f"no scenario starts with {only}; `python -m bench list` names them")
    return chosen


def _render() -> None:
    DOCS.parent.mkdir(exist_ok=True)
    DOCS.write_text(report.render())
    _say(f"wrote {DOCS.relative_to(ROOT)}")


def _end_on_terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = _arguments()
    signal.signal(signal.SIGTERM, _end_on_terminate)
    match options.command:
        case "list":
            for scenario in (*SCENARIOS, PARTITIONS, *GROUPS):
                _say(f"{scenario.name:<28} {scenario.section}: {scenario.title}")
            return 0
        case "driver":
            _say(_driver_ceiling(1.0))
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
    try:
        match options.command:
            case "partitions":
                kept = _measure_partitions(makers, options, out)
            case "groups":
                kept = _measure_groups(makers, options, out)
            case _:
                kept = _measure(scenarios, makers, options, out)
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
    if len(makers) == 1:
        _say("Only one broker was measured: there are no ratios.")
    failures = [failure for one in scenarios for failure in kept.outcomes[one.name].failures]
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
