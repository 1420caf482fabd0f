"""The rows of a pipeline's tables, without Spark.

A table in the open format has its own log (`penstock.tables`). The rest is for tables of Parquet, which a project from
before has, or a definition asks for. A streaming table may have files of batches that failed. Its log says which are
valid:

    _spark_metadata/<batch>            the files of one batch, a line of JSON for each
    _spark_metadata/<batch>.compact    those of all batches up to this one

A materialized view has no log: all its files count, and each run replaces them.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.model.errors import PenstockError
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.locations import TableLocations
from penstock.spark.pipeline.project import PipelineProject
from penstock.tables import Table, read_file

LOG = "_spark_metadata"
COMPACT = ".compact"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

Rows = Any  # pyarrow comes without types


@dataclass(frozen=True, slots=True)
class NamedTable:
    name: str
    """With catalog and database."""
    directory: Path


def row_count(directory: Path) -> int | None:
    """The rows of a table that is completely rewritten, from the footers of its files; None if there is no table.

    Not for streaming tables: they may have files that are not in their log.
    """
    if not directory.is_dir():
        return None
    if is_open(directory):
        return Table.open(directory).rows
    parquet = _parquet()
    return sum(int(parquet.read_metadata(path).num_rows) for path in _data_files(directory))


def is_open(directory: Path) -> bool:
    """Whether the table is in the open format."""
    return (directory / "_delta_log").is_dir()


def find_table(project: PipelineProject, name: str) -> NamedTable:
    """The table of this name, with or without database and catalog. Raises PipelineError."""
    locations = TableLocations(project)
    known = locations.tables()
    wanted = name.lower().replace("`", "")
    found = [table for table in known if table == wanted or table.endswith(f".{wanted}")]
    if not found:
        names = ", ".join(_short_names(known)) or "no run has written one yet"
        raise PipelineError(f"there is no table {name} (there are: {names})")
    if len(found) > 1:
        raise PipelineError(f"{name} may be {' or '.join(found)}: name one of them")
    directory = locations.directory(found[0].split("."))
    if directory is None:
        raise PipelineError(f"the files of table {found[0]} are not on this machine: read it with Spark")
    if not directory.is_dir():
        raise PipelineError(f"the files of table {found[0]} are not in {directory}, where the last run wrote them")
    return NamedTable(found[0], directory)


def table_directories(project: PipelineProject) -> dict[str, Path]:
    """Of all tables whose files are on this machine; by names without catalog and database where that is enough."""
    locations = TableLocations(project)
    known = locations.tables()
    places = {short: locations.directory(table.split(".")) for table, short in zip(known, _short(known), strict=True)}
    return {name: directory for name, directory in places.items() if directory is not None and directory.is_dir()}


def read_rows(table: NamedTable, limit: int) -> Rows:
    """At most `limit` rows as an Arrow table: of a streaming table the newest, of a view the first.

    Raises PipelineError.
    """
    _parquet()
    if is_open(table.directory):
        return _read_open(table.directory, limit)
    try:
        return _read_rows(table.directory, limit)
    except FileNotFoundError:  # a view that a run replaces
        try:
            return _read_rows(table.directory, limit)
        except FileNotFoundError as error:
            raise PipelineError(f"a run is replacing table {table.name} just now: try again") from error


def _read_open(directory: Path, limit: int) -> Rows:
    import pyarrow as pa

    table = Table.open(directory)
    is_stream = any(stream.startswith("spark-") for stream in table.positions)
    found = table.snapshot()
    files = list(found.files)
    pieces: list[Rows] = []
    missing = limit
    for file in reversed(files) if is_stream else files:
        if missing <= 0:
            break
        rows = pa.Table.from_batches(read_file(directory, file, found.schema), found.schema)
        piece = rows.slice(max(0, rows.num_rows - missing)) if is_stream else rows.slice(0, missing)
        pieces.append(piece)
        missing -= piece.num_rows
    if is_stream:
        pieces.reverse()
    return pa.concat_tables(pieces) if pieces else found.schema.empty_table()


def _read_rows(directory: Path, limit: int) -> Rows:
    import pyarrow as pa

    directory = directory.resolve()
    is_log = (directory / LOG).is_dir()
    files = _valid_files(directory) if is_log else sorted(_data_files(directory))
    pieces: list[Rows] = []
    missing = limit
    for path in reversed(files) if is_log else files:
        if missing <= 0:
            break
        piece = _with_partitions(_some_rows(path, missing, from_end=is_log), path.relative_to(directory).parts[:-1])
        pieces.append(piece)
        missing -= piece.num_rows
    if is_log:
        pieces.reverse()
    # Files that were written before a column was added lack it.
    return pa.concat_tables(pieces, promote_options="permissive") if pieces else pa.table({})


def _some_rows(path: Path, limit: int, *, from_end: bool) -> Rows:
    """Reads only as many row groups as needed, at least one, so that the columns are known."""
    with _parquet().ParquetFile(path, coerce_int96_timestamp_unit="us") as file:  # Spark's default is INT96
        count = file.metadata.num_row_groups
        order = range(count - 1, -1, -1) if from_end else range(count)
        chosen: list[int] = []
        rows = 0
        for group in order:
            chosen.append(group)
            rows += int(file.metadata.row_group(group).num_rows)
            if rows >= limit:
                break
        read = file.read_row_groups(sorted(chosen))
    return read.slice(max(0, read.num_rows - limit)) if from_end else read.slice(0, limit)


def _with_partitions(rows: Rows, parts: Sequence[str]) -> Rows:
    """Values of partition columns are in the names of directories: day=2026-03-01."""
    import pyarrow as pa

    for part in parts:
        name, equals, value = part.partition("=")
        if equals:
            text = None if value == NULL_PARTITION else unquote(value)
            rows = rows.append_column(unquote(name), pa.array([text] * rows.num_rows, pa.string()))
    return rows


def _valid_files(directory: Path) -> list[Path]:
    """The files in the log, in the order in which they were written."""
    found: dict[Path, None] = {}
    for log in _logs(directory / LOG):
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:  # after the version
            entry = json.loads(line)
            path = Path(unquote(urlsplit(str(entry["path"])).path))
            if entry.get("action") == "delete":
                found.pop(path, None)
            else:
                found[path] = None
    files = [path.resolve() for path in found]
    moved = next((path for path in files if not path.is_relative_to(directory)), None)
    if moved is not None:
        raise PipelineError(f"the log of {directory} lists {moved}: the table was written elsewhere; move it back")
    return files


def _logs(directory: Path) -> list[Path]:
    batches = {int(path.name.removesuffix(COMPACT)): path for path in sorted(_named_by_batch(directory))}
    start = max((batch for batch, path in batches.items() if path.name.endswith(COMPACT)), default=0)
    return [path for batch, path in sorted(batches.items()) if batch >= start]


def _named_by_batch(directory: Path) -> Iterator[Path]:
    return (path for path in directory.iterdir() if path.name.removesuffix(COMPACT).isdigit())


def _data_files(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*.parquet"):
        if not any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts):
            yield path


def _short_names(tables: Iterable[str]) -> list[str]:
    return sorted(_short(tables))


def _short(tables: Iterable[str]) -> list[str]:
    """Without catalog and database where that is enough."""
    tables = list(tables)
    last = [table.rpartition(".")[2] for table in tables]
    return [table if last.count(short) > 1 else short for table, short in zip(tables, last, strict=True)]


def _parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise PenstockError("tables are Parquet, and pyarrow is not installed: pip install 'penstock[spark]'") from None
