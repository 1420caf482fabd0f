"""Tables of a pipeline as the files they are, without Spark."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def row_count(directory: Path) -> int | None:
    """Rows of a table that is rewritten as a whole, out of its files' footers; None when there is no such table.

    A streaming table may have files that its log does not count, so this is not for those.
    """
    if not directory.is_dir():
        return None
    parquet: Any = importlib.import_module("pyarrow.parquet")
    return sum(int(parquet.read_metadata(path).num_rows) for path in _data_files(directory))


def _data_files(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*.parquet"):
        if not any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts):
            yield path
