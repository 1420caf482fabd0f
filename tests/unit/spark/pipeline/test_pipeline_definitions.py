"""What definitions are, and where a mistake in them is, as far as that can be told without Spark."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark.pipeline import graph as graph_module
from penstock.spark.pipeline.definitions import Definitions, Place, checked_definitions, read_definitions
from penstock.spark.pipeline.errors import DefinitionError
from penstock.spark.pipeline.graph import PipelineGraph, registered, short_name
from penstock.spark.pipeline.project import PipelineProject

SYNTAX_ERROR = """\

[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 4, pos 1)

== SQL ==


CREATE MATERIALIZED VIEW stats AS
 SELEC n FROM events
-^^^
"""


def test_a_line_of_a_statement_is_one_of_the_file(project: PipelineProject) -> None:
    file = project.root / "transformations" / "two.sql"
    first = "-- x\n\nCREATE MATERIALIZED VIEW a AS SELECT 1 AS q;"
    file.write_text(f"{first}\n\nCREATE MATERIALIZED VIEW stats AS\n SELEC n FROM events;\n")
    mistake = read_definitions(project).mistake_in(project, file, ValueError(SYNTAX_ERROR))
    assert str(mistake) == "transformations/two.sql:6: Syntax error at or near 'SELEC'."


def test_python_errors_name_the_line_of_the_file(project: PipelineProject) -> None:
    file = project.root / "transformations" / "bad.py"
    source = "def half(x):\n    return 1 / x\n\n\nhalf(0)\n"
    file.write_text(source)
    with pytest.raises(ZeroDivisionError) as divided:
        exec(compile(source, str(file), "exec"), {})
    definitions = read_definitions(project)
    mistake = definitions.mistake_in(project, file, divided.value)
    assert str(mistake) == "transformations/bad.py:2: ZeroDivisionError: division by zero"
    with pytest.raises(SyntaxError) as refused:
        compile("def (:\n", str(file), "exec")
    assert str(definitions.mistake_in(project, file, refused.value)).startswith("transformations/bad.py:1: ")


def test_flows_are_found_in_python_and_in_sql(project: PipelineProject) -> None:
    graph = PipelineGraph("1", read_definitions(project), flows={"events": Place("transformations/clicks.py", 8)})
    assert graph.place_of(project, "spark_catalog.default.events") == Place("transformations/clicks.py", 8)
    assert graph.place_of(project, "spark_catalog.default.page_stats") == Place("transformations/page_stats.sql", 2)
    assert graph.place_of(project, "nope") is None
    sentence = "Attempted to register a TABLE with identifier `spark_catalog`.`default`.`events`, but"
    assert graph.place_named_in(project, sentence) == Place("transformations/clicks.py", 8)


def test_short_names() -> None:
    assert [short_name(name) for name in ("a.b.c", "c", "`a`.`c`")] == ["c", "c", "c"]


def test_a_file_that_is_not_utf_8_is_named_with_its_line(project: PipelineProject) -> None:
    file = project.root / "transformations" / "page_stats.sql"
    file.write_bytes(b"-- one\n-- \xff\n")
    definitions = read_definitions(project)
    with pytest.raises(UnicodeDecodeError) as refused:
        definitions.sql(file)
    mistake = definitions.mistake_in(project, file, refused.value)
    assert str(mistake) == "transformations/page_stats.sql:2: it is not UTF-8: invalid start byte at byte 10"
    assert checked_definitions(project) == definitions, "only Python is checked without Spark"


MADE = """\
import os
from pyspark import pipelines as dp

assert os.path.samefile(__file__, "transformations/a.py")
assert spark

@dp.table
def made():
    return None
"""


class Registry:
    """Notes what it is given, as Spark's does."""

    def __init__(self) -> None:
        self.sql: list[tuple[str, str]] = []
        self.flows: list[tuple[str, str, int]] = []

    def register_sql(self, text: str, file: Path) -> None:
        self.sql.append((text, str(file)))

    def register_output(self, output: Any) -> None:
        pass

    def register_flow(self, flow: Any) -> None:
        place = flow.source_code_location
        self.flows.append((flow.name, place.filename, place.line_number))


def test_the_given_definitions_are_registered_and_not_the_files(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, sql = project.root / "transformations" / "a.py", project.root / "transformations" / "b.sql"
    definitions = Definitions({python: MADE.encode(), sql: b"\xef\xbb\xbfSELECT 1"})
    python.write_text("raise ValueError('the file')\n")
    registry = Registry()
    client = SimpleNamespace(add_threadlocal_user_context_extension=lambda _: "1", remove_user_context_extension=str)
    engine: Any = SimpleNamespace(
        project=project, session=SimpleNamespace(client=client), graph_settings=dict, quiet=nullcontext
    )
    monkeypatch.setattr("pyspark.pipelines.spark_connect_pipeline.create_dataflow_graph", lambda *_, **__: "1")
    monkeypatch.setattr(graph_module, "_registry", lambda *_: registry)
    monkeypatch.setattr(graph_module, "_drop", lambda *_: None)
    with registered(engine, definitions=definitions):
        pass
    assert registry.flows == [("made", str(python), 7)]
    assert registry.sql == [("SELECT 1", "transformations/b.sql")]
    with pytest.raises(DefinitionError, match=r"transformations/a\.py:1: ValueError: the file"), registered(engine):
        pytest.fail("it is registered")
