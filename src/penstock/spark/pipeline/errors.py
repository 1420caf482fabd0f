"""What can be wrong with a pipeline.

PipelineError             the run cannot be: a lock, a directory, a setting
+-- ProjectBusy           another process runs this project
+-- DefinitionError       a file of the project says something that can never run: which, where and what
+-- FlowFailed            a flow ended with an error: which and why
`-- SparkFailed           a run ended with an error that is no flow's
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model.errors import PenstockError


class PipelineError(PenstockError):
    pass


class ProjectBusy(PipelineError):
    pass


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong in the definitions. What is not known is empty or 0."""

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
    """`flows`: their names and the causes. `is_transient`: the same may succeed when it is tried again."""

    def __init__(self, flows: Sequence[tuple[str, str]], is_transient: bool) -> None:
        super().__init__("\n".join(f"flow {name} failed: {cause}" for name, cause in flows))
        self.flows = tuple(flows)
        self.is_transient = is_transient


class SparkFailed(PipelineError):
    def __init__(self, cause: str, is_transient: bool) -> None:
        super().__init__(f"the run failed: {cause}")
        self.is_transient = is_transient
