"""The last runs of a project, for `penstock pipeline history`.

The file holds the newest `KEPT` runs, a line of JSON each, oldest first. It is replaced atomically, by the process that
holds the project's lock. A reset leaves it alone: it tells what has happened. This module does not know Spark.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.state_files import replace_text

KEPT = 100
logger = logging.getLogger(__name__)
_SENTENCE = re.compile(r".*?[.!?](?=\s+[A-Z])")


@dataclass(frozen=True, slots=True)
class FlowOutcome:
    """What a run has done in a flow."""

    flow: str
    state: str
    rows_read: int | None
    """None for a materialized view, which is computed from whole tables."""
    rows_written: int | None
    """None if the rows were not counted."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class PastRun:
    started: str
    ended: str | None
    """None if nobody has recorded its end: it was killed, or is running."""
    seconds: float | None
    mode: str
    """run or serve"""
    state: str
    """completed, failed, interrupted or killed; running if it has not ended."""
    error: str = ""
    """The first sentence of the reason."""
    flows: Sequence[FlowOutcome] = ()

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> PastRun:
        return cls(**{**told, "flows": tuple(FlowOutcome(**flow) for flow in told["flows"])})


def past_runs(project: PipelineProject) -> list[PastRun]:
    """Those in the file, oldest first. Lines that cannot be read are left out: the pipeline runs without them."""
    try:
        lines = _lines(project)
    except OSError:
        return []
    return [run for run in map(_parsed, lines) if run is not None]


def add_run(project: PipelineProject, run: PastRun) -> None:
    """A run that is there already is not added again: its process was killed before it could note the end elsewhere.

    Lines that cannot be read stay: another version may read them. A run does not fail because of its history.
    """
    try:
        lines = _lines(project)
        if any(one is not None and one.started == run.started for one in map(_parsed, lines)):
            return
        told = [*lines, json.dumps(project.secrets.hide_all(asdict(run)))][-KEPT:]
        replace_text(project.history_path, "".join(f"{line}\n" for line in told))
    except OSError as error:
        path = project.relative(project.history_path)
        logger.warning("the run is not added to %s (%s): see that this user can read and write it", path, error)


def first_sentence(error: str) -> str:
    line = error.partition("\n")[0].strip()
    found = _SENTENCE.match(line)
    return found[0] if found else line


def _lines(project: PipelineProject) -> list[str]:
    """Raises OSError if the file is there and cannot be read: it must not be replaced then."""
    try:
        text = project.history_path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.split("\n") if line]


def _parsed(line: str) -> PastRun | None:
    try:
        return PastRun.from_json(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
