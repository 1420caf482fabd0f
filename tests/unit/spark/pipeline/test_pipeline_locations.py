from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.locations import TableLocations, same_table
from penstock.spark.pipeline.project import PipelineProject

EVENTS = ("spark_catalog", "default", "Events")


def test_as_the_catalog_told_it(project: PipelineProject, tmp_path: Path) -> None:
    TableLocations(project).record(
        {
            EVENTS: f"file:{project.root}/warehouse/events",
            ("spark_catalog", "shop", "far"): f"file:///{tmp_path}/else where/100%/far",
            ("lake", "shop", "remote"): "s3a://bucket/remote",
        }
    )
    told = TableLocations(project)
    assert told.directory(EVENTS) == project.root / "warehouse" / "events"
    assert told.directory(("spark_catalog", "default", "EVENTS")) == project.root / "warehouse" / "events"
    assert told.directory(("spark_catalog", "shop", "far")) == tmp_path / "else where" / "100%" / "far"
    assert told.outside() == [tmp_path / "else where" / "100%" / "far"]
    assert told.directory(("lake", "shop", "remote")) is None
    assert told.is_remote(("lake", "shop", "remote"))
    assert told.directory(("spark_catalog", "default", "other")) is None
    assert not told.is_remote(("spark_catalog", "default", "other"))
    assert same_table(EVENTS, ("SPARK_CATALOG", "default", "events"))


def test_what_is_recorded_later_is_added(project: PipelineProject) -> None:
    for name in ("a", "b", "a"):
        TableLocations(project).record({("c", "d", name): f"file:{project.root}/warehouse/{name}"})
    assert TableLocations(project).tables() == ["c.d.a", "c.d.b"]


def test_a_copy_has_its_own_tables_and_none_of_elsewhere(project: PipelineProject, tmp_path: Path) -> None:
    far = ("c", "d", "far")
    TableLocations(project).record({EVENTS: f"file:{project.root}/warehouse/events", far: f"file:{tmp_path}/far"})
    shutil.copytree(project.root, tmp_path / "copy")
    copy = PipelineProject.find(tmp_path / "copy")
    copied = TableLocations(copy)
    assert copied.is_of_a_copy
    assert copied.directory(EVENTS) == tmp_path / "copy" / "warehouse" / "events"
    copied.record({EVENTS: f"file:{tmp_path}/copy/warehouse/events"})
    assert not TableLocations(copy).is_of_a_copy
    assert TableLocations(copy).outside() == []


def test_a_file_that_cannot_be_read_is_said(project: PipelineProject) -> None:
    project.state.mkdir()
    for text in ("", "[]", '{"version": 9}', '{"version": 1}'):
        project.tables_path.write_text(text)
        with pytest.raises(PipelineError, match=r"tables\.json cannot be read .* delete it"):
            TableLocations(project)
