"""The templates with state, killed in mid-run: their tables are as if nothing had happened.

One project has the definitions of all of them, because each start of Spark takes seconds: a kill hits every template at
once. Rows come in order but for as much as the watermarks allow, so what must be in the tables does not depend on how
Spark cuts its batches, and plain Python computes it. PENSTOCK_PIPELINE_CRASHES says how often the run is killed.
Only `make pipeline-crashes` runs this.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_topics import Topics

from penstock.spark.pipeline.checkpoints import flow_checkpoints
from penstock.spark.pipeline.project import SERVERS_KEY, PipelineProject
from penstock.spark.pipeline.templates.template import ProjectPlan, create_project
from penstock.tables import Table

CRASHES = int(os.environ.get("PENSTOCK_PIPELINE_CRASHES", "1"))
SEED = int(os.environ.get("PENSTOCK_PIPELINE_SEED", "1"))
STATEFUL = ("views_per_minute", "order_payments", "unique_events")
TOPICS = {
    "windows": ("crash-views",),
    "joins": ("crash-orders", "crash-payments"),
    "deduplication": ("crash-events",),
}
BATCH_ROWS, SLICE_ROWS = 40, 120
TIMEOUT_S = 240
START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)

Row = dict[str, Any]


class Feed:
    """Rows for all topics, slice by slice, and what must be in the tables in the end."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._minutes = 0.0
        self._numbers = 0
        self._resent: list[Row] = []
        self._unsent_payments: list[tuple[float, Row]] = []
        self.per_minute: Counter[tuple[str, str]] = Counter()
        self.pairs: set[tuple[str, str | None]] = set()
        self.ids: set[str] = set()

    def slice(self) -> dict[str, list[Row]]:
        rows: dict[str, list[Row]] = {topic: [] for topics in TOPICS.values() for topic in topics}
        for _ in range(SLICE_ROWS):
            self._minutes += self._chance.uniform(0.1, 0.6)
            rows["crash-views"].append(self._view(self._minutes - self._chance.uniform(0, 1.9)))
            order = self._order(self._minutes - self._chance.uniform(0, 9))
            rows["crash-orders"].append(order)
            rows["crash-events"].append(self._event(self._minutes - self._chance.uniform(0, 9)))
            due = [one for one in self._unsent_payments if one[0] <= self._minutes]
            self._unsent_payments = [one for one in self._unsent_payments if one[0] > self._minutes]
            rows["crash-payments"] += [payment for _, payment in due]
        return rows

    def last(self) -> dict[str, list[Row]]:
        """Ends every window and every wait."""
        payments = [payment for _, payment in sorted(self._unsent_payments, key=lambda one: one[0])]
        self._minutes += 6 * 60
        end = at(self._minutes)
        self.ids.add("end")
        self.pairs.add(("end", end))
        return {
            "crash-views": [{"page": "/end", "ts": end}],  # its own minute stays open
            "crash-orders": [{"order_id": "end", "ts": end}],
            "crash-payments": [*payments, {"order_id": "end", "ts": end}],
            "crash-events": [{"event_id": "end", "ts": end}],
        }

    def _view(self, minutes: float) -> Row:
        page = self._chance.choice(("/", "/cart"))
        self.per_minute[at(minutes)[:16], page] += 1
        return {"user": "ada", "page": page, "ts": at(minutes)}

    def _order(self, minutes: float) -> Row:
        self._numbers += 1
        number = f"o-{self._numbers}"
        paid_at = minutes + self._chance.choice((5, 30, 59, 61, 75))
        is_paid = self._chance.random() < 0.8
        if is_paid:
            payment = {"order_id": number, "amount": 1.0, "ts": at(paid_at)}
            self._unsent_payments.append((paid_at + self._chance.uniform(0, 9), payment))
        self.pairs.add((number, at(paid_at) if is_paid and paid_at - minutes <= 60 else None))
        return {"order_id": number, "customer": "ada", "amount": 1.0, "ts": at(minutes)}

    def _event(self, minutes: float) -> Row:
        if self._resent and self._chance.random() < 0.4:
            return self._chance.choice(self._resent)
        event = {"event_id": f"e-{self._numbers}", "user": "ada", "action": "login", "ts": at(minutes)}
        self.ids.add(str(event["event_id"]))
        self._resent = [*self._resent, event][-30:]  # within less than an hour
        return event


def at(minutes: float) -> str:
    return (START + dt.timedelta(minutes=minutes)).isoformat(timespec="seconds").replace("+00:00", "Z")


@pytest.fixture
def project(tmp_path: Path, topics: Topics) -> PipelineProject:
    """The definitions of every template with state, each with its own settings, in small batches."""
    for template, names in TOPICS.items():
        for name in names:
            topics.create(name)
        plan = ProjectPlan.make(template, names, None, None, topics.bootstrap_servers, template)
        create_project(tmp_path / "made", plan)
    whole = tmp_path / "whole"
    shutil.copytree(tmp_path / "made" / "windows", whole)
    for template in TOPICS:
        one = PipelineProject.find(tmp_path / "made" / template)
        for file in one.definition_files():
            text = file.read_text().replace('"1000000"', f'"{BATCH_ROWS}"')
            for key, value in one.configuration.items():
                if key != SERVERS_KEY:
                    text = text.replace(f'spark.conf.get("{key}")', repr(value))
            (whole / "transformations" / file.name).write_text(text)
    return PipelineProject.find(whole)


class Run:
    """`penstock pipeline run` as a process; the JVM is in its group."""

    def __init__(self, project: PipelineProject) -> None:
        self._project = project
        self._before = self._planned()
        self._log = project.root.parent / "run.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "penstock.cli", "pipeline", "run"),
                    *("--project", str(project.root), "--master", "local[2,4]", "--fast-start"),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_in_mid_run(self, pause_s: float) -> None:
        """When every flow with state has planned its second new batch in this run, and a moment later."""
        deadline = time.monotonic() + TIMEOUT_S
        while any(self._planned()[flow] < self._before[flow] + 2 for flow in STATEFUL):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)
        time.sleep(pause_s)
        assert self._process.poll() is None, "the run has ended before it was killed"
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        assert self._process.wait(TIMEOUT_S) == 0, self._log.read_text()

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _planned(self) -> dict[str, int]:
        """The number of planned batches of each flow with state."""
        assert self._project.checkpoints is not None
        found = dict.fromkeys(STATEFUL, 0)
        for one in flow_checkpoints(self._project.checkpoints):
            if one.flow in found:
                found[one.flow] = max(
                    (int(path.name) + 1 for path in (one.current / "offsets").glob("[0-9]*")), default=0
                )
        return found


@pytest.fixture
def started(project: PipelineProject) -> Iterator[list[Run]]:
    runs: list[Run] = []
    yield runs
    for run in runs:
        run.close()


@pytest.mark.crashes
@pytest.mark.timeout(120 + 60 * (CRASHES + 1))
def test_killed_runs_leave_no_trace_in_the_tables(project: PipelineProject, topics: Topics, started: list[Run]) -> None:
    chance = random.Random(SEED)
    feed = Feed(chance)
    for _ in range(CRASHES):
        send(topics, feed.slice())
        started.append(Run(project))
        started[-1].kill_in_mid_run(chance.uniform(0, 0.5))
    send(topics, feed.last())
    started.append(Run(project))
    started[-1].end()

    counted = {
        (f"{row['minute']:%Y-%m-%dT%H:%M}", row["page"]): row["views"] for row in rows(project, "views_per_minute")
    }
    assert counted == feed.per_minute
    assert len(rows(project, "views_per_minute")) == len(counted), "each minute once"
    assert rows(project, "late_views") == []
    paid = [(row["order_id"], row["paid_at"] and stamp(row["paid_at"])) for row in rows(project, "order_payments")]
    assert sorted(paid, key=str) == sorted(feed.pairs, key=str)
    ids = [row["event_id"] for row in rows(project, "unique_events")]
    assert sorted(ids) == sorted(feed.ids)
    assert [run["state"] for run in history(project)] == ["killed"] * min(CRASHES, 99) + ["completed"]


def send(topics: Topics, slices: dict[str, list[Row]]) -> None:
    for topic, found in slices.items():
        topics.fill(topic, [(None, json.dumps(row).encode()) for row in found])


def rows(project: PipelineProject, table: str) -> list[Row]:
    found: list[Row] = Table.open(project.warehouse / table).at().arrow().to_pylist()
    return found


def stamp(time: dt.datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def history(project: PipelineProject) -> list[dict[str, Any]]:
    return [json.loads(line) for line in project.history_path.read_text().splitlines()]
