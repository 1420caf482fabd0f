"""The files of `_delta_log`.

    00000000000000000007.json                 the actions of version 7
    00000000000000000100.checkpoint.parquet   all that versions 0 to 100 add up to
    _last_checkpoint                          where to begin reading
    _commit_<hex>.json.tmp                    an entry before it counts; a crash may leave it

Invariants:
- An entry appears complete and flushed, or not at all: it is written aside and linked to its name, which fails if
  another writer has made this version. Data files are flushed before (`files.py`), so no crash leaves an entry without
  its rows.
- A checkpoint is flushed before `_last_checkpoint` names it, and before anything that it replaces is deleted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec

from penstock.tables.actions import Line, decode, encode
from penstock.tables.durable import sync_directory, sync_file
from penstock.tables.errors import TableDamaged, file_errors

NAME = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
UNFINISHED = re.compile(r"_commit_[0-9a-f]+\.json\.tmp")
_COLUMNS = (
    "add.path",
    "add.partitionValues",
    "add.size",
    "add.modificationTime",
    "add.stats",
    "txn",
    "metaData",
    "protocol",
)


class Checkpoint(NamedTuple):
    version: int
    parts: tuple[Path, ...]


class TableLog:
    def __init__(self, table: Path) -> None:
        self.table = table
        self.directory = table / NAME

    @property
    def exists(self) -> bool:
        return self.directory.is_dir() and any(self._numbered())

    def entry(self, version: int) -> Path:
        return self.directory / f"{version:020d}.json"

    def put(self, version: int, lines: Iterable[Line]) -> bool:
        """Makes a version, durable. False if another writer has made it. Raises OSError; then it may be there."""
        aside = self.directory / f"_commit_{uuid4().hex}.json.tmp"
        try:
            with aside.open("xb") as file:
                file.write(encode(lines))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(aside, self.entry(version))
            except FileExistsError:
                return False
        finally:
            aside.unlink(missing_ok=True)
        sync_directory(self.directory)
        return True

    def read(self, version: int) -> list[Line] | None:
        """None if there is no such entry. Raises TableDamaged."""
        path = self.entry(version)
        with file_errors(path, "read"):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            found = decode(content)
        except msgspec.DecodeError as error:
            raise TableDamaged(
                f"{path} is not a log entry of a Delta table ({error}): a power failure may have torn it. If it is the "
                "newest entry, nothing but its own commit is lost by deleting it"
            ) from None
        if not found:
            raise TableDamaged(
                f"{path} is empty: a power failure may have torn it. If it is the newest entry, delete it"
            )
        return found

    def since(self, version: int) -> Iterator[tuple[int, list[Line]]]:
        """The entries after `version`, in order."""
        while (found := self.read(version := version + 1)) is not None:
            yield version, found

    # -- listing --------------------------------------------------------------------------

    def versions(self) -> list[int]:
        """Those whose entries are there."""
        return sorted(int(found[1]) for found in map(_ENTRY.fullmatch, self._names()) if found)

    def checkpoints(self) -> list[Checkpoint]:
        """The complete ones, by version."""
        parts: dict[tuple[int, int], list[Path]] = {}
        for found in filter(None, map(_CHECKPOINT.fullmatch, self._names())):
            parts.setdefault((int(found[1]), int(found[3] or 1)), []).append(self.directory / found[0])
        complete = {version: paths for (version, count), paths in sorted(parts.items()) if len(paths) == count}
        return [Checkpoint(version, tuple(sorted(paths))) for version, paths in sorted(complete.items())]

    def last_checkpoint(self) -> int:
        """The version that `_last_checkpoint` names; -1 if it names none."""
        try:
            told = json.loads((self.directory / LAST_CHECKPOINT).read_bytes())
            return int(told["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1  # it only saves a listing

    def _names(self) -> list[str]:
        with file_errors(self.directory, "read"):
            return os.listdir(self.directory)

    def _numbered(self) -> Iterator[str]:
        return (name for name in self._names() if _ENTRY.fullmatch(name) or _CHECKPOINT.fullmatch(name))

    # -- checkpoints ----------------------------------------------------------------------

    def read_checkpoint(self, checkpoint: Checkpoint) -> Iterator[Line]:
        """Its actions, without tombstones. Raises TableDamaged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for path in checkpoint.parts:
            try:
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(columns=list(_COLUMNS)):
                        for row in batch.to_pylist():
                            yield _line(row)
            except (OSError, pa.ArrowException, msgspec.ValidationError) as error:
                raise TableDamaged(f"{path} is not a checkpoint of a Delta table: {error}") from None

    def publish_checkpoint(self, version: int, made: Path, told: bytes) -> None:
        """Puts a checkpoint file in place, and `told` as `_last_checkpoint`."""
        sync_file(made)
        with suppress(FileExistsError):  # the same
            os.link(made, self.directory / f"{version:020d}.checkpoint.parquet")
        sync_directory(self.directory)
        if version <= self.last_checkpoint():
            return
        aside = self.directory / f"_commit_{uuid4().hex}.json.tmp"
        with aside.open("xb") as file:
            file.write(told)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.directory / LAST_CHECKPOINT)
        sync_directory(self.directory)


def _line(row: dict[str, object]) -> Line:
    found = {name: value for name, value in row.items() if value is not None}
    if "add" in found:
        found["add"] = {"dataChange": False, **_without_nulls(found["add"])}
    for name in ("txn", "metaData", "protocol"):
        if name in found:
            found[name] = _without_nulls(found[name])
    return msgspec.convert(found, Line)


def _without_nulls(value: object) -> dict[str, object]:
    """Arrow has maps as lists of pairs."""
    assert isinstance(value, dict)
    plain: dict[str, object] = {}
    for name, one in value.items():
        if name in ("partitionValues", "configuration", "options"):
            plain[name] = dict(one or ())
        elif name == "format":
            plain[name] = _without_nulls(one)
        elif one is not None:
            plain[name] = one
    return plain
