"""Old versions end: their log entries are deleted, and the data files that only they need.

What is kept: the version that was current at the given time, with a checkpoint to begin from, and everything after it.
Files that no version names were left by writers that were killed. Those younger than `UNFINISHED_S` may belong to one
that is at work.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from penstock.tables.checkpoint import PLACE, write_checkpoint
from penstock.tables.durable import sync_directory
from penstock.tables.errors import file_errors
from penstock.tables.log import NAME as LOG
from penstock.tables.log import UNFINISHED, TableLog
from penstock.tables.state import TableState, read_state

UNFINISHED_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Expired:
    oldest_version: int
    """That can still be read."""
    entries: int
    files: int
    size_bytes: int


def expire(log: TableLog, before_ms: int, unfinished_s: float = UNFINISHED_S, keep_from: int | None = None) -> Expired:
    """Versions that were replaced before `before_ms` end, but not `keep_from` and younger ones. Raises TableFailed,
    TableDamaged.
    """
    with file_errors(log.table, "expire old versions of"):
        oldest = _oldest_kept(log, before_ms, keep_from)
        if oldest > 0 and all(one.version != oldest for one in log.checkpoints()):
            write_checkpoint(log, oldest)
        kept = _named_since(log, oldest)
        replaced = _removed_until(log, oldest) - kept
        entries = _delete_entries(log, oldest)
        files, size_bytes = _delete_files(log.table, kept, replaced, time.time() - unfinished_s)
        _delete_unfinished(log, time.time() - unfinished_s)
    return Expired(oldest, entries, files, size_bytes)


def _oldest_kept(log: TableLog, before_ms: int, keep_from: int | None) -> int:
    """The newest version that was current at that time, if it can be read; else the oldest that can be read."""
    checkpoints = [one.version for one in log.checkpoints()]
    versions = log.versions()
    readable = 0 if versions and versions[0] == 0 else min(checkpoints, default=0)
    found = readable
    for version in versions:
        if version < readable:
            continue
        if keep_from is not None and version > keep_from:
            break
        lines = log.read(version) or []
        stamps = [line.commit_info.get("timestamp") for line in lines if isinstance(line.commit_info, dict)]
        stamp = next((one for one in stamps if isinstance(one, int)), None)
        if stamp is None:
            stamp = round(log.entry(version).stat().st_mtime * 1000)
        if stamp > before_ms:
            break
        found = version
    return found


def _named_since(log: TableLog, oldest: int) -> set[str]:
    """The paths of all files that the version `oldest` and later ones name."""
    state: TableState = read_state(log, oldest)
    named = set(state.files)
    for _, lines in log.since(oldest):
        named.update(line.add.path for line in lines if line.add is not None)
    return {unquote(path) for path in named}


def _removed_until(log: TableLog, oldest: int) -> set[str]:
    """The paths of files that versions up to `oldest` replaced, as far as their entries are there."""
    entries = (log.read(version) or () for version in log.versions() if version <= oldest)
    return {unquote(line.remove.path) for lines in entries for line in lines if line.remove is not None}


def _delete_files(table: Path, kept: set[str], replaced: set[str], unfinished_before_s: float) -> tuple[int, int]:
    """Returns the number and size of the deleted files."""
    count = size_bytes = 0
    for path in _data_files(table):
        name = str(path.relative_to(table))
        if name in kept:
            continue
        with suppress(FileNotFoundError):
            found = path.stat()
            if name in replaced or found.st_mtime < unfinished_before_s:
                path.unlink()
                count, size_bytes = count + 1, size_bytes + found.st_size
    return count, size_bytes


def _data_files(table: Path) -> Iterator[Path]:
    for place, directories, names in os.walk(table):
        # A partition column may begin with an underscore; other directories of that kind are not ours.
        if place != str(table) and LOG in directories:  # another table, which knows its files itself
            directories.clear()
            continue
        directories[:] = [name for name in directories if not name.startswith((".", "_")) or "=" in name]
        yield from (
            Path(place, name) for name in names if name.endswith(".parquet") and not name.startswith((".", "_"))
        )


def _delete_entries(log: TableLog, oldest: int) -> int:
    """Those before the checkpoint of `oldest`; from the oldest on, so that a crash leaves no hole."""
    gone = [log.entry(version) for version in log.versions() if version < oldest]
    parts = [part for one in log.checkpoints() if one.version < oldest for part in one.parts]
    for path in (*gone, *parts):
        path.unlink(missing_ok=True)
    sync_directory(log.directory)
    return len(gone)


def _delete_unfinished(log: TableLog, before_s: float) -> None:
    """What writers left that were killed: log entries that never counted, and copies of the log for checkpoints."""
    scratch = log.table / PLACE
    aside = [log.directory / name for name in os.listdir(log.directory) if UNFINISHED.fullmatch(name)]
    for path in (*aside, *(scratch.iterdir() if scratch.is_dir() else ())):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < before_s:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
