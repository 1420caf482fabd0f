"""Commits the end of a query's last batch to its group before the source itself can do so.

A source learns that a batch is finished when Spark asks for the next one: with a trigger of a minute, a minute later;
with Trigger.Once, at the next run. Spark's driver knows at once. So `session()` runs a thread that checks the progress
of the session's queries every second, and commits offsets that have not moved since the last check. A busy query is
left to its source. The last batch of an ended query is committed right away, at the latest when the process exits.
Spark notifies the thread when a query starts, so that even the shortest query is seen.

Invariant: late news of a query's earlier run never moves back the offsets of its next run from the same checkpoint.
Spark waits for `add` before the first batch of a run, and `add` waits for a report of the previous run. Runs of other
sessions are not known here.

Best effort, as all of `group_progress`: without it, groups trail by one trigger. Must not know: offsets in detail,
batches that are not finished.

The progress report has the query's offsets, but on purpose not the options of its brokers: those are read from the
query's plan, which stays in this machine's driver.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started

from penstock.model.errors import PenstockError
from penstock.spark.options.cluster import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP_SERVERS
from penstock.spark.progress import parse_offset
from penstock.spark.source.group_progress import COMMIT_TIMEOUT_S, GroupProgress
from penstock.spark.source.offsets import SourceOffset
from penstock.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0


class FinishedTo(NamedTuple):
    """The progress of one source of a query."""

    source: str
    """The source's name within the query."""
    end_offset: str


class WatchedQuery(Protocol):
    """One run of a query."""

    @property
    def query_id(self) -> str:
        """The id, which is the same for all runs from one checkpoint."""

    @property
    def run_id(self) -> str: ...

    def is_active(self) -> bool: ...

    def finished(self) -> list[FinishedTo]:
        """The progress by the last report; empty before the first."""

    def options(self, source: str) -> Mapping[str, str]:
        """The options of a source that has finished something."""


OpenProgress = Callable[[SourceOptions], GroupProgress]


@dataclass(slots=True, eq=False)
class _Run:
    query: WatchedQuery
    reporting: threading.Lock = field(default_factory=threading.Lock)
    is_superseded: bool = False
    seen: list[FinishedTo] = field(default_factory=list)
    progress: dict[str, GroupProgress] = field(default_factory=dict)


class QueryWatch:
    def __init__(self, open_progress: OpenProgress) -> None:
        self._open_progress = open_progress
        self._started: SimpleQueue[_Run] = SimpleQueue()
        self._runs: dict[str, _Run] = {}
        self._newest: dict[str, _Run] = {}
        self._newest_lock = threading.Lock()

    def add(self, query: WatchedQuery) -> None:
        """Watches the query until it has ended. May be called from any thread."""
        run = _Run(query)
        with self._newest_lock:
            before = self._newest.get(query.query_id)
            if before is not None and before.query.run_id == query.run_id:
                return
            self._newest[query.query_id] = run
        if before is not None:
            with before.reporting:
                before.is_superseded = True
        self._started.put(run)

    def look(self, *, is_last: bool = False) -> None:
        while not self._started.empty():
            run = self._started.get()
            self._runs[run.query.run_id] = run
        for run_id, run in list(self._runs.items()):
            is_over = not run.query.is_active()  # checked first, so that the report after it is the last one
            finished = run.query.finished()
            if is_over or is_last or finished == run.seen:
                for one in finished:
                    self._report(run, one, is_last=is_over or is_last)
            run.seen = finished
            if is_over:
                del self._runs[run_id]
                self._forget(run)

    def _forget(self, run: _Run) -> None:
        with self._newest_lock:
            if self._newest.get(run.query.query_id) is run:
                del self._newest[run.query.query_id]

    def _report(self, run: _Run, one: FinishedTo, *, is_last: bool) -> None:
        found = parse_offset(one.end_offset)
        if found is None:  # another kind of source
            return
        try:
            end = SourceOffset.from_json(found)
            if one.source not in run.progress:
                run.progress[one.source] = self._open_progress(SourceOptions.for_stream(run.query.options(one.source)))
        except PenstockError as error:
            logger.debug("cannot commit the progress of %s early, its query will do that: %s", one.source, error)
            return
        with run.reporting:
            if not run.is_superseded:
                run.progress[one.source].report(end.group, end.positions, is_last=is_last)


# -- Spark's driver ---------------------------------------------------------------------


class _SparkQuery:
    """A query in the session's JVM. Its sources run in that environment."""

    def __init__(self, java: Any, jvm: Any) -> None:
        self._java = java
        self._jvm = jvm
        self.query_id = str(java.id().toString())
        self.run_id = str(java.runId().toString())

    def is_active(self) -> bool:
        return bool(self._java.isActive())

    def finished(self) -> list[FinishedTo]:
        progress = self._java.lastProgress()
        sources = progress.sources() if progress is not None else ()
        return [FinishedTo(source.description(), source.endOffset() or "") for source in sources]

    def options(self, source: str) -> dict[str, str]:
        leaves = self._java.streamingQuery().logicalPlan().collectLeaves()
        for index in range(leaves.size()):
            leaf = leaves.apply(index)
            if "StreamingDataSourceV2" in leaf.getClass().getName() and leaf.stream().toString() == source:
                named = self._jvm.System.getenv(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP_SERVERS
                return {"kafka.bootstrap.servers": named, **leaf.relation().options().asCaseSensitiveMap()}
        raise PenstockError("the source is not in the query's plan")


class _QueryStarts:
    """Called by the JVM through Py4J. Unlike Spark's own StreamingQueryListener, it does not fetch all progress reports
    field by field."""

    def __init__(self, is_started: Callable[[Any], None]) -> None:
        self._is_started = is_started

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Called before `start()` returns."""
        self._is_started(event.id())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]


class _Watcher(threading.Thread):
    """The thread, which ends with the session."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(name="penstock-query-watch", daemon=True)
        self._context: Any = spark._jsc
        self._jvm = cast("Any", spark._jvm)
        self._session: Any = spark._jsparkSession
        self._queries: Any = self._session.streams()
        self._watch = QueryWatch(connected_progress)
        self._is_ending = threading.Event()
        start_callbacks: Any = ensure_callback_server_started  # untyped
        start_callbacks(spark.sparkContext._gateway)
        streaming: Any = self._jvm.org.apache.spark.sql.streaming
        self._queries.addListener(streaming.PythonStreamingQueryListenerWrapper(_QueryStarts(self._add)))
        for running in self._queries.active():
            self._add(running.id())  # the latest run, if the query was started again meanwhile

    def is_of(self, spark: SparkSession) -> bool:
        """Compares sessions: Python may have several objects for one session."""
        return bool(self._session.equals(spark._jsparkSession))

    def _add(self, query_id: Any) -> None:
        query = self._queries.get(query_id)
        if query is not None:
            self._watch.add(_SparkQuery(query, self._jvm))

    def run(self) -> None:
        try:
            while not self._is_ending.wait(LOOK_INTERVAL_S) and not self._context.sc().isStopped():
                self._watch.look()
            self._watch.look(is_last=True)
        except (Py4JError, OSError) as error:  # the JVM is gone
            logger.debug("queries are no longer watched: %s", error)

    def end(self) -> None:
        """Commits everything that is finished."""
        self._is_ending.set()
        self.join(2 * COMMIT_TIMEOUT_S)


def connected_progress(options: SourceOptions) -> GroupProgress:
    from penstock.wire_client.blocking.cluster import BlockingCluster

    where = options.cluster
    cluster = BlockingCluster(where.bootstrap, where.client_id, where.security, COMMIT_TIMEOUT_S)
    return GroupProgress(cluster)


_watchers: list[_Watcher] = []
_watchers_lock = threading.Lock()


def watch_queries(spark: SparkSession) -> None:
    """Starts one thread per session, however often this is called."""
    with _watchers_lock:
        _watchers[:] = [watcher for watcher in _watchers if watcher.is_alive()]
        try:
            if any(watcher.is_of(spark) for watcher in _watchers):
                return
            watcher = _Watcher(spark)
        except (Py4JError, AttributeError, TypeError) as error:  # Py4J's errors for missing parts of Spark
            logger.warning("the groups of queries with long triggers will show their progress late: %s", error)
            return
        _watchers.append(watcher)
        watcher.start()
        atexit.register(watcher.end)
