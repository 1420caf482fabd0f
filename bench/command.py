"""Shared by `python -m bench`, `bench.cluster` and `bench.spark`: options, progress lines and interruption."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from bench import machine
from bench.brokers import ROOT, WORK, KafkaUnavailable, kafka_jars
from bench.results import Outcome, Results
from bench.scenarios import Scenario


def say(line: str) -> None:
    print(line, flush=True)


def add_options(parser: argparse.ArgumentParser, side: str, page: Path) -> None:
    parser.add_argument("--rounds", type=int, default=None, help=f"rounds by {side} and scenario (default 3)")
    parser.add_argument("--only", default="", metavar="NAME,...", help="scenarios whose name starts with one of these")
    parser.add_argument(
        "--quick", action="store_true", help="tiny loads, one round: tests the benchmark, not for numbers"
    )
    parser.add_argument("--docs", action="store_true", help=f"write {page.relative_to(ROOT)}")


def add_kafka_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--penstock-only", action="store_true", help="without Apache Kafka")
    parser.add_argument("--kafka-only", action="store_true", help="without Penstock, to try the driver")
    parser.add_argument("--kafka-home", type=Path, default=None, metavar="DIR", help="jars in DIR/libs, no Maven")


def wanted_kafka_jars(options: argparse.Namespace) -> Path | None:
    """Kafka's jars. None means that Penstock is measured alone."""
    if options.penstock_only:
        return None
    try:
        return kafka_jars(options.kafka_home)
    except KafkaUnavailable as error:
        if options.kafka_only:
            raise SystemExit(f"Apache Kafka cannot be measured: {error}") from None
        say(f"Apache Kafka is not available ({error}): measuring Penstock alone, without ratios.")
        return None


def chosen(scenarios: Sequence[Scenario], only: str) -> list[Scenario]:
    prefixes = tuple(part.strip() for part in only.split(",") if part.strip())
    return [scenario for scenario in scenarios if not prefixes or scenario.name.startswith(prefixes)]


def list_scenarios(scenarios: Sequence[Scenario]) -> None:
    for scenario in scenarios:
        say(f"{scenario.name:<28} {scenario.section}: {scenario.title}")


def warn_if_busy() -> None:
    load = machine.load_average()
    if load > 0.7:
        say(f"the machine is busy (load average {load:.1f}): figures will be too bad")


def new_outcome(scenario: Scenario) -> Outcome:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Outcome(now, machine.source_revision(ROOT), scenario.flush.value)


def each(scenarios: Sequence[Scenario], kept: Results, out: Path, begin_s: float) -> Iterator[tuple[Scenario, Outcome]]:
    """Yields each scenario with an outcome to fill, which is saved before the next one."""
    for position, scenario in enumerate(scenarios, 1):
        say(f"[{position}/{len(scenarios)}, {time.monotonic() - begin_s:.0f} s] {scenario.name}")
        outcome = new_outcome(scenario)
        yield scenario, outcome
        kept.outcomes[scenario.name] = outcome
        kept.save(out)


def end_on_terminate() -> None:
    """Makes SIGTERM end the run as Ctrl-C does: all started processes are ended, too."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def measuring(failures: tuple[type[Exception], ...]) -> Iterator[None]:
    """A failure or an interruption ends the process with one line. The files of the run are removed in any case."""
    try:
        yield
    except failures as error:
        say(f"error: {error}")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        say("interrupted; finished scenarios are kept")
        raise SystemExit(130) from None
    finally:
        if not os.environ.get("BENCH_KEEP"):
            shutil.rmtree(WORK / "run", ignore_errors=True)
