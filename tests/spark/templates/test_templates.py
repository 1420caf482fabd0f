"""The tests that `penstock pipeline init --template ...` writes pass: they say which rows each template makes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.pipeline.templates.template import ProjectPlan, create_project

NOWHERE = "127.0.0.1:1"
# The template `clicks` has a test of its own, in tests/spark/kit.
WRITTEN = {
    "windows": "test_minutes_late_views_and_views_that_are_too_late",
    "joins": "test_orders_find_their_payments_in_time",
    "deduplication": "test_an_event_is_there_once",
}


@pytest.mark.parametrize("template", WRITTEN)
def test_the_test_of_a_new_project_passes(tmp_path: Path, penstock_pipeline: Callable[..., Any], template: str) -> None:
    create_project(tmp_path, ProjectPlan.make("shop", (), None, None, NOWHERE, template))
    spec = importlib.util.spec_from_file_location(f"shop_{template}", tmp_path / "shop" / "tests" / "test_shop.py")
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    assert [name for name in vars(written) if name.startswith("test_")] == [WRITTEN[template]]
    getattr(written, WRITTEN[template])(penstock_pipeline)
