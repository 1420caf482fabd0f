"""`make demo`: the whole story end to end, in about two minutes. Ends by itself and cleans up.

A broker; clicks at a steady rate from a stock Kafka client; a pipeline project on Spark that takes them out of a topic,
sends the bad ones to a dead-letter topic, keeps a table and a view in Parquet and writes results back to a topic. Half
way the broker is killed with SIGKILL. At the end everything acknowledged is in the table, once, lag is zero, and a
table is printed. Whatever does not add up is an error and exit code 1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from demo.clickstream import Clickstream

CLICKS, CLEAN, DEAD = "clicks", "clicks-clean", "clicks-dead-letters"
PARTITIONS = 3
RATE = int(os.environ.get("PENSTOCK_DEMO_RATE", "2000"))
SECONDS = float(os.environ.get("PENSTOCK_DEMO_SECONDS", "60"))
PATIENCE_S = 240.0
SILENT = 0  # librdkafka's log_level: a broker that is killed on purpose is no news
PENSTOCK = [sys.executable, "-m", "penstock.cli"]

_begin = time.monotonic()


def say(text: str) -> None:
    clock = f"{time.monotonic() - _begin:5.0f} s"
    print(f"\033[1m{clock}\033[0m  {text}" if sys.stdout.isatty() else f"{clock}  {text}", flush=True)


class Failed(RuntimeError):
    """Something did not add up."""


class Broker:
    def __init__(self, data: Path) -> None:
        self._data = data
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [*PENSTOCK, "start", "--data", str(self._data), "--port", str(self.port), "--log-level", "error"]
        command += ["--set", "penstock.http.listener=", "--set", "penstock.line.listener="]
        begin = time.perf_counter()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        found = re.search(r" ready on [^:]+:(\d+)", line)
        if found is None:
            raise Failed(f"the broker did not start (it said {line!r})")
        self.port = int(found[1])
        say(f"broker: {line.replace(str(self._data), 'DATA')}  [{time.perf_counter() - begin:.2f} s after the command]")

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait(30) != 0:
            raise Failed(f"the broker stopped with exit code {self._process.returncode}")

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Pipeline:
    """`penstock pipeline` in a project directory."""

    def __init__(self, project: Path, address: str) -> None:
        self._project = project
        self._environment = {**os.environ, "PENSTOCK_BOOTSTRAP_SERVERS": address}
        self._serving: subprocess.Popen[bytes] | None = None
        self._output = project.parent / "serve.log"

    def _run(self, *arguments: str, where: Path | None = None) -> str:
        done = subprocess.run(
            [*PENSTOCK, "pipeline", *arguments],
            cwd=where or self._project,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Failed(f"penstock pipeline {arguments[0]} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def init(self) -> None:
        self._run("init", self._project.name, "--topic", CLICKS, where=self._project.parent)
        say(f"penstock pipeline init {self._project.name}: a project with definitions in Python and SQL")

    def serve(self) -> None:
        say("penstock pipeline serve: starting Spark")
        self._serving = subprocess.Popen(
            [*PENSTOCK, "pipeline", "serve", "--interval", "2", "--fast-start"],
            cwd=self._project,
            env=self._environment,
            stdout=self._output.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def check_alive(self) -> None:
        assert self._serving is not None
        if self._serving.poll() is not None:
            raise Failed(f"the pipeline ended with {self._serving.returncode}")

    def output(self) -> str:
        """The last it said."""
        return self._output.read_text()[-4000:] if self._output.exists() else ""

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._run("status", "--json"))
        return found

    def stop(self) -> None:
        assert self._serving is not None
        self._serving.send_signal(signal.SIGTERM)
        if self._serving.wait(120) != 0:
            raise Failed(f"the pipeline stopped with exit code {self._serving.returncode}")

    def end(self) -> None:
        if self._serving is not None and self._serving.poll() is None:
            os.killpg(self._serving.pid, signal.SIGKILL)
            self._serving.wait()


def create_topics(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": SILENT})
    topics = [NewTopic(name, PARTITIONS) for name in (CLICKS, CLEAN, DEAD)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    say(f"topics: {CLICKS} -> {CLEAN}, {DEAD}; {PARTITIONS} partitions each; acknowledged means on disk")


def lag_of(status: dict[str, Any]) -> int | None:
    """Over all flows; None before each has read something."""
    lags = [flow["lag"] for flow in status["flows"] if flow["partitions"]]
    return sum(lags) if lags and None not in lags else None


def watch(pipeline: Pipeline, stream: Clickstream, broker: Broker) -> None:
    """Until everything has gone through. The broker is killed once, half way, while the pipeline reads."""
    deadline = time.monotonic() + SECONDS + PATIENCE_S
    kill_at = time.monotonic() + SECONDS / 2
    was_killed, worst, caught_up = False, 0, 0
    while time.monotonic() < deadline:
        time.sleep(3)
        pipeline.check_alive()
        if stream.error:
            raise Failed(stream.error)
        status = pipeline.status()
        lag = lag_of(status)
        if not was_killed and lag is not None and time.monotonic() > kill_at:
            was_killed = True
            say("kill -9 of the broker, and a start from the same directory; clicks and pipeline go on")
            broker.kill()
            broker.start()
        worst = max(worst, lag or 0)
        is_over = not stream.is_alive()
        bar = "#" * round(30 * (lag or 0) / worst) if worst else ""
        state = "clicks ended" if is_over else f"{stream.total:,} clicks acknowledged"
        say(f"{state:<32} lag {'-' if lag is None else format(lag, ','):>8}  {bar}")
        is_done = is_over and lag == 0 and all(flow["state"] == "completed" for flow in status["flows"])
        caught_up = caught_up + 1 if is_done else 0
        if caught_up == 2:
            return
    raise Failed("the pipeline did not catch up in time")


def read_topic(address: str, topic: str) -> list[tuple[bytes | None, list[tuple[str, bytes]]]]:
    """Key and headers of every record, with a stock client."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "demo", "enable.auto.commit": False, "log_level": SILENT}
    )
    partitions = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    ends = sum(consumer.get_watermark_offsets(one, 30)[1] for one in partitions)
    consumer.assign(partitions)
    found: list[tuple[bytes | None, list[tuple[str, bytes]]]] = []
    deadline = time.monotonic() + 60
    while len(found) < ends and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                raise Failed(f"cannot consume {topic}: {message.error()}")
            found.append((message.key(), message.headers() or []))
    consumer.close()
    if len(found) != ends:
        raise Failed(f"{topic} has {ends} records, {len(found)} came")
    return found


def check_results(address: str, project: Path, stream: Clickstream) -> None:
    import pyarrow.parquet as parquet

    good, bad = stream.acknowledged[True], stream.acknowledged[False]
    # Files that the streaming table's own log names: a task that failed may have left others.
    entries = (project / "warehouse" / "events" / "_spark_metadata").iterdir()
    names = {
        json.loads(line)["path"].rpartition("/")[2]
        for entry in entries
        if not entry.name.startswith(".")  # checksums
        for line in entry.read_text().splitlines()
        if line.startswith("{")
    }
    files = [path for path in (project / "warehouse" / "events").rglob("*.parquet") if path.name in names]
    events = [
        row for path in files for row in parquet.read_table(path, columns=["page", "partition", "offset"]).to_pylist()
    ]
    once = {(row["partition"], row["offset"]) for row in events}
    if not len(events) == len(once) == good:
        raise Failed(f"{good} good clicks, but {len(events)} rows in the table, {len(once)} of them different")
    if Counter(row["page"] for row in events) != stream.pages:
        raise Failed("the table has other pages than were clicked")
    say(f"table events: {len(events):,} rows in {len(files)} Parquet files, every good click exactly once")

    results = read_topic(address, CLEAN)
    if len(results) < good:
        raise Failed(f"{good} good clicks, but {len(results)} results in {CLEAN}")
    again = len(results) - good
    doubled = f", {again:,} of them a second time, as at-least-once allows after a kill" if again else ""
    say(f"topic {CLEAN}: {len(results):,} results{doubled}")

    letters = {
        tuple(value for name, value in headers if name in ("error.partition", "error.offset"))
        for _, headers in read_topic(address, DEAD)
    }
    if len(letters) != bad:
        raise Failed(f"{bad} bad clicks, but {len(letters)} dead letters")
    say(f"topic {DEAD}: {len(letters):,} bad clicks, each with its reason")


def show_groups(address: str) -> None:
    say("penstock lag, as any Kafka tool sees it:")
    done = subprocess.run(
        [*PENSTOCK, "lag", "--bootstrap-server", address], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"penstock lag: {done.stderr.strip()}")
    print("\n".join(f"         {line}" for line in done.stdout.splitlines()))


def show_view(project: Path, stream: Clickstream) -> None:
    import pyarrow.dataset as dataset

    files = [str(path) for path in (project / "warehouse" / "page_stats").rglob("*.parquet")]
    rows = sorted(dataset.dataset(files).to_table().to_pylist(), key=lambda row: -row["views"])
    if {row["page"]: row["views"] for row in rows} != dict(stream.pages):
        raise Failed("the view page_stats does not have the counts that were clicked")
    say("materialized view page_stats:")
    print(f"         {'PAGE':<12} {'VIEWS':>8} {'USERS':>6} {'MEAN MS':>8}")
    for row in rows:
        print(f"         {row['page']:<12} {row['views']:>8,} {row['users']:>6} {row['mean_ms']:>8}")


def _end_on_terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, _end_on_terminate)
    work = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    broker, project = Broker(work / "data"), work / "shop"
    pipeline: Pipeline | None = None
    try:
        broker.start()
        create_topics(broker.address)
        pipeline = Pipeline(project, broker.address)
        pipeline.init()
        pipeline.serve()
        stream = Clickstream(broker.address, CLICKS, RATE, SECONDS)
        stream.start()
        say(f"clicks: {RATE:,} a second for {SECONDS:.0f} s with confluent-kafka, about 1 % of them broken")
        watch(pipeline, stream, broker)
        say(f"{stream.total:,} clicks acknowledged; longest pause of the producer {stream.longest_silence_s:.1f} s")
        pipeline.stop()
        check_results(broker.address, project, stream)
        show_groups(broker.address)
        show_view(project, stream)
        broker.stop()
        say("done: nothing lost, nothing twice in the table. Everything this made is removed; yours would be kept.")
    except Failed as error:
        print(f"demo: {error}", file=sys.stderr)
        if pipeline is not None:
            print(pipeline.output(), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        if pipeline is not None:
            pipeline.end()
        broker.end()
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
