"""Reads the definitions of a project into a graph that Spark runs, and collects facts about them.

Every table, view, sink and flow passes through Spark's registry of definitions. Our registry notes where each is
defined (for messages) and which topics it reads and writes (for `check`), and makes Spark count the rows of each flow.
The server reads SQL files, so their flows are found only by their names.
"""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.pipeline.engine import PipelineEngine
from penstock.spark.pipeline.errors import DefinitionError, Mistake
from penstock.spark.pipeline.events import cause_of
from penstock.spark.pipeline.project import PipelineProject

if TYPE_CHECKING:
    from pyspark.pipelines.flow import Flow
    from pyspark.pipelines.output import Output

FORMAT = "penstock"
SERVERS = "kafka.bootstrap.servers"
ROWS = "rows"
# SQL that reads a stream or files by path: only the server knows their kind.
_SQL_SOURCE = re.compile(r"\bSTREAM\b|\bread_files\b|\b(?:parquet|json|csv|text|orc)\.`", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    file: str
    line: int


@dataclass(slots=True)
class PipelineGraph:
    """The flows, sinks and topics of the Python definitions, with the names in the definitions."""

    graph_id: str
    flows: dict[str, Place] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)
    """The target of each flow."""
    sinks: set[str] = field(default_factory=set)
    views: set[str] = field(default_factory=set)
    reads: dict[str, None] = field(default_factory=dict)
    """Topics in the order of discovery, without patterns."""
    writes: dict[str, None] = field(default_factory=dict)
    clients: list[dict[str, str]] = field(default_factory=list)
    """The client options of the sources that name a cluster."""
    has_other_sources: bool = False
    """A source is neither a topic by name nor, apparently, a table of the pipeline."""

    def place_of(self, project: PipelineProject, flow: str) -> Place | None:
        name = short_name(flow)
        return self.flows.get(name) or _place_in_sql(project, name)

    def place_named_in(self, project: PipelineProject, sentence: str) -> Place | None:
        """The place of the first flow that Spark's sentence names."""
        quoted = (short_name(name) for name in re.findall(r"[`']([\w.`]+)[`']", sentence))
        return next(filter(None, (self.place_of(project, name) for name in quoted)), None)


def short_name(flow: str) -> str:
    """The name without catalog and database."""
    return flow.rpartition(".")[2].strip("`")


def metric_of(flow: str) -> str:
    """Spark's name of the row count of a flow."""
    return f"penstock_{flow}"


@contextmanager
def registered(engine: PipelineEngine, left_out: frozenset[str] = frozenset()) -> Iterator[PipelineGraph]:
    """The project's definitions as a graph in the engine's session, dropped at the end. Raises DefinitionError.

    `left_out`: sinks to leave out, with their flows.
    """
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

    files = engine.project.definition_files()
    graph_id = create_dataflow_graph(
        engine.session,
        default_catalog=engine.project.catalog,
        default_database=engine.project.database,
        sql_conf=engine.graph_settings(),
    )
    graph = PipelineGraph(graph_id)
    try:
        registry = _registry(engine, graph, left_out)
        for file in files:
            _register(engine, registry, graph, file)
        yield graph
    finally:
        _drop(engine, graph_id)


def _register(engine: PipelineEngine, registry: Any, graph: PipelineGraph, file: Path) -> None:
    from pyspark.pipelines import cli

    project = engine.project
    relative = project.relative(file)
    spec = cli.PipelineSpec(
        name=project.name,
        storage=project.storage,
        catalog=project.catalog,
        database=project.database,
        configuration={},
        libraries=[cli.LibrariesGlob(relative)],
    )
    if file.suffix == ".sql" and _SQL_SOURCE.search(file.read_text(encoding="utf-8")):
        graph.has_other_sources = True
    try:
        with engine.quiet(), _as_it_is_now(file):
            cli.register_definitions(project.spec_path, registry, spec, engine.session, graph.graph_id)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        raise DefinitionError([mistake_in(project, file, error)]) from error


@contextmanager
def _as_it_is_now(file: Path) -> Iterator[None]:
    """Avoids stale bytecode: Python takes it for current if the file changed in the same second and has the same size,
    which is possible under `serve`."""
    if file.suffix == ".py":
        Path(cache_from_source(str(file))).unlink(missing_ok=True)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _registry(engine: PipelineEngine, graph: PipelineGraph, left_out: frozenset[str]) -> Any:
    from pyspark.pipelines.output import Sink, TemporaryView
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.sql import functions

    class ObservingRegistry(SparkConnectGraphElementRegistry):
        def register_output(self, output: Output) -> None:
            if output.name in left_out:
                return
            if isinstance(output, TemporaryView):
                graph.views.add(output.name)
            if isinstance(output, Sink):
                graph.sinks.add(output.name)
                if output.format == FORMAT and output.options.get("topic"):
                    graph.writes[output.options["topic"]] = None
            super().register_output(output)

        def register_flow(self, flow: Flow) -> None:
            if flow.target in left_out:
                return
            location = flow.source_code_location
            graph.flows[flow.name] = Place(engine.project.relative(location.filename), location.line_number or 0)

            def observed() -> Any:
                frame: Any = flow.func()
                if not hasattr(frame, "observe"):
                    raise TypeError(f"the function of flow {flow.name} returns {frame!r} instead of a DataFrame")
                _note_topics(frame, graph)
                if flow.target in graph.views:
                    return frame
                graph.targets[flow.name] = flow.target
                return frame.observe(metric_of(flow.name), functions.count(functions.lit(1)).alias(ROWS))

            super().register_flow(replace(flow, func=observed))

    return ObservingRegistry(engine.session, graph.graph_id)


def _note_topics(frame: Any, graph: PipelineGraph) -> None:
    """Notes the topics that a query reads, from the plan that the client is about to send."""
    for source in _data_sources(frame._plan.plan(frame.sparkSession.client)):
        options = {name.lower(): value for name, value in source.options.items()}
        if source.format == FORMAT and SERVERS in options:
            graph.clients.append({name: value for name, value in options.items() if name.startswith("kafka.")})
        if source.format != FORMAT or "subscribe" not in options:
            graph.has_other_sources = True
            continue
        for topic in filter(None, map(str.strip, options["subscribe"].split(","))):
            graph.reads[topic] = None


def _data_sources(message: Any) -> Iterator[Any]:
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        if descriptor.message_type.full_name == "spark.connect.Read.DataSource":
            yield value
        elif not descriptor.message_type.GetOptions().map_entry:
            repeated = not hasattr(value, "ListFields")
            for part in value if repeated else (value,):
                yield from _data_sources(part)


def _drop(engine: PipelineEngine, graph_id: str) -> None:
    import pyspark.sql.connect.proto as pb2
    from pyspark.errors import PySparkException

    command = pb2.Command()
    command.pipeline_command.drop_dataflow_graph.CopyFrom(
        pb2.PipelineCommand.DropDataflowGraph(dataflow_graph_id=graph_id)
    )
    try:
        engine.session.client.execute_command(command)
    except PySparkException as error:
        # The server has already dropped it, or is gone.
        with engine.quiet():
            print(f"graph {graph_id} was not dropped: {error}")


# -- mistakes ---------------------------------------------------------------------------


def check_syntax(project: PipelineProject) -> None:
    """Checks the Python definitions without Spark and without running them. Raises DefinitionError with all errors."""
    mistakes: list[Mistake] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are logged when the files are read for a run
        for file in project.definition_files():
            if file.suffix == ".py":
                try:
                    compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
                except (SyntaxError, ValueError, OSError) as error:
                    mistakes.append(mistake_in(project, file, error))
    if mistakes:
        raise DefinitionError(mistakes)


def mistake_in(project: PipelineProject, file: Path, error: BaseException) -> Mistake:
    """The error from reading `file`, as a message for its author."""
    relative = project.relative(file)
    if isinstance(error, SyntaxError):
        return Mistake(f"{error.msg}", relative, error.lineno or 0)
    text = str(error).strip()
    if file.suffix == ".sql":
        return Mistake(_sql_problem(text), relative, _sql_line(file, text))
    line = next(
        (
            frame.lineno or 0
            for frame in reversed(traceback.extract_tb(error.__traceback__))
            if Path(frame.filename) == file or project.relative(frame.filename) == relative
        ),
        0,
    )
    what = cause_of(text) if text else type(error).__name__
    is_spark = type(error).__module__.startswith("pyspark")
    return Mistake(what if is_spark or not text else f"{type(error).__name__}: {what}", relative, line)


def _sql_problem(text: str) -> str:
    return re.sub(r"\s*\(line \d+, pos \d+\)", "", cause_of(text))


_SQL_TEXT = re.compile(r"== SQL ==\n(.*?)(?:\n\s*JVM stacktrace:|\Z)", re.DOTALL)


def _sql_line(file: Path, text: str) -> int:
    """Converts Spark's line number, relative to the statement, to a line of the file."""
    within = re.search(r"\(line (\d+), pos \d+\)", text)
    shown = _SQL_TEXT.search(text)
    if within is None or shown is None:
        return 0
    statement = re.sub(r"^-*\^+-*\n?", "", shown[1], flags=re.MULTILINE).rstrip()
    whole = file.read_text(encoding="utf-8")
    start = whole.find(statement)
    return whole.count("\n", 0, start) + int(within[1]) if start >= 0 else 0


def _place_in_sql(project: PipelineProject, name: str) -> Place | None:
    wanted = re.compile(rf"\bCREATE\b[^;]*?[\s.`]{re.escape(name)}`?(?=[\s(;]|\Z)", re.IGNORECASE)
    for file in project.definition_files():
        if file.suffix == ".sql":
            text = file.read_text(encoding="utf-8")
            found = wanted.search(text)
            if found is not None:
                return Place(project.relative(file), text.count("\n", 0, found.start()) + 1)
    return None
