"""The definitions of a project: the bytes of its Python and SQL files, read once, and mistakes in them.

Whoever runs definitions, or looks for a line in them, uses the bytes and not the files: `serve` may run an earlier
version than the files have now. This module does not know Spark.
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.spark.pipeline.errors import DefinitionError, Mistake
from penstock.spark.pipeline.events import cause_of
from penstock.spark.pipeline.project import PipelineProject

# SQL that reads a stream or files by path: only the server knows their kind.
_SQL_SOURCE = re.compile(r"\bSTREAM\b|\bread_files\b|\b(?:parquet|json|csv|text|orc)\.`", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Definitions:
    files: Mapping[Path, bytes]
    """In the order in which they are registered."""

    def sql(self, file: Path) -> str:
        """Raises UnicodeDecodeError."""
        return self.files[file].decode("utf-8-sig")

    def has_other_sources(self, file: Path) -> bool:
        """Whether SQL reads something that is neither a topic by name nor, apparently, a table of the pipeline."""
        return _SQL_SOURCE.search(self.files[file].decode(errors="replace")) is not None

    def place_in_sql(self, project: PipelineProject, name: str) -> Place | None:
        """Where SQL creates the table, view or flow."""
        wanted = re.compile(rf"\bCREATE\b[^;]*?[\s.`]{re.escape(name)}`?(?=[\s(;]|\Z)", re.IGNORECASE)
        for file, content in self.files.items():
            if file.suffix == ".sql":
                text = content.decode(errors="replace")
                found = wanted.search(text)
                if found is not None:
                    return Place(project.relative(file), text.count("\n", 0, found.start()) + 1)
        return None

    def mistake_in(self, project: PipelineProject, file: Path, error: BaseException) -> Mistake:
        """The error from reading `file`, as a message for its author."""
        relative = project.relative(file)
        if isinstance(error, SyntaxError):
            return Mistake(f"{error.msg}", relative, error.lineno or 0)
        text = str(error).strip()
        if isinstance(error, UnicodeDecodeError):
            line = self.files[file].count(b"\n", 0, error.start) + 1
            return Mistake(f"it is not UTF-8: {error.reason} at byte {error.start}", relative, line)
        if file.suffix == ".sql":
            return Mistake(_sql_problem(text), relative, self._sql_line(file, text))
        line = next(
            (
                frame.lineno or 0
                for frame in reversed(traceback.extract_tb(error.__traceback__))
                if Path(frame.filename) == file or project.relative(frame.filename) == relative
            ),
            0,
        )
        what = cause_of(text) if text else type(error).__name__
        is_spark = type(error).__module__.startswith("pyspark")
        return Mistake(what if is_spark or not text else f"{type(error).__name__}: {what}", relative, line)

    def _sql_line(self, file: Path, text: str) -> int:
        """Converts Spark's line number, relative to the statement, to a line of the file."""
        within = re.search(r"\(line (\d+), pos \d+\)", text)
        shown = _SQL_TEXT.search(text)
        if within is None or shown is None:
            return 0
        statement = re.sub(r"^-*\^+-*\n?", "", shown[1], flags=re.MULTILINE).rstrip()
        whole = self.files[file].decode(errors="replace")
        start = whole.find(statement)
        return whole.count("\n", 0, start) + int(within[1]) if start >= 0 else 0


_SQL_TEXT = re.compile(r"== SQL ==\n(.*?)(?:\n\s*JVM stacktrace:|\Z)", re.DOTALL)


def _sql_problem(text: str) -> str:
    return re.sub(r"\s*\(line \d+, pos \d+\)", "", cause_of(text))


def read_definitions(project: PipelineProject) -> Definitions:
    """Raises DefinitionError if there are none, or a file cannot be read."""
    files: dict[Path, bytes] = {}
    for file in project.definition_files():
        try:
            files[file] = file.read_bytes()
        except OSError as error:
            raise DefinitionError([Mistake(f"cannot be read: {error.strerror}", project.relative(file))]) from error
    return Definitions(files)


def checked_definitions(project: PipelineProject) -> Definitions:
    """Reads the definitions and checks the syntax of Python, without Spark and without running them.

    Raises DefinitionError with all errors.
    """
    definitions = read_definitions(project)
    mistakes: list[Mistake] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are logged when the files are registered for a run
        for file, content in definitions.files.items():
            if file.suffix == ".py":
                try:
                    compile(content, str(file), "exec", dont_inherit=True)
                except (SyntaxError, ValueError) as error:
                    mistakes.append(definitions.mistake_in(project, file, error))
    if mistakes:
        raise DefinitionError(mistakes)
    return definitions
