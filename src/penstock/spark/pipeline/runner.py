"""One run of a pipeline: every flow processes everything that is in the topics now.

Spark's own retries are off. After a temporary failure this module starts another run, which costs little in a warm
Spark and begins after the last committed batch. A permanent failure ends the run at once.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.spark.pipeline.checkpoints import flow_checkpoints
from penstock.spark.pipeline.definitions import Definitions
from penstock.spark.pipeline.engine import PipelineEngine
from penstock.spark.pipeline.errors import DefinitionError, FlowFailed, Mistake, PipelineError, SparkFailed
from penstock.spark.pipeline.events import FlowState, cause_of, flow_event, is_transient
from penstock.spark.pipeline.graph import PipelineGraph, registered, short_name
from penstock.spark.pipeline.groups import FlowGroups
from penstock.spark.pipeline.lag import LagMeter
from penstock.spark.pipeline.locations import TableLocations
from penstock.spark.pipeline.progress import BatchDone, FlowProgress, RunProgress, batch_done, view_done
from penstock.spark.pipeline.project import DEFAULT_CATALOG, PipelineProject
from penstock.spark.pipeline.reset import FullRefresh
from penstock.spark.pipeline.tables import row_count
from penstock.spark.session.batch_metrics import Metrics
from penstock.spark.source.offsets import UnreadableOffset

RETRIES = 2
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
# Spark reports "COMPLETED" up to a second before "FAILED" and the last progress of the same query: wait for more.
SETTLING_S = 1.3
LAG_EVERY_S = 1.0

Watcher = Callable[[FlowProgress], None]


@dataclass(frozen=True, slots=True)
class RunScope:
    """What is run."""

    definitions: Definitions | None = None
    """None: those in the project's files."""
    left_out: frozenset[str] = frozenset()
    """Sinks to leave out, with their flows."""
    full_refresh: tuple[str, ...] = ()
    """Tables to compute from the start."""
    full_refresh_all: bool = False


@dataclass(slots=True)
class RunReport:
    flows: dict[str, FlowProgress] = field(default_factory=dict)
    seconds: float = 0.0
    sinks: dict[str, str] = field(default_factory=dict)
    """The sink of each flow."""
    has_other_sources: bool = True
    """Some sources are not topics, or have unknown positions."""

    @property
    def rows_read(self) -> int:
        """Records read from topics. Records that several flows read count once."""
        by_topics: dict[frozenset[tuple[str, str]], int] = {}
        for flow in self.flows.values():
            topics = frozenset((offset.cluster, tp.topic) for offset in flow.offsets for tp in offset.positions)
            if topics:
                by_topics[topics] = max(flow.rows_read, by_topics.get(topics, 0))
        return sum(by_topics.values())


@dataclass(frozen=True, slots=True)
class _Ended:
    error: Exception | None


_News = str | BatchDone | _Ended


class RunFailed(Exception):
    """Has the error, and the report of the run up to it."""

    def __init__(self, error: PipelineError, report: RunReport) -> None:
        super().__init__(str(error))
        self.error = error
        self.report = report


def pause_s(failures: int) -> float:
    """The pause before the next attempt, after a number of consecutive failures."""
    return float(min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 10)))


def check_definitions(engine: PipelineEngine) -> PipelineGraph:
    """A dry run: Spark resolves the graph and runs nothing. Raises DefinitionError."""
    progress = RunProgress()
    graph = PipelineGraph("")
    try:
        with registered(engine) as graph:
            for message in _events(engine, graph, RunScope(), dry=True):
                event = flow_event(message)
                if event is not None:
                    progress.take(event)
    except Exception as error:
        raise _outcome(engine, graph, progress, error) from error
    return graph


def run_once(
    engine: PipelineEngine,
    meter: LagMeter,
    watch: Watcher = lambda flow: None,
    scope: RunScope | None = None,
    groups: FlowGroups | None = None,
) -> RunReport:
    """`groups`: those of earlier runs, if there are any.

    Raises RunFailed, which has a DefinitionError, FlowFailed or SparkFailed.
    """
    scope = scope or RunScope()
    refresh = FullRefresh(engine.project.state)
    begun = time.monotonic()
    progress = RunProgress()
    report = RunReport(progress.flows)
    graph = PipelineGraph("")
    try:
        with registered(engine, scope.left_out, scope.definitions) as graph:
            report.sinks = {flow: target for flow, target in graph.targets.items() if target in graph.sinks}
            report.has_other_sources = graph.has_other_sources
            for client_options in graph.clients:
                meter.know(client_options)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # from the thread that listens to Spark
                groups = groups or FlowGroups(engine.project, meter)
                display = _Display(engine.project, watch, meter, groups, _TableRecorder(engine))
                tables, is_all = refresh.begin(
                    scope.full_refresh, scope.full_refresh_all, partial(_is_there, engine, graph)
                )
                scope = replace(scope, full_refresh=tables, full_refresh_all=is_all)
                _follow(engine, graph, progress, display, scope, refresh)
    except Exception as error:
        report.seconds = time.monotonic() - begun
        outcome = _outcome(engine, graph, progress, error)
        if isinstance(outcome, DefinitionError):  # Spark has not begun with anything
            refresh.withdraw()
        raise RunFailed(outcome, report) from error
    engine.upkeep.after_run(engine.project)
    report.seconds = time.monotonic() - begun
    return report


def _is_there(engine: PipelineEngine, graph: PipelineGraph, table: str) -> bool:
    name = short_name(table)
    in_python = (short_name(target) for target in graph.targets.values())
    return name in in_python or graph.definitions.place_in_sql(engine.project, name) is not None


def run_with_retries(
    engine: PipelineEngine,
    meter: LagMeter,
    watch: Watcher = lambda flow: None,
    on_retry: Callable[[RunFailed, str], None] = lambda failed, when: None,
    *,
    retries: int = RETRIES,
    full_refresh: Sequence[str] = (),
    full_refresh_all: bool = False,
) -> RunReport:
    """Calls `run_once`, and again after temporary failures, which `on_retry` reports. Raises RunFailed."""
    failures = 0
    scope = RunScope(full_refresh=tuple(full_refresh), full_refresh_all=full_refresh_all)
    while True:
        try:
            return run_once(engine, meter, watch, scope)
        except RunFailed as failed:
            failures += 1
            may_pass = isinstance(failed.error, FlowFailed | SparkFailed) and failed.error.is_transient
            if not may_pass or failures > retries:
                raise
            wait_s = pause_s(failures)
            on_retry(failed, f"attempt {failures} of {retries + 1}; again in {wait_s:g} s")
            time.sleep(wait_s)
            if not engine.is_alive:
                engine.restart()
            scope = RunScope()  # a full refresh that has not begun with every table is still noted


# -- one run ----------------------------------------------------------------------------


def _follow(
    engine: PipelineEngine,
    graph: PipelineGraph,
    progress: RunProgress,
    display: _Display,
    scope: RunScope,
    refresh: FullRefresh,
) -> None:
    """Takes all news of a run until it ends. Raises Spark's error."""
    news: queue.SimpleQueue[_News] = queue.SimpleQueue()
    tables = display.tables
    with _progress_to(engine, news):
        thread = threading.Thread(target=_collect, args=(engine, graph, news, scope), daemon=True)
        thread.start()
        ended: _Ended | None = None
        while ended is None:
            try:
                one = news.get(timeout=display.next_s())
            except queue.Empty:
                display.flush()
                continue
            if isinstance(one, _Ended):
                ended = one
            else:
                flow, is_new_state = _told(progress, one)
                display.take(flow, is_new_state)
                if flow is not None and is_new_state and flow.state is not FlowState.QUEUED:
                    tables.record_written()
                if flow is not None and is_new_state and flow.state is FlowState.RUNNING:
                    refresh.end()  # Spark starts no flow before all tables are empty
        thread.join()
    # The last progress reports arrived before the block ended.
    while not news.empty():
        late = news.get()
        if not isinstance(late, _Ended):
            _told(progress, late)
    if ended.error is None:
        refresh.end()
        for flow in progress.complete():
            display.take(flow, is_new_state=True)
    tables.record_written()
    display.flush(at_once=True)
    if ended.error is not None:
        raise ended.error


def _told(progress: RunProgress, news: str | BatchDone) -> tuple[FlowProgress | None, bool]:
    """The flow that changed, and whether its state did."""
    if isinstance(news, BatchDone):
        return progress.take_batch(news), False
    event = flow_event(news)
    return (progress.take(event), True) if event is not None else (None, False)


class _Display:
    """Shows a flow's end only after a moment without news of it, and limits the rate of lag updates and commits."""

    def __init__(
        self,
        project: PipelineProject,
        watch: Watcher,
        meter: LagMeter,
        groups: FlowGroups,
        tables: _TableRecorder,
    ) -> None:
        self._project = project
        self._watch = watch
        self._meter = meter
        self._groups = groups
        self.tables = tables
        self._settling: dict[str, tuple[float, FlowProgress]] = {}
        self._asked: dict[str, float] = {}

    def next_s(self) -> float | None:
        now = time.monotonic()
        return max(0.0, min(due for due, _ in self._settling.values()) - now) if self._settling else None

    def take(self, flow: FlowProgress | None, is_new_state: bool) -> None:
        if flow is None:
            return
        now = time.monotonic()
        if flow.state.is_final:
            self._settling[flow.name] = (now + SETTLING_S, flow)
        elif is_new_state and flow.state is FlowState.RUNNING:
            self._asked[flow.name] = now
            self._watch(flow)
        elif not is_new_state and now - self._asked.get(flow.name, -LAG_EVERY_S) >= LAG_EVERY_S:
            self._asked[flow.name] = now
            self._groups.report(flow.name, flow.offsets)
            flow.lag = self._meter.total(flow.offsets)
            self._watch(flow)

    def flush(self, at_once: bool = False) -> None:
        now = time.monotonic()
        for name, (due, flow) in list(self._settling.items()):
            if at_once or due <= now:
                del self._settling[name]
                self._finish(flow)
                self._watch(flow)

    def _finish(self, flow: FlowProgress) -> None:
        if not flow.offsets and self._project.checkpoints is not None:
            # Nothing was new, so there were no reports: the position is unchanged. The flow itself reports a checkpoint
            # that cannot be read.
            for checkpoint in flow_checkpoints(self._project.checkpoints):
                if checkpoint.flow == flow.name:
                    with suppress(UnreadableOffset):
                        flow.offsets = checkpoint.source_offsets()
        self._groups.report(flow.name, flow.offsets)
        flow.lag = self._meter.total(flow.offsets)
        if flow.is_batch and flow.state is FlowState.COMPLETED:
            directory = self.tables.directory_of(flow.name)
            flow.rows_written = None if directory is None else row_count(directory)


class _TableRecorder:
    """Records the locations of tables while the catalog is available: `reset` needs them without Spark."""

    def __init__(self, engine: PipelineEngine) -> None:
        self._engine = engine
        self._locations = TableLocations(engine.project)
        self._asked: set[tuple[str, ...]] = set()

    def record_written(self) -> None:
        """Records every table with a checkpoint of a flow."""
        checkpoints = self._engine.project.checkpoints
        if checkpoints is not None:
            self._record(one.target for one in flow_checkpoints(checkpoints) if one.is_table)

    def directory_of(self, view: str) -> Path | None:
        project = self._engine.project
        table = (project.catalog or DEFAULT_CATALOG, project.database, view)
        self._record([table])
        return self._locations.directory(table)

    def _record(self, tables: Iterable[tuple[str, ...]]) -> None:
        found: dict[Sequence[str], str] = {}
        for table in set(tables) - self._asked:
            place = self._engine.table_location(table)
            if place is not None:
                self._asked.add(table)
                found[table] = place
        if found:
            self._locations.record(found)


def _collect(
    engine: PipelineEngine,
    graph: PipelineGraph,
    news: queue.SimpleQueue[_News],
    scope: RunScope,
) -> None:
    try:
        for message in _events(engine, graph, scope):
            news.put(message)
    except Exception as error:  # passed to the waiting thread
        news.put(_Ended(error))
    else:
        news.put(_Ended(None))


def _events(
    engine: PipelineEngine,
    graph: PipelineGraph,
    scope: RunScope,
    *,
    dry: bool = False,
) -> Iterator[str]:
    from pyspark.pipelines.spark_connect_pipeline import start_run

    for answer in start_run(
        engine.session,
        graph.graph_id,
        full_refresh=list(scope.full_refresh),
        full_refresh_all=scope.full_refresh_all,
        refresh=[],
        dry=dry,
        storage=engine.project.storage,
    ):
        if "pipeline_event_result" in answer:
            yield str(answer["pipeline_event_result"].event.message)


@contextmanager
def _progress_to(engine: PipelineEngine, news: queue.SimpleQueue[_News]) -> Iterator[None]:
    """Puts the progress of every query of the session into `news`. All of it has arrived at the end of the block."""
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
            done = batch_done(json.loads(event.progress.json))
            if done is not None:
                news.put(done)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
            pass

    def take_view(observed: Metrics) -> None:
        done = view_done(observed)
        if done is not None:
            news.put(done)

    listener = Listener()
    with engine.quiet():
        engine.session.streams.addListener(listener)
    try:
        with engine.batch_metrics(take_view):
            yield
    finally:
        with engine.quiet():
            engine.session.streams.removeListener(listener)


def _outcome(engine: PipelineEngine, graph: PipelineGraph, progress: RunProgress, error: Exception) -> PipelineError:
    """Translates Spark's error for the user."""
    if isinstance(error, PipelineError):
        return error
    if not engine.is_alive:
        return SparkFailed("Spark has ended (killed, or out of memory)", is_transient=True)
    if progress.unresolved:
        return DefinitionError([_unresolved(engine, graph, event.flow, event.error) for event in progress.unresolved])
    failed = progress.failed()
    if failed:
        return FlowFailed(
            [(flow.name, graph.expectations.said(flow.error, flow.cause)) for flow in failed],
            all(is_transient(flow.error) for flow in failed),
        )
    from pyspark.errors import AnalysisException

    if isinstance(error, AnalysisException):
        place = graph.place_named_in(engine.project, str(error))
        what = cause_of(str(error))
        return DefinitionError([Mistake(what, place.file, place.line) if place else Mistake(what)])
    return SparkFailed(cause_of(str(error)), is_transient(str(error)))


def _unresolved(engine: PipelineEngine, graph: PipelineGraph, flow: str, error: str) -> Mistake:
    place = graph.place_of(engine.project, flow)
    name = flow.rpartition(".")[2]
    cause = graph.expectations.said(error, cause_of(error))
    if place is None:
        return Mistake(cause, flow=name)
    return Mistake(cause, place.file, place.line, name)
