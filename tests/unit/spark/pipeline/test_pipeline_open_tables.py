"""Tables of a pipeline in the open format: which projects have them, what `show` and metrics say, what expires."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from penstock.cli.pipeline.metrics import metrics_page
from penstock.spark.pipeline.checkpoints import flow_checkpoints
from penstock.spark.pipeline.locations import TableLocations
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.table_catalog import (
    CATALOG,
    CLASS_PATH,
    MARK,
    catalog_settings,
    class_directory,
    has_open_tables,
    note_format,
)
from penstock.spark.pipeline.table_upkeep import EVERY_S, TableUpkeep, expire_tables, oldest_needed, table_sizes
from penstock.spark.pipeline.tables import find_table, read_rows, row_count
from penstock.tables import Span, Table
from support.tables.rows import EVENTS, append, events

NAME = ("spark_catalog", "default", "events")


def table_of(project: PipelineProject, count: int) -> Table:
    directory = project.warehouse / "events"
    TableLocations(project).record({NAME: directory.as_uri()})
    table = Table.open_or_create(directory, EVENTS)
    for first in range(0, count * 10, 10):
        append(table, first, first + 10, stream="spark-x")
    return table


def reader_at(project: PipelineProject, version: int, committed: bool = True) -> None:
    """The checkpoint of a flow into a topic that reads the table."""
    directory = project.root / "storage" / "_checkpoints" / "output" / "results" / "0"
    for name in ("offsets", "commits", "sources"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "metadata").write_text('{"id":"3af66410-3e2f-46e8-a75f-375d4b6bdde6"}')
    offset = json.dumps({"table": "t", "path": str(project.warehouse / "events"), "version": version})
    (directory / "offsets" / "0").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offset}')
    if committed:
        (directory / "commits" / "0").write_text("v1\n{}")


def test_projects_with_tables_of_parquet_keep_them_until_they_are_reset(project: PipelineProject) -> None:
    project.state.mkdir(parents=True, exist_ok=True)
    project.metastore.mkdir()
    assert not has_open_tables(project)
    note_format(project)
    assert not has_open_tables(project)
    project.metastore.rmdir()  # as a reset does
    assert has_open_tables(project)
    note_format(project)
    project.metastore.mkdir()
    assert has_open_tables(project)
    assert (project.state / MARK).read_text() == "penstock-table\n"


def test_a_catalog_of_the_projects_own_choice_stays(project: PipelineProject) -> None:
    assert has_open_tables(project)
    chosen = replace(project, configuration={**project.configuration, CATALOG: "org.example.Catalog"})
    assert not has_open_tables(chosen)


def test_settings_of_the_project_stay(project: PipelineProject) -> None:
    chosen = {CLASS_PATH: "/their/classes", "spark.sql.sources.default": "parquet"}
    settings = catalog_settings(project, chosen)
    assert settings[CLASS_PATH] == f"{class_directory(project)}:/their/classes"
    assert settings["spark.sql.sources.default"] == "parquet"
    assert catalog_settings(project, {})["spark.sql.sources.default"] == "penstock-table"
    assert class_directory(project).is_dir(), "Java would take it for a jar"


def test_show_has_the_newest_rows_of_a_stream_and_the_first_of_a_view(project: PipelineProject) -> None:
    table = table_of(project, 3)
    found = find_table(project, "events")
    assert read_rows(found, 12).column("id").to_pylist() == list(range(18, 30))
    assert row_count(found.directory) == 30
    view = Table.create(project.warehouse / "view", EVENTS)
    view.replace(events(0, 20), {"truncated": Span(0, 5)})
    TableLocations(project).record({(*NAME[:2], "view"): view.directory.as_uri()})
    assert read_rows(find_table(project, "view"), 3).column("id").to_pylist() == [0, 1, 2]
    table.replace(events(0, 0))
    assert read_rows(found, 3).column_names == EVENTS.names


def test_metrics_of_tables(project: PipelineProject) -> None:
    table = table_of(project, 3)
    page = metrics_page("shop", {}, table_sizes(project))
    labels = '{pipeline="shop",table="spark_catalog.default.events"}'
    assert f"penstock_pipeline_table_version{labels} 3" in page
    assert f"penstock_pipeline_table_files{labels} 3" in page
    assert f"penstock_pipeline_table_size_bytes{labels} {table.size_bytes}" in page
    (table.directory / "_delta_log" / f"{3:020d}.json").write_text("{")
    assert table_sizes(project) == {}


def test_versions_that_a_flow_has_yet_to_read_stay(project: PipelineProject) -> None:
    table = table_of(project, 6)
    reader_at(project, 2)
    assert oldest_needed(project, table.directory) == 2
    expire_tables(project, timedelta(0))
    assert Table.open(table.directory).oldest_version == 2
    reader_at(project, 6)
    expire_tables(project, timedelta(0))
    assert Table.open(table.directory).oldest_version == 6


def test_the_first_batch_of_a_flow_needs_the_version_that_it_reads(project: PipelineProject) -> None:
    table = table_of(project, 6)
    reader_at(project, 4, committed=False)
    assert oldest_needed(project, table.directory) == 4
    checkpoint = flow_checkpoints(project.root / "storage" / "_checkpoints")[0]
    assert checkpoint.reads(table.directory)
    assert not checkpoint.reads(Path("/elsewhere"))
    assert oldest_needed(project, Path("/elsewhere")) is None


def test_replaced_versions_of_a_view_expire_sooner(project: PipelineProject) -> None:
    """Each run replaces all of it, so an hour of them would fill the disk. A stream cannot read it."""
    reader_at(project, 0)
    view = Table.create(project.warehouse / "events", EVENTS)
    TableLocations(project).record({NAME: view.directory.as_uri()})
    for number in range(1, 4):
        view.replace(events(0, 10), {"truncated": Span(number - 1, number)})
    expire_tables(project, timedelta(0))
    assert Table.open(view.directory).oldest_version == 3


def test_nothing_of_a_stream_expires_if_its_readers_are_not_known(project: PipelineProject) -> None:
    table = table_of(project, 4)
    elsewhere = replace(project, storage="s3a://bucket/storage")
    assert elsewhere.checkpoints is None
    expire_tables(elsewhere, timedelta(0))
    assert Table.open(table.directory).oldest_version == 0


def test_expiry_comes_once_in_a_while(project: PipelineProject) -> None:
    now = [0.0]
    upkeep = TableUpkeep(lambda: now[0])
    upkeep.after_run(project)
    table = table_of(project, 1)
    (table.directory / "_delta_log" / f"{1:020d}.json").write_text("{")
    upkeep.after_run(project)
    now[0] = EVERY_S
    upkeep.after_run(project)  # a table that cannot be read does not fail the run
    assert table.directory.is_dir()
