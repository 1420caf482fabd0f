"""The errors of pipelines.

PipelineError             the run is not possible: a lock, a directory, a setting
+-- NoProject             there is none in the directory or above it
+-- ProjectBusy           another process runs this project
+-- DefinitionError       a file of the project can never run; with file, line and reason
+-- FlowFailed            a flow failed; with its name and the cause
`-- SparkFailed           a run failed, but none of its flows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model.errors import PenstockError


class PipelineError(PenstockError):
    pass


class NoProject(PipelineError):
    pass


class ProjectBusy(PipelineError):
    pass


@dataclass(frozen=True, slots=True)
class Mistake:
    """One error in the definitions. Unknown fields are empty or 0."""

    what: str
    file: str = ""
    line: int = 0
    flow: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        subject = f"flow {self.flow}" if self.flow else ""
        return ": ".join(part for part in (place, subject, self.what) if part)


class DefinitionError(PipelineError):
    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = tuple(mistakes)


class FlowFailed(PipelineError):
    """`flows`: names and causes. `is_transient`: a retry may succeed."""

    def __init__(self, flows: Sequence[tuple[str, str]], is_transient: bool) -> None:
        super().__init__("\n".join(f"flow {name} failed: {cause}" for name, cause in flows))
        self.flows = tuple(flows)
        self.is_transient = is_transient


class SparkFailed(PipelineError):
    def __init__(self, cause: str, is_transient: bool) -> None:
        super().__init__(f"the run failed: {cause}")
        self.is_transient = is_transient
