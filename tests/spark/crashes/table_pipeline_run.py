"""`penstock pipeline serve` of a small pipeline, while its processes and the broker are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from table_follow_run import click_kind, newest_version
from table_input import CLICKS, Input, click
from table_kills import Kills, Victim, wait_for

from penstock.spark.pipeline.templates.template import ProjectPlan, create_project
from penstock.tables import Table
from support.processes.broker import BrokerProcess
from support.processes.tree import command_line, descendants, parent

DECK = [
    Victim.WORKER,
    Victim.BROKER,
    Victim.DRIVER,
    Victim.WORKER,
    Victim.JAVA,
    Victim.WORKER,
    Victim.SERVE,
    Victim.WORKER,
]
COMMITTING = ("python_streaming_sink_runner", "commit_data_source_write")
RESTART_S = 1.0
DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
OPTIONS = {
    "kafka.bootstrap.servers": spark.conf.get("penstock.kafka.bootstrap.servers"),
    "subscribe": "clicks",
    "startingOffsets": "earliest",
}


@dp.table
def events():
    rows = spark.readStream.format("penstock").options(**OPTIONS).load()
    return rows.selectExpr("from_json(string(value), 'id long, kind string') AS event").selectExpr("event.*")


@dp.table(partition_cols=["kind"])
def copies():
    return spark.readStream.table("events").select("id", "kind")
"""
VIEW = "CREATE MATERIALIZED VIEW kinds AS SELECT kind, count(*) AS n, sum(id) AS total FROM events GROUP BY kind;\n"


class PipelineRun:
    def __init__(self, directory: Path, broker: BrokerProcess, kills: Kills, seed: int) -> None:
        create_project(directory, ProjectPlan.make("crashed", (CLICKS,), None, None, broker.bootstrap_servers))
        self._root = directory / "crashed"
        definitions = self._root / "transformations"
        for file in definitions.iterdir():
            file.unlink()
        (definitions / "tables.py").write_text(DEFINITIONS)
        (definitions / "kinds.sql").write_text(VIEW)
        self._broker = broker
        self._kills = kills
        self._chance = random.Random(seed)
        self._log = directory / "serve.log"
        self._serving: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def run(self, wanted: int) -> None:
        """Makes so many kills. The tables have what was acknowledged in the end, or it raises AssertionError."""
        with Input(self._broker.bootstrap_servers, lambda number: [click(number)]) as sending:
            try:
                while self._kills.total < wanted:
                    self._kill(DECK[self._kills.total % len(DECK)])
                    print(f"{self._kills.total} of {wanted} kills, {self.starts} starts of serve", flush=True)
                self._await_progress()
                count = sending.finish()
                wait_for(lambda: self._has_all(count), f"all {count} rows are there", self._said)
                served = self._served()
                served.send_signal(signal.SIGTERM)
                assert served.wait(60) == 0, self._said()
            finally:
                self._end()
        self._judge(count)

    # -- kills ----------------------------------------------------------------------------

    def _kill(self, victim: Victim) -> None:
        self._await_progress()
        served = self._served()
        moment, seen = self._kills.moment([self._table("events"), self._table("kinds")])
        java = descendants(served.pid, "java", "SparkSubmit")
        if victim is Victim.BROKER:
            self._kills.make(victim, [], moment)
            self._broker.kill()
            self._broker.start()
        elif victim is Victim.WORKER:
            self._kills.make(victim, self._a_worker(served.pid), moment)
        elif victim is Victim.JAVA:
            self._kills.make(victim, java, moment)
        else:
            self._kills.make(victim, [served.pid, *(java if victim is Victim.DRIVER else [])], moment)
            served.wait()
            self._kills.note_files(seen)

    def _a_worker(self, serve: int) -> list[int]:
        """Forks of a daemon: tasks, sources, commits."""
        found: list[int] = []

        def is_there() -> bool:
            every = descendants(serve, "pyspark")
            forks = [pid for pid in every if "pyspark.daemon" in command_line(parent(pid))]
            found[:] = [pid for pid in forks if "pyspark.daemon" in command_line(pid)]
            return bool(found)

        wait_for(is_there, "there is a Python worker", self._said)
        committing = [pid for pid in found if any(word in command_line(pid) for word in COMMITTING)]
        return [self._chance.choice(committing if committing and self._chance.random() < 0.7 else found)]

    # -- serve ----------------------------------------------------------------------------

    def _served(self) -> subprocess.Popen[bytes]:
        """As a supervisor would: started again whenever it ends."""
        if self._serving is None or self._serving.poll() is not None:
            if self._serving is not None:
                time.sleep(RESTART_S)
            command = [sys.executable, "-m", "penstock.cli", "pipeline", "serve", "--project", str(self._root)]
            command += ["--interval", "0", "--fast-start", "--master", "local[2,4]", "--max-failures", "30"]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            with self._log.open("ab") as log:
                self._serving = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            self.starts += 1
        return self._serving

    def _await_progress(self) -> None:
        """The view is last in a run."""
        before = newest_version(self._table("kinds"))

        def is_later() -> bool:
            self._served()
            return newest_version(self._table("kinds")) > before

        wait_for(is_later, "a run commits", self._said)

    def _end(self) -> None:
        if self._serving is not None and self._serving.poll() is None:
            below = descendants(self._serving.pid)
            for pid in (self._serving.pid, *below):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._serving.wait()

    # -- tables ---------------------------------------------------------------------------

    def _table(self, name: str) -> Path:
        return self._root / "warehouse" / name

    def _has_all(self, count: int) -> bool:
        self._served()
        rows = Table.open(self._table("copies")).rows or 0
        told = Table.open(self._table("kinds")).at().arrow().column("n").to_pylist()
        return rows >= count and sum(told) >= count

    def _judge(self, count: int) -> None:
        wanted = Counter((number, click_kind(number)) for number in range(count))
        for name in ("events", "copies"):
            rows = Table.open(self._table(name)).at().arrow().select(["id", "kind"]).to_pylist()
            found = Counter((row["id"], row["kind"]) for row in rows)
            assert found == wanted, f"{name}: {len(rows)} rows of {count}: {differing(found, wanted)}"
        view = {row["kind"]: (row["n"], row["total"]) for row in self._rows("kinds")}
        numbers = {kind: [number for number, one in wanted if one == kind] for _, kind in wanted}
        assert view == {kind: (len(ids), sum(ids)) for kind, ids in numbers.items()}

    def _rows(self, name: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = Table.open(self._table(name)).at().arrow().to_pylist()
        return found

    def _said(self) -> str:
        spark = self._root / ".penstock" / "spark.log"
        told = spark.read_text(errors="replace")[-3000:] if spark.exists() else ""
        return f"{self._log.read_text(errors='replace')[-3000:]}\n{told}\n{self._kills.table()}"


def differing(found: Counter[tuple[int, str]], wanted: Counter[tuple[int, str]]) -> str:
    more, less = found - wanted, wanted - found
    return f"{more.total()} too many, such as {sorted(more)[:3]}; {less.total()} missing, such as {sorted(less)[:3]}"
