"""Errors of tables.

TableError
+-- NoTable            nothing is there
+-- NotATable          something else is there
+-- UnsupportedTable   the table needs features of Delta that this writer does not have
+-- TableDamaged       the log cannot be read
+-- SchemaMismatch     rows or options that do not fit the table's schema
+-- PositionsMoved     the rows do not begin where the table ends: a gap, or another committer
+-- CommitConflict     other writers were faster in every attempt
+-- TableFailed        the file system refused: permissions, a full disk
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.model.errors import PenstockError


class TableError(PenstockError):
    pass


class NoTable(TableError):
    pass


class NotATable(TableError):
    pass


class UnsupportedTable(TableError):
    pass


class TableDamaged(TableError):
    pass


class SchemaMismatch(TableError):
    pass


class PositionsMoved(TableError):
    """`positions`: where the table ends, for the streams of the commit that it has."""

    def __init__(self, sentence: str, positions: Mapping[str, int]) -> None:
        super().__init__(sentence)
        self.positions = positions


class CommitConflict(TableError):
    pass


class TableFailed(TableError):
    pass


@contextmanager
def file_errors(path: Path, doing: str) -> Iterator[None]:
    """Turns an OSError into one sentence: "cannot <doing> <path>: no space left on device"."""
    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error.filename, str) else str(path)
        reason = os.strerror(error.errno) if error.errno else str(error)  # Arrow's own text is longer
        raise TableFailed(f"cannot {doing} {named}: {reason[:1].lower()}{reason[1:]}") from error
