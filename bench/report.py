"""Renders docs/benchmarks.md from the saved results, and short tables for the terminal.

Sections are independent: each comes from its own results file, so measuring one never loses another. Explanations of
numbers belong in bench/notes.md, which is copied to the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from bench.results import KAFKA, PENSTOCK, Outcome, Results, Summary, load, summarize
from bench.scenarios import GROUPS, METRICS, PARTITIONS, SCENARIOS, Compare, Scenario, Target

RESULTS = Path(__file__).resolve().parent / "results"
NOTES = Path(__file__).resolve().parent / "notes.md"
BENCH_FILE = RESULTS / "bench.json"
PARTITIONS_FILE = RESULTS / "partitions.json"
GROUPS_FILE = RESULTS / "groups.json"

_HEAD = """# Benchmarks

This page is written by `make bench`, `make bench-partitions` and `make bench-groups`; do not edit it. Penstock and
Apache Kafka run on the same machine. Both are up, and the rounds measure them in turn. Every figure is the median of
the rounds, with the lowest and the highest in brackets. The ratio is Penstock / Apache Kafka: each round has a ratio,
and the table shows their median, lowest and highest. "hit" and "missed" compare the median with the target.
"""

_METHOD = """## How it is measured

- The load comes from a driver that speaks the protocol itself (`bench/load/driver.py`). It sends prebuilt requests with
  acks=all from one thread, on one connection for each partition, with five requests in flight on each. It checks the
  correlation id and the error code of every answer, and the offsets and the number of fetched records. "driver" is the
  share of a core that the driver used (Penstock / Apache Kafka). Near 100 % the driver is the limit, not the broker.
- MB are record values, 10^6 bytes. Broker CPU is that of the process and its children, until 0.2 s after the last
  answer. Memory is resident memory.
- Flush is a topic setting, the same on both brokers: off is `flush.messages=9223372036854775807`, before
  acknowledgement is `flush.messages=1`. Where a section says default, each broker keeps its own.
- Latency is open loop: the time of a request begins when the request was due. So a stall shows in every request that it
  delayed. The first two seconds are not counted. Five seconds after the last request was due, unanswered requests count
  with the time that they have waited.
- Before each run the benchmark touches and frees as much memory as the run writes. Runs stay below the kernel's
  write-back threshold. Between runs topics are deleted through the API, and everything is synced. Both brokers get the
  same warm-up of about 1.5 GB.
- Time to first message begins with the start of the process on an empty data directory, includes the creation of the
  topic, and ends with the first acknowledged record. Apache Kafka's directory is formatted before the clock starts;
  Penstock formats its own directory while the clock runs.
- Transactions: the driver is several producers in one thread. Each has its own transactional id, connection and
  partition. It writes the records of a transaction in batches of up to 128 KB, commits when all are acknowledged, and
  begins the next transaction at once. Both brokers get the protocol of transaction version 2 (Produce 12, EndTxn 5).
  The time of a transaction runs from its first batch to the answer to its commit. The coordinator's topic has the flush
  setting of the row, too. After each run the driver checks that consumers of committed records can read all of them.
- Groups: members are confluent-kafka with no setting but address, group and protocol, in four processes beside both
  brokers. The clock starts when the members are told to join, before they connect, or when ten are told to close. It
  stops at the last change of an assignment, when every partition has one owner and the members' numbers of partitions
  differ by at most one. Each round closes members at another moment after the group formed, because heartbeats are 3 s
  apart.
  `group.initial.rebalance.delay.ms=0` on both, as in the properties file that Apache Kafka comes with.
"""


def number(value: float) -> str:
    """Three significant digits, thousands separated."""
    size = abs(value)
    if size >= 100 or size == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def _spread(summary: Summary | None, suffix: str = "") -> str:
    if summary is None:
        return "-"
    return f"{number(summary.median)}{suffix} ({number(summary.low)} - {number(summary.high)})"


def _goal(target: Target) -> str:
    match target.compare:
        case Compare.RATIO_AT_LEAST:
            return f">= {target.limit:g}x"
        case Compare.RATIO_AT_MOST:
            return f"<= {target.limit:g}x"
        case Compare.VALUE_AT_MOST:
            return f"<= {target.limit:g} {METRICS[target.metric].unit}"


def verdict(target: Target, outcome: Outcome) -> str:
    """hit, missed, or '-' if it cannot be judged."""
    alone = target.compare is Compare.VALUE_AT_MOST
    summary = summarize(outcome.values(PENSTOCK, target.metric) if alone else outcome.ratios(target.metric))
    if summary is None:
        return "-"
    reached = (
        summary.median >= target.limit if target.compare is Compare.RATIO_AT_LEAST else summary.median <= target.limit
    )
    return "hit" if reached else "**missed**"


def _driver(outcome: Outcome) -> str:
    sides = [summarize(outcome.values(side, "driver_cpu_pct")) for side in (PENSTOCK, KAFKA)]
    return " / ".join(f"{one.median:.0f} %" for one in sides if one is not None)


def rows(scenario: Scenario, outcome: Outcome) -> Iterator[list[str]]:
    targets = {target.metric: target for target in scenario.targets}
    for position, name in enumerate(scenario.shown):
        metric, target = METRICS[name], targets.get(name)
        yield [
            scenario.title if position == 0 else "",
            f"{metric.label}, {metric.unit}",
            _spread(summarize(outcome.values(PENSTOCK, name))),
            _spread(summarize(outcome.values(KAFKA, name))),
            _spread(summarize(outcome.ratios(name)), "x"),
            _goal(target) if target else "",
            verdict(target, outcome) if target else "",
            _driver(outcome) if position == 0 else "",
        ]


def _table(lines: Sequence[Sequence[str]], sides: tuple[str, str]) -> str:
    columns = ["", "", *sides, "ratio", "target", "", "driver"]
    out = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    out += ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(out)


def tables(scenarios: Sequence[Scenario], results: Results, other: str = "Apache Kafka") -> Iterator[str]:
    measured = [scenario for scenario in scenarios if scenario.name in results.outcomes]
    for section, members in groupby(measured, key=lambda scenario: scenario.section):
        lines: list[list[str]] = []
        failures: list[str] = []
        sides = ("Penstock", other)
        for scenario in members:
            sides = scenario.sides or sides
            outcome = results.outcomes[scenario.name]
            lines += rows(scenario, outcome)
            failures += [f"- {scenario.title}: {failure}" for failure in outcome.failures]
        yield f"## {section}\n\n{_table(lines, sides)}\n"
        if failures:
            yield "Runs that failed and are not in the figures:\n\n" + "\n".join(failures) + "\n"


def environment(results: Results) -> str:
    lines = [f"- {key}: {value}" for key, value in results.environment.items()]
    when = sorted(outcome.measured_at for outcome in results.outcomes.values())
    revisions = sorted({outcome.revision for outcome in results.outcomes.values()})
    rounds = sorted({len(outcome.rounds.get(PENSTOCK, [])) for outcome in results.outcomes.values()})
    if when:
        lines.append(f"- measured: {when[0]}" + (f" to {when[-1]}" if when[-1] != when[0] else ""))
        lines.append(f"- revision: {', '.join(revisions)}")
        lines.append(f"- rounds: {' - '.join(map(str, sorted({rounds[0], rounds[-1]})))}")
    return "\n".join(lines) + "\n"


def targets_line(scenarios: Sequence[Scenario], results: Results) -> str:
    """The number of targets that are hit, and the names of missed ones."""
    judged = [
        (scenario, target, verdict(target, results.outcomes[scenario.name]))
        for scenario in scenarios
        if scenario.name in results.outcomes
        for target in scenario.targets
    ]
    judged = [one for one in judged if one[2] != "-"]
    if not judged:
        return "No targets could be judged: Apache Kafka was not measured beside Penstock."
    missed = [f"{scenario.name} {METRICS[target.metric].label}" for scenario, target, word in judged if word != "hit"]
    line = f"{len(judged) - len(missed)} of {len(judged)} targets hit."
    return line + (f" Missed: {'; '.join(missed)}." if missed else "")


def render() -> str:
    """The page, from all existing results files."""
    parts = [_HEAD]
    bench, many = load(BENCH_FILE), load(PARTITIONS_FILE)
    if bench is not None:
        parts += [targets_line(SCENARIOS, bench) + "\n", environment(bench), *tables(SCENARIOS, bench)]
    if many is not None:
        parts += tables([PARTITIONS], many)
        parts += [targets_line([PARTITIONS], many) + "\n", environment(many)]
    if (groups := load(GROUPS_FILE)) is not None:
        parts += tables(GROUPS, groups)
        parts += [targets_line(GROUPS, groups) + "\n", environment(groups)]
    if NOTES.exists():
        parts.append(NOTES.read_text())
    parts.append(_METHOD)
    return "\n".join(parts)


def page_of(file: Path, scenarios: Sequence[Scenario], head: str, *rest: str, other: str = "Apache Kafka") -> str:
    """A page of a single results file: the head, what was measured, and what comes after that."""
    measured = load(file)
    if measured is None:
        raise SystemExit("nothing measured yet")
    parts = [head, targets_line(scenarios, measured) + "\n", environment(measured)]
    return "\n".join([*parts, *tables(scenarios, measured, other), *rest])


def print_tables(scenarios: Sequence[Scenario], results: Results) -> None:
    for scenario in scenarios:
        outcome = results.outcomes.get(scenario.name)
        if outcome is None:
            continue
        print(f"\n{scenario.section}: {scenario.title}")
        for _, label, ours, theirs, ratio, goal, word, _ in rows(scenario, outcome):
            judged = f"  {goal} {word.strip('*')}" if goal else ""
            print(f"  {label:<54} {ours:<26} {theirs:<26} {ratio}{judged}")
    print("\n" + targets_line(scenarios, results))
