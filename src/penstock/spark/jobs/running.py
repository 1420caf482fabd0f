"""Runs the streaming queries of a job: reports progress, handles requests to stop, and gives errors in one sentence.

Signals set `Stop`. A query then ends after its current micro-batch, so that the next run repeats as little as possible.
After a second request or a grace period it ends at once. Must not know: terminals, what the query does.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from penstock.model.errors import ConfigError
from penstock.spark.jobs.errors import JobFailed
from penstock.spark.pipeline.events import cause_of
from penstock.spark.pipeline.lag import LagMeter
from penstock.spark.source.offsets import SourceOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.2
TELL_EVERY_S = 2.0
STOP_GRACE_S = 60.0
_JAVA_CLASS = re.compile(r"^[\w.$]+(?:Exception|Error): ")
_CALLED = "Py4JJavaError: An error occurred while calling"


@dataclass(slots=True)
class JobProgress:
    """The progress of a run so far."""

    rows: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    """Rows per second since the last report."""
    lag: int | None = None
    offsets: dict[tuple[str, str], SourceOffset] = field(default_factory=dict)
    """By query and source."""
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The sums of the query's observed metrics."""

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0


class Audience(Protocol):
    """The receiver of a job's reports."""

    def say(self, line: str) -> None: ...

    def warn(self, line: str) -> None: ...

    def watch(self, progress: JobProgress) -> None: ...


class Stop:
    """A request to end the job, perhaps at once."""

    def __init__(self) -> None:
        self._count = 0
        self._asked = threading.Event()

    def ask(self) -> None:
        self._count += 1
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    @property
    def is_urgent(self) -> bool:
        return self._count > 1

    def wait(self, seconds: float) -> bool:
        """Waits for a request. Returns True at once when there is one, or False after the time."""
        return self._asked.wait(seconds)


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job, of any kind: its session, requests to end it, and its audience."""

    spark: SparkSession
    stop: Stop
    audience: Audience


@contextmanager
def stopped_by_signals(stop: Stop, say: Callable[[str], None]) -> Iterator[None]:
    """Handles SIGINT and SIGTERM. Only in the main thread, and after Spark was started: Spark sets a handler, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        stop.ask()
        say(
            "Stopping at once."
            if stop.is_urgent
            else "Stopping after the current batch. Interrupt again to stop at once."
        )

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_queries(
    run: JobRun, queries: Mapping[str, StreamingQuery], counted: Iterable[str], meter: LagMeter
) -> JobProgress:
    """Runs until all queries have ended, or `run.stop`. The progress is the sum over the queries `counted`. After a
    failure of one it stops all and raises JobFailed."""
    progress = JobProgress()
    unseen = JobProgress()
    counts = set(counted)
    followers = {name: _Follower(query, progress if name in counts else unseen) for name, query in queries.items()}
    begun = told = time.monotonic()
    told_rows = 0
    try:
        while any(query.isActive for query in queries.values()):
            if run.stop.wait(POLL_S):
                _stop(list(followers.values()), run.stop)
                break
            for follower in followers.values():
                follower.look()
            for name, query in queries.items():
                if not query.isActive:
                    _raise_failure(name, query)
            now = time.monotonic()
            if now - told >= TELL_EVERY_S and (progress.rows > told_rows or progress.lag):
                progress.seconds, progress.rate = now - begun, (progress.rows - told_rows) / (now - told)
                progress.lag = meter.total(progress.offsets.values())
                told, told_rows = now, progress.rows
                run.audience.watch(progress)
        for name, query in queries.items():
            _raise_failure(name, query)
    finally:
        for query in queries.values():
            if query.isActive:
                query.stop()
    for follower in followers.values():
        follower.look()
    progress.seconds = time.monotonic() - begun
    progress.rate = progress.rows_per_s
    progress.lag = meter.total(progress.offsets.values())
    return progress


def _stop(followers: list[_Follower], stop: Stop) -> None:
    """Stops each query after its current batch."""
    deadline = time.monotonic() + STOP_GRACE_S
    for follower in followers:
        follower.look()
    waiting = {id(follower): follower.batches for follower in followers}
    for follower in followers:
        while (
            follower.query.isActive
            and follower.query.status["isTriggerActive"]
            and follower.batches == waiting[id(follower)]
            and time.monotonic() < deadline
            and not stop.is_urgent
        ):
            time.sleep(0.02)
            follower.look()
        follower.query.stop()


class _Follower:
    """Sums the progress reports of one query; Spark keeps the last hundred."""

    def __init__(self, query: StreamingQuery, progress: JobProgress) -> None:
        self.query = query
        self.progress = progress
        self.batches = 0
        self._seen = (-1, "")

    def look(self) -> None:
        for report in self.query.recentProgress:
            # An idle query also reports, with the number of the next batch.
            number = (int(report["batchId"]), str(report["timestamp"]))
            if number <= self._seen:
                continue
            self._seen = number
            self.batches += 1
            self.progress.rows += int(report["numInputRows"])
            for source in report["sources"]:
                offset = topic_offset_of(source["endOffset"])
                if offset is not None:
                    self.progress.offsets[str(self.query.id), str(source["description"])] = offset
            for name, values in dict(report["observedMetrics"]).items():
                sums = self.progress.metrics.setdefault(name, {})
                for metric, value in values.asDict().items():
                    sums[metric] = sums.get(metric, 0) + (value or 0)


def topic_offset_of(offset: object) -> SourceOffset | None:
    """The offset of a source of topics in a progress report; None for any other source."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    return SourceOffset.from_json(found) if isinstance(found, dict) and "topics" in found else None


def reason_of(error: str) -> str:
    """The reason in one sentence. A call into the JVM from `foreachBatch` has Java's reason after Python's."""
    _, marker, behind = error.partition(_CALLED)
    _, colon, java = behind.partition("\n: ")
    return cause_of(_JAVA_CLASS.sub("", java) if marker and colon else error)


def _raise_failure(name: str, query: StreamingQuery) -> None:
    error = query.exception()
    if error is not None:
        raise JobFailed(f"{name} failed: {reason_of(str(error))}")


def check_started(error: Exception) -> Exception:
    """Translates Spark's error at the start of a query to ours."""
    if isinstance(error, ConfigError):
        return error
    return JobFailed(f"Spark could not start the query: {reason_of(str(error))}")
