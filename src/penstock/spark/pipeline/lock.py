"""One run of a project at a time."""

from __future__ import annotations

from penstock.spark.pipeline.errors import ProjectBusy
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.process_lock import ProcessLock, lock_holder


class ProjectLock(ProcessLock):
    """`purpose`: what the holder does, for whoever finds the project locked."""

    def __init__(self, project: PipelineProject, purpose: str) -> None:
        super().__init__(
            project.lock_path,
            lambda holder: ProjectBusy(
                f"pipeline {project.name} is in use by {holder}: wait for it, or end it, before this"
            ),
            purpose,
        )


def holder_of(project: PipelineProject) -> str | None:
    """Who runs the project now; None when nobody does."""
    return lock_holder(project.lock_path)
