"""The catalog of a pipeline's tables in the open format: Spark's session catalog, extended by a Java class.

Spark creates the tables of a pipeline in its session catalog, writes them through it, and empties those that are
computed anew. For a Python data source that lacks two things: the location of the table, and TRUNCATE. The class
`TableCatalog.java` adds them. Spark's own compiler of generated code compiles it when it is first needed, into the
project, so there is no jar to build or to fetch (ADR 13).

Projects whose tables are Parquet, from before, stay as they are until they are reset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.state_files import replace_text
from penstock.spark.tables.datasource import FORMAT

SOURCE = Path(__file__).with_name("TableCatalog.java")
CLASS = "penstock.TableCatalog"
CATALOG = "spark.sql.catalog.spark_catalog"
CLASS_PATH = "spark.driver.extraClassPath"
MARK = "table-format"
"""A file of the project that names the format of its tables. Projects from before have none."""


def has_open_tables(project: PipelineProject) -> bool:
    if CATALOG in project.configuration:
        return False  # of the project's own choice, with formats of its own
    return (project.state / MARK).exists() or not project.metastore.exists()


def note_format(project: PipelineProject) -> None:
    if has_open_tables(project) and not (project.state / MARK).exists():
        replace_text(project.state / MARK, f"{FORMAT}\n")


def class_directory(project: PipelineProject) -> Path:
    """One for each version of the source and of Spark."""
    told = hashlib.sha256(SOURCE.read_bytes() + version("pyspark").encode()).hexdigest()[:16]
    return project.state / "classes" / told


def catalog_settings(project: PipelineProject, chosen: Mapping[str, str]) -> dict[str, str]:
    """Static settings, beside those `chosen` in the project."""
    directory = class_directory(project)
    directory.mkdir(parents=True, exist_ok=True)  # Java takes a missing directory of the class path for a jar
    return {
        CATALOG: CLASS,
        "spark.sql.sources.default": chosen.get("spark.sql.sources.default", FORMAT),
        CLASS_PATH: ":".join(filter(None, (str(directory), chosen.get(CLASS_PATH)))),
    }


def compile_catalog(jvm: Any, project: PipelineProject) -> None:
    """Before anything looks for the catalog's class."""
    directory = class_directory(project)
    if (directory / "penstock" / "TableCatalog.class").exists():
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(SOURCE.read_text(encoding="utf-8"))
    made = {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}
    for name in sorted(made, key=lambda name: name == CLASS):  # that one last: it says that all are there
        place = directory / f"{name.replace('.', '/')}.class"
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = place.with_suffix(".tmp")
        aside.write_bytes(made[name])
        aside.replace(place)
