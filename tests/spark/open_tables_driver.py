"""A pipeline without topics, run by run in one Spark: tables of `penstock.tables` are what it reads and what it writes.

Spark Connect and an ordinary session do not go together in one process, so this is one of its own. Each step prints a
line of JSON: what the tables have after it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.spark.pipeline.checkpoints import flow_checkpoints
from penstock.spark.pipeline.engine import PipelineEngine
from penstock.spark.pipeline.lag import LagMeter
from penstock.spark.pipeline.locations import TableLocations
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.runner import RunFailed, RunScope, run_once
from penstock.spark.pipeline.tables import find_table, row_count
from penstock.spark.pipeline.templates.template import ProjectPlan, create_project
from penstock.tables import Table

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def numbers():
    return spark.readStream.format("penstock-table").load({source!r}).selectExpr({columns})


@dp.table(partition_cols=["kind"])
def odd():
    return spark.readStream.table("numbers").where("id % 2 = 1").selectExpr("id", "concat('k', id % 3) AS kind")
"""
VIEW = "CREATE MATERIALIZED VIEW stats AS SELECT {columns} FROM numbers;\n"


class Story:
    def __init__(self, directory: Path, rows: int = 0) -> None:
        """`rows`: those that an earlier process has added; then the project is there."""
        self.rows = rows
        self.source = directory / "source"
        if not rows:
            create_project(directory, ProjectPlan.make("shop", ("clicks",), None, None, "127.0.0.1:1"))
        self.project = PipelineProject.find(directory / "shop")
        if rows:
            return
        for file in (self.project.root / "transformations").iterdir():
            file.unlink()
        self.define("'id'", "count(*) AS n, sum(id) AS total")

    def define(self, columns: str, view: str) -> None:
        place = self.project.root / "transformations"
        (place / "numbers.py").write_text(DEFINITIONS.format(source=str(self.source), columns=columns))
        (place / "stats.sql").write_text(VIEW.format(columns=view))

    def add(self, count: int) -> None:
        table = Table.open_or_create(self.source, pa.schema([("id", pa.int64())]))
        table.append(pa.table({"id": pa.array(range(self.rows, self.rows + count), pa.int64())}))
        self.rows += count

    def run(self, engine: PipelineEngine, name: str, scope: RunScope | None = None) -> None:
        error = None
        try:
            with LagMeter(self.project.client_options) as meter:  # nothing asks the brokers
                run_once(engine, meter, scope=scope)
        except RunFailed as failed:
            error = str(failed)
        print(json.dumps({"step": name, "error": error, **self.found()}), flush=True)

    def found(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for table in TableLocations(self.project).tables():
            directory = find_table(self.project, table).directory
            rows = Table.open(directory).at().arrow()
            found[table.rpartition(".")[2]] = {
                "rows": sorted(rows.to_pylist(), key=str),
                "version": Table.open(directory).version,
                "count": row_count(directory),
                "partition_by": list(Table.open(directory).partition_by),
            }
        return found


def main(directory: Path) -> None:
    story = Story(directory)
    story.add(3)
    with PipelineEngine(story.project, master="local[2,4]", fast_start=True) as engine:
        story.run(engine, "first")
        story.add(2)
        story.run(engine, "more rows")
        # As if Spark had been killed after the commits of the tables and before its own.
        assert story.project.checkpoints is not None
        for flow in flow_checkpoints(story.project.checkpoints):
            shutil.rmtree(flow.current / "commits")
            (flow.current / "commits").mkdir()
        story.run(engine, "repeated")
        story.define("'id', 'id * 10 AS tens'", "count(*) AS n, sum(id) AS total, max(tens) AS most")
        story.add(1)
        story.run(engine, "other columns")
        story.run(engine, "anew", RunScope(full_refresh=("numbers", "odd")))


def restarted(directory: Path) -> None:
    """In another process: the Java machine of the first one keeps the catalog open, and the token of its session."""
    story = Story(directory, row_count(directory / "source"))
    with PipelineEngine(story.project, master="local[2,4]", fast_start=True) as engine:
        story.add(1)
        story.run(engine, "restarted")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        restarted(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]))
