"""The definitions that `serve` runs: those in the files, or the last good ones while those in the files are wrong.

Definitions are good if Spark has resolved them. They are one program, so either all files run as they are now, or all
as they were. The good ones are stored, so that a restart of `serve` also finds them. Definitions that were refused are
tried again as soon as a file changes. Without a change they are tried once a minute, because the reason may be
something else that was away, such as a table of another catalog.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.spark.pipeline.definitions import Definitions, checked_definitions
from penstock.spark.pipeline.errors import DefinitionError
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.state_files import replace_text

VERSION = 1
RETRY_S = 60.0

Stamps = dict[Path, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class GoodDefinitions:
    definitions: Definitions
    since: str
    """The time when they were first resolved."""


class ServedDefinitions:
    """Call `choose` before each run, and `accept` or `reject` after it. `clock` is in seconds."""

    def __init__(self, project: PipelineProject, clock: Callable[[], float] = time.monotonic) -> None:
        self._project = project
        self._clock = clock
        self._stamps: Stamps = {}
        self._retry_at = 0.0
        self._present: Definitions | None = None
        """Those in the files; None if they could not be read."""
        self._chosen: Definitions | None = None
        self.good = load_good(project)
        self.broken: DefinitionError | None = None
        """Why those in the files do not run."""
        self._broken_since = ""

    def choose(self) -> Definitions:
        """Raises DefinitionError."""
        if self.broken is not None and self.good is not None and not self.is_changed() and not self.is_retry_due():
            self._chosen = self.good.definitions
            return self._chosen
        self._stamps = self._stamps_now()  # before they are read: a later change is noticed
        self._retry_at = self._clock() + RETRY_S
        self._present = self._chosen = None
        self._present = self._chosen = checked_definitions(self._project)
        return self._chosen

    def is_changed(self) -> bool:
        """Whether files have changed since they were last read."""
        return self._stamps != self._stamps_now()

    def is_retry_due(self) -> bool:
        return self.broken is not None and self._clock() >= self._retry_at

    def reject(self, error: DefinitionError) -> bool:
        """Those chosen are wrong. Returns whether there are others to run."""
        if _are_same(self._chosen, self._present):
            self._broken_since = self._broken_since if self.broken is not None else _now()
            self.broken = error
        return self.good is not None and not _are_same(self._chosen, self.good.definitions)

    def accept(self) -> bool:
        """Spark has resolved those chosen. Returns whether that ends a time of wrong ones."""
        if self._chosen is None or not _are_same(self._chosen, self._present):
            return False
        if self.good is None or not _are_same(self._chosen, self.good.definitions):
            self.good = GoodDefinitions(self._chosen, _now())
            _store(self._project, self.good)
        is_repaired, self.broken = self.broken is not None, None
        return is_repaired

    def to_json(self) -> dict[str, Any] | None:
        """What is wrong, for the status file; None if nothing is."""
        if self.broken is None:
            return None
        return {
            "since": self._broken_since,
            "running": None if self.good is None else self.good.since,
            "mistakes": [
                {"file": one.file, "line": one.line, "flow": one.flow, "what": one.what} for one in self.broken.mistakes
            ],
        }

    def _stamps_now(self) -> Stamps:
        found: Stamps = {}
        for pattern in self._project.libraries:
            for path in self._project.matching(pattern):
                try:
                    facts = path.stat()
                except FileNotFoundError:  # while an editor replaces it
                    continue
                found[path] = (facts.st_mtime_ns, facts.st_size)
        return found


def _are_same(one: Definitions | None, other: Definitions | None) -> bool:
    return one is other or (one is not None and other is not None and one.files == other.files)


# -- the stored ones --------------------------------------------------------------------


def load_good(project: PipelineProject) -> GoodDefinitions | None:
    """The stored ones. None if there are none, or they cannot be read: they only help out."""
    try:
        told = json.loads(project.good_definitions_path.read_text(encoding="utf-8"))
        if told["version"] != VERSION:
            return None
        files = {project.root / name: _bytes(text) for name, text in told["files"].items()}
        return GoodDefinitions(Definitions(files), str(told["since"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _store(project: PipelineProject, good: GoodDefinitions) -> None:
    files = {project.relative(file): _text(content) for file, content in good.definitions.files.items()}
    told = {"version": VERSION, "since": good.since, "files": files}
    # Definitions may have passwords in them, and their files may be readable by their owner only.
    replace_text(project.good_definitions_path, json.dumps(told, indent=2) + "\n", mode=0o600)


def _text(content: bytes) -> str:
    """Python may be in any encoding; bytes that are not UTF-8 become surrogates, which JSON can hold."""
    return content.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
