"""A checkpoint of a log, made by delta-rs.

delta-rs writes a checkpoint without flushing it, and a torn one would make the whole table unreadable. So it works in a
copy of the log, made of hard links, and the result is flushed and then linked into the log.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from uuid import uuid4

from penstock.tables.errors import TableDamaged, file_errors
from penstock.tables.log import LAST_CHECKPOINT, NAME, TableLog

PLACE = "_penstock"
"""A hidden directory of the table: readers, and tools that clean up, leave names with an underscore alone."""
PREFIX = "checkpoint-"


def write_checkpoint(log: TableLog, version: int) -> None:
    """Of an existing version. Raises TableFailed, TableDamaged."""
    from deltalake import DeltaTable

    scratch = log.table / PLACE / f"{PREFIX}{uuid4().hex}"
    with file_errors(log.table, "write a checkpoint of"):
        try:
            _copy(log, version, scratch / NAME)
            try:
                DeltaTable(str(scratch)).create_checkpoint()
            except Exception as error:  # delta-rs has many, also bare ones
                raise TableDamaged(f"delta-rs cannot make a checkpoint of {log.table}: {_first_line(error)}") from error
            made = TableLog(scratch)
            written = [one for one in made.checkpoints() if one.version == version]
            if len(written) != 1 or len(written[0].parts) != 1:
                raise TableDamaged(f"delta-rs made no checkpoint of version {version} of {log.table}")
            told = (scratch / NAME / LAST_CHECKPOINT).read_bytes()
            log.publish_checkpoint(version, written[0].parts[0], told)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _copy(log: TableLog, version: int, into: Path) -> None:
    """Links what is needed to read the version."""
    into.mkdir(parents=True)
    checkpoints = [one for one in log.checkpoints() if one.version < version]
    begin = checkpoints[-1].version if checkpoints else 0
    parts = checkpoints[-1].parts if checkpoints else ()
    entries = [log.entry(number) for number in log.versions() if begin <= number <= version]
    for path in (*parts, *entries):
        os.link(path, into / path.name)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
