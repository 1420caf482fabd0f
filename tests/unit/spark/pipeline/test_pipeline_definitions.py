"""Where a mistake is, as far as that can be told without Spark."""

from __future__ import annotations

import pytest

from penstock.spark.pipeline.graph import PipelineGraph, Place, mistake_in, short_name
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
    mistake = mistake_in(project, file, ValueError(SYNTAX_ERROR))
    assert str(mistake) == "transformations/two.sql:6: Syntax error at or near 'SELEC'."


def test_python_errors_name_the_line_of_the_file(project: PipelineProject) -> None:
    file = project.root / "transformations" / "bad.py"
    source = "def half(x):\n    return 1 / x\n\n\nhalf(0)\n"
    file.write_text(source)
    with pytest.raises(ZeroDivisionError) as divided:
        exec(compile(source, str(file), "exec"), {})
    mistake = mistake_in(project, file, divided.value)
    assert str(mistake) == "transformations/bad.py:2: ZeroDivisionError: division by zero"
    with pytest.raises(SyntaxError) as refused:
        compile("def (:\n", str(file), "exec")
    assert str(mistake_in(project, file, refused.value)).startswith("transformations/bad.py:1: ")


def test_flows_are_found_in_python_and_in_sql(project: PipelineProject) -> None:
    graph = PipelineGraph("1", flows={"events": Place("transformations/clicks.py", 8)})
    assert graph.place_of(project, "spark_catalog.default.events") == Place("transformations/clicks.py", 8)
    assert graph.place_of(project, "spark_catalog.default.page_stats") == Place("transformations/page_stats.sql", 2)
    assert graph.place_of(project, "nope") is None
    sentence = "Attempted to register a TABLE with identifier `spark_catalog`.`default`.`events`, but"
    assert graph.place_named_in(project, sentence) == Place("transformations/clicks.py", 8)


def test_short_names() -> None:
    assert [short_name(name) for name in ("a.b.c", "c", "`a`.`c`")] == ["c", "c", "c"]
