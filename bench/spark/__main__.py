"""`python -m bench.spark`: format("penstock") beside Spark's own Kafka connector; writes docs/benchmarks-spark.md.

One broker, the same topics, one Spark session for both; rounds alternate. Needs Java 17 and Maven (for the connector;
without it Penstock is measured alone).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench import command, machine, report, results
from bench.brokers import ROOT, WORK, BrokerFailed, Penstock, java_version
from bench.command import say
from bench.load import driver
from bench.load.client import HOST, Client
from bench.load.driver import LoadFailed, ProduceLoad
from bench.load.wire import BrokerError, records_per_batch
from bench.maven import JarsUnavailable, fetch_jars
from bench.scenarios import Load, Scenario, SparkDelivery, SparkOverhead, SparkRead, SparkTyped, SparkWrite
from bench.spark.scenarios import SCENARIOS
from bench.tables import topics as json_topics

POM = Path(__file__).with_name("pom.xml")
DOCS = ROOT / "docs" / "benchmarks-spark.md"
RESULTS = report.RESULTS / "spark.json"
CONNECTOR = "Spark's Kafka connector"
FORMATS = {results.PENSTOCK: "penstock", results.KAFKA: "kafka"}
GUARANTEES = {results.PENSTOCK: "exactly-once", results.KAFKA: "at-least-once"}
DECODERS = {results.PENSTOCK: "valueSchema", results.KAFKA: "from_json"}
LABELS = {results.PENSTOCK: "penstock", results.KAFKA: "kafka (JVM)"}
BATCH_BYTES = 128 * 1024
QUICK_SHARE = 0.05

_HEAD = """# Benchmarks of Spark

This page is written by `make bench-spark`; do not edit it. `format("penstock")` and Spark's own Kafka connector
(`format("kafka")`) read the same topics of the same Penstock broker and write to it, in one Spark session, so with the
same JVM and the same settings, in interleaved rounds. Every figure is the median of the rounds, with the lowest and
highest in brackets; the ratio is penstock / kafka, the median of the ratios round by round. "hit" and "missed" judge
the median against the target.
"""

_METHOD = """## How it is measured

- `local[2]`, so two tasks at a time, and the broker, on the same two cores. Topics have two partitions and hold
  uncompressed batches of 128 KB without keys; they are read from the page cache.
- **Source**: a stream with `availableNow` and `maxOffsetsPerTrigger` (1,000,000 rows of 100 B, 300,000 of 1 KB), all
  columns, no headers. A round is the median of its batches (`triggerExecution`), two batches at its start left out. The
  number of rows is checked.
- **Typed values**: a stream as above by `format("penstock")`, to noop, of JSON objects: with `valueFormat=json` and
  `valueSchema`, beside `from_json` with the same schema over the plain values. The ratio is valueSchema / from_json.
- **Sink**: a batch write of key and value, read from Parquet made beforehand, with each connector's own defaults
  (acks=all and idempotence on both), to a topic with the broker's default of a flush before each acknowledgement. The
  time of the whole job.
- **Micro-batches**: 2 rows each to noop, two partitions; the first ten left out. "Spark's own settings" is a session
  with nothing set but the master, in a process of its own.
- **Exactly once**: a stream from a topic to another, read and written by `format("penstock")`, with `availableNow`,
  `maxOffsetsPerTrigger` and each of the two values of `deliveryGuarantee`. A round is the median of its batches, two
  at its start left out. The number of rows in a batch is such that it takes about a second at least once. The ratio is
  exactly once / at least once.
- A round of both connectors that is not counted goes first.
- MB are record values, 10^6 bytes.
"""


class SparkFailed(RuntimeError):
    pass


FAILURES = (BrokerError, BrokerFailed, LoadFailed, SparkFailed, OSError)


class Worker:
    """The process with the Spark session."""

    def __init__(self, settings: str, jars: Sequence[Path], log: Path) -> None:
        self._log = log
        arguments = [sys.executable, "-m", "bench.spark.work", settings, ",".join(map(str, jars))]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True, cwd=ROOT
        )
        self.spark_version = self._answer()["ready"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SparkFailed(f"the Spark process ended: {self._log.read_text()[-1500:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def do(self, task: Mapping[str, Any]) -> results.Metrics:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"work": str(WORK / "run"), **task}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise SparkFailed(f"{task['do']} {task.get('format', '')}: {answer['error']}")
        measured: results.Metrics = answer["measured"]
        return measured

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Bench:
    def __init__(self, broker: Penstock, jars: Sequence[Path], share: float) -> None:
        self.broker = broker
        self.jars = jars
        self.share = share
        self._workers: dict[str, Worker] = {}
        self._full: dict[tuple[int, int], str] = {}
        self._json: dict[int, str] = {}
        self._parquet: dict[int, tuple[str, int]] = {}

    def worker(self, settings: str) -> Worker:
        if settings not in self._workers:
            say(f"  starting Spark, {settings} settings")
            self._workers[settings] = Worker(settings, self.jars, WORK / "run" / f"spark-{settings}.log")
        return self._workers[settings]

    def sides_of(self, load: Load) -> list[str]:
        has_both = self.jars or isinstance(load, SparkDelivery | SparkTyped)
        return [results.PENSTOCK, results.KAFKA] if has_both else [results.PENSTOCK]

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()

    @property
    def spark_version(self) -> str:
        return next((worker.spark_version for worker in self._workers.values()), "unknown")

    @property
    def _address(self) -> str:
        return f"{HOST}:{self.broker.port}"

    def _new_topic(self, hint: str) -> str:
        name = f"{hint}-{time.monotonic_ns()}"
        with Client(self.broker.port) as client:
            client.create_topic(name, 2, {})
            client.wait_for_leaders({name: 2})
        return name

    def _topic_with(self, value_bytes: int, rows: int, batch_bytes: int) -> tuple[str, int]:
        """A topic that holds at least so many rows, made once, and how many it holds."""
        per_batch = records_per_batch(value_bytes, batch_bytes)
        requests = max(1, rows // per_batch // 2) * 2  # as many to each partition
        topic = self._full.get((value_bytes, requests))
        if topic is None:
            topic = self._full[value_bytes, requests] = self._new_topic(f"rows{value_bytes}")
            written = driver.produce(self.broker.port, ProduceLoad(topic, 2, value_bytes, batch_bytes, requests, 600.0))
            if written.records != requests * per_batch:
                raise LoadFailed(f"wrote {written.records} records, not {requests * per_batch}")
        return topic, requests * per_batch

    def _json_topic(self, rows: int) -> str:
        if rows not in self._json:
            self._json[rows] = self._new_topic("json")
            json_topics.fill(self.broker.port, self._json[rows], rows, partitions=2)
        return self._json[rows]

    def _parquet_of(self, value_bytes: int, rows: int) -> tuple[str, int]:
        if value_bytes not in self._parquet:
            path = str(WORK / "run" / f"parquet{value_bytes}")
            self.worker("penstock").do(
                {"do": "make_parquet", "parquet": path, "value_bytes": value_bytes, "rows": rows}
            )
            self._parquet[value_bytes] = (path, rows)
        return self._parquet[value_bytes]

    def run(self, side: str, load: Load) -> results.Metrics:
        common = {"format": FORMATS[side], "bootstrap": self._address}
        match load:
            case SparkRead(value_bytes, rows, rows_per_batch, to):
                topic, held = self._topic_with(value_bytes, rows, BATCH_BYTES)
                task = {"do": "read", "topic": topic, "rows": held, "rows_per_batch": rows_per_batch, "to": to}
                return self.worker("penstock").do({**common, **task, "value_bytes": value_bytes})
            case SparkWrite(value_bytes, rows):
                path, held = self._parquet_of(value_bytes, rows)
                topic = self._new_topic("sink")
                task = {"do": "write", "topic": topic, "parquet": path, "rows": held, "value_bytes": value_bytes}
                try:
                    return self.worker("penstock").do({**common, **task})
                finally:
                    with Client(self.broker.port) as client:
                        client.delete_topics([topic])
            case SparkDelivery(value_bytes, rows, rows_per_batch):
                topic, held = self._topic_with(value_bytes, rows, BATCH_BYTES if rows_per_batch > 2 else 0)
                task = {"do": "deliver", "topic": topic, "rows": held, "rows_per_batch": rows_per_batch}
                task |= {"format": "penstock", "guarantee": GUARANTEES[side], "to": self._new_topic("delivered")}
                try:
                    return self.worker("penstock").do({**common, **task})
                finally:
                    with Client(self.broker.port) as client:
                        client.delete_topics([str(task["to"])])
            case SparkTyped(rows, rows_per_batch):
                task = {"do": "typed", "topic": self._json_topic(rows), "rows": rows, "rows_per_batch": rows_per_batch}
                task |= {"format": "penstock", "decoder": DECODERS[side], "schema": json_topics.SCHEMA}
                return self.worker("penstock").do({**common, **task, "value_bytes": json_topics.RECORD_BYTES})
            case SparkOverhead(settings, batches):
                topic, _ = self._topic_with(100, batches * 2, 0)
                return self.worker(settings).do({**common, "do": "overhead", "topic": topic})
        raise AssertionError(f"not a load of Spark: {load}")


def _scaled(load: Load, share: float) -> Load:
    match load:
        case SparkRead(rows=rows, rows_per_batch=per_batch) | SparkTyped(rows=rows, rows_per_batch=per_batch):
            return replace(load, rows=int(rows * share), rows_per_batch=int(per_batch * share))
        case SparkDelivery(rows=rows, rows_per_batch=per_batch) if per_batch > 2:
            return replace(load, rows=int(rows * share), rows_per_batch=int(per_batch * share))
        case SparkWrite(rows=rows):
            return replace(load, rows=int(rows * share))
        case _:
            return load


def _labels(load: Load) -> dict[str, str]:
    match load:
        case SparkDelivery():
            return GUARANTEES
        case SparkTyped():
            return DECODERS
        case _:
            return LABELS


def _connector() -> list[Path]:
    release = ElementTree.parse(POM).findtext(".//{*}connector.version")
    try:
        jars = fetch_jars(POM, WORK / "spark-kafka" / str(release), f"{CONNECTOR} {release}")
    except JarsUnavailable as error:
        say(f"{CONNECTOR} is not here ({error}): measuring Penstock alone, without ratios.")
        return []
    return sorted(jars.glob("*.jar"))


@contextmanager
def _broker() -> Iterator[Penstock]:
    broker = Penstock(WORK / "run" / "penstock")
    try:
        broker.prepare()
        broker.start()
        yield broker
    finally:
        broker.discard()


def _measure(bench: Bench, scenarios: Sequence[Scenario], rounds: int, kept: results.Results, out: Path) -> None:
    for scenario, outcome in command.each(scenarios, kept, out, time.monotonic()):
        load = _scaled(scenario.load, bench.share)
        for number in range(rounds + 1):  # round 0 warms up
            for side in bench.sides_of(load):
                machine.settle()
                measured = bench.run(side, load)
                if number == 0:
                    continue
                outcome.rounds.setdefault(side, []).append(measured)
                figures = ", ".join(f"{name} {report.number(value)}" for name, value in measured.items())
                labels = _labels(load)
                say(f"  {labels[side]:<12} round {number}: {figures}")
        kept.environment["Spark"] = f"PySpark {bench.spark_version}, {java_version()}"


def _environment(jars: Sequence[Path]) -> dict[str, str]:
    facts = machine.facts(WORK)
    for name in ("penstock", "pyarrow", "numba"):
        facts[name] = version(name)
    facts[CONNECTOR] = ", ".join(jar.stem for jar in jars) if jars else "not measured"
    return facts


def _render() -> None:
    DOCS.write_text(report.page_of(RESULTS, SCENARIOS, _HEAD, _METHOD, other=CONNECTOR))
    say(f"wrote {DOCS.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("command", nargs="?", default="all", choices=("all", "render", "list"))
    command.add_options(parser, "connector", DOCS)
    options = parser.parse_args()
    if options.command == "render":
        _render()
        return 0
    scenarios = command.chosen(SCENARIOS, options.only)
    if options.command == "list" or not scenarios:
        command.list_scenarios(SCENARIOS)
        return 0 if scenarios else 2
    rounds = options.rounds or (1 if options.quick else 3)
    machine.raise_file_limit()
    (WORK / "run").mkdir(parents=True, exist_ok=True)
    jars = _connector()
    out = WORK / "spark-quick.json" if options.quick else RESULTS
    earlier = results.load(out)
    kept = results.Results(_environment(jars), earlier.outcomes if earlier else {})
    with command.measuring(FAILURES), ExitStack() as stack:
        broker = stack.enter_context(_broker())
        bench = Bench(broker, jars, QUICK_SHARE if options.quick else 1.0)
        stack.callback(bench.close)
        _measure(bench, scenarios, rounds, kept, out)
    report.print_tables(scenarios, kept)
    if options.docs:
        _render()
    return 0


if __name__ == "__main__":
    sys.exit(main())
