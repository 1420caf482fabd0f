"""Reads the definitions of a project into a graph that Spark runs, and collects facts about them.

Every table, view, sink and flow passes through Spark's registry of definitions. Our registry notes where each is
defined (for messages) and which topics it reads and writes (for `check`), and makes Spark count the rows of each flow.
The server reads SQL files, so their flows are found only by their names.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.expectations import Declared, declared
from penstock.spark.pipeline.definitions import Definitions, Place, read_definitions
from penstock.spark.pipeline.engine import PipelineEngine
from penstock.spark.pipeline.errors import DefinitionError
from penstock.spark.pipeline.project import PipelineProject

if TYPE_CHECKING:
    from pyspark.pipelines.flow import Flow
    from pyspark.pipelines.output import Output

FORMAT = "penstock"
SERVERS = "kafka.bootstrap.servers"
ROWS = "rows"


@dataclass(slots=True)
class PipelineGraph:
    """The flows, sinks and topics of the Python definitions, with the names in the definitions."""

    graph_id: str
    definitions: Definitions = field(default_factory=lambda: Definitions({}))
    flows: dict[str, Place] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)
    """The target of each flow."""
    sinks: set[str] = field(default_factory=set)
    views: set[str] = field(default_factory=set)
    reads: dict[str, None] = field(default_factory=dict)
    """Topics in the order of discovery, without patterns."""
    writes: dict[str, None] = field(default_factory=dict)
    servers: set[str] = field(default_factory=set)
    """The clusters that sources and sinks name."""
    clients: list[dict[str, str]] = field(default_factory=list)
    """The client options of the sources that name a cluster."""
    expectations: Declared = field(default_factory=Declared)
    has_other_sources: bool = False
    """A source is neither a topic by name nor, apparently, a table of the pipeline."""

    def place_of(self, project: PipelineProject, flow: str) -> Place | None:
        name = short_name(flow)
        return self.flows.get(name) or self.definitions.place_in_sql(project, name)

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
def registered(
    engine: PipelineEngine, left_out: frozenset[str] = frozenset(), definitions: Definitions | None = None
) -> Iterator[PipelineGraph]:
    """The definitions as a graph in the engine's session, dropped at the end. Raises DefinitionError.

    `left_out`: sinks to leave out, with their flows. `definitions`: by default those in the project's files.
    """
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

    definitions = definitions or read_definitions(engine.project)
    graph_id = create_dataflow_graph(
        engine.session,
        default_catalog=engine.project.catalog,
        default_database=engine.project.database,
        sql_conf=engine.graph_settings(),
    )
    graph = PipelineGraph(graph_id, definitions)
    try:
        registry = _registry(engine, graph, left_out)
        with declared() as graph.expectations:
            for file in definitions.files:
                _register(engine, registry, graph, file)
        yield graph
    finally:
        _drop(engine, graph_id)


def _register(engine: PipelineEngine, registry: Any, graph: PipelineGraph, file: Path) -> None:
    """As Spark's `register_definitions`, but with the file's content as it was read."""
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context

    project, definitions = engine.project, graph.definitions
    if file.suffix == ".sql" and definitions.has_other_sources(file):
        graph.has_other_sources = True
    try:
        with engine.quiet(), chdir(project.root), graph_element_registration_context(registry):
            if file.suffix == ".sql":
                registry.register_sql(definitions.sql(file), Path(project.relative(file)))
            else:
                _execute(engine, graph, file)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        mistake = definitions.mistake_in(project, file, error)
        raise DefinitionError([replace(mistake, what=graph.expectations.said(str(error), mistake.what))]) from error


def _execute(engine: PipelineEngine, graph: PipelineGraph, file: Path) -> None:
    """Never from bytecode: Python takes that for current if the file changed in the same second and has the same size,
    which is possible under `serve`."""
    from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
    from pyspark.pipelines.block_session_mutations import block_session_mutations

    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    module = module_from_spec(spec)
    module.__dict__["spark"] = engine.session
    code = compile(graph.definitions.files[file], str(file), "exec", dont_inherit=True)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # of modules that it imports
    try:
        with (
            add_pipeline_analysis_context(engine.session, graph.graph_id, flow_name=None),
            block_session_mutations(),
        ):
            exec(code, module.__dict__)
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
                if output.format == FORMAT:
                    graph.servers |= {value for name, value in output.options.items() if name.lower() == SERVERS}
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
            graph.servers.add(options[SERVERS])
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
