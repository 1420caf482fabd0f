from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.spark.pipeline.errors import ProjectBusy
from penstock.spark.pipeline.lock import ProjectLock, holder_of
from penstock.spark.pipeline.project import PipelineProject


def test_one_at_a_time(project: PipelineProject) -> None:
    assert holder_of(project) is None
    with ProjectLock(project, "pipeline run"):
        assert holder_of(project) == f"process {os.getpid()} (pipeline run)"
        with (
            pytest.raises(ProjectBusy, match=rf"in use by process {os.getpid()} \(pipeline run\)"),
            ProjectLock(project, "pipeline reset"),
        ):
            pytest.fail("locked twice")
    assert holder_of(project) is None
    with ProjectLock(project, "pipeline run"):
        pass


def test_a_killed_holder_holds_nothing(project: PipelineProject) -> None:
    holder = (
        "import sys, time; from pathlib import Path; "
        "from penstock.spark.pipeline.lock import ProjectLock; "
        "from penstock.spark.pipeline.project import PipelineProject; "
        "ProjectLock(PipelineProject.find(Path(sys.argv[1])), 'pipeline serve').__enter__(); "
        "print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", holder, str(project.root)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert holder_of(project) == f"process {process.pid} (pipeline serve)"
    finally:
        process.kill()
        process.communicate()
    assert holder_of(project) is None
