"""The lock for one run of a project at a time."""

from __future__ import annotations

from penstock.spark.pipeline.errors import ProjectBusy
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.process_lock import ProcessLock, lock_holder


class ProjectLock(ProcessLock):
    """`purpose`: the holder's activity, shown to other processes."""

    def __init__(self, project: PipelineProject, purpose: str) -> None:
        super().__init__(
            project.lock_path,
            lambda holder: ProjectBusy(f"pipeline {project.name} is in use by {holder}: wait for it, or end it first"),
            purpose,
        )


def holder_of(project: PipelineProject) -> str | None:
    """The process that runs the project now, or None."""
    return lock_holder(project.lock_path)
