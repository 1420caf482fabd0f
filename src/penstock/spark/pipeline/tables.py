"""The files of a pipeline's tables, without Spark."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def row_count(directory: Path) -> int | None:
    """The rows of a table that is completely rewritten, from the footers of its files; None if there is no table.

    Not for streaming tables: they may have files that are not in their log.
    """
    if not directory.is_dir():
        return None
    parquet: Any = importlib.import_module("pyarrow.parquet")
    return sum(int(parquet.read_metadata(path).num_rows) for path in _data_files(directory))


def _data_files(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*.parquet"):
        if not any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts):
            yield path
