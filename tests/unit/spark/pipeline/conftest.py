from __future__ import annotations

from pathlib import Path

import pytest
from written_checkpoints import CheckpointWriter

from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.pipeline.templates.template import ProjectPlan, create_project

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def project(tmp_path: Path) -> PipelineProject:
    """As `penstock pipeline init shop` makes it, with no broker behind it."""
    create_project(tmp_path, ProjectPlan.make("shop", ("clicks",), None, None, NOWHERE))
    return PipelineProject.find(tmp_path / "shop")


@pytest.fixture
def checkpoint(project: PipelineProject) -> CheckpointWriter:
    assert project.checkpoints is not None
    return CheckpointWriter(project.checkpoints)
