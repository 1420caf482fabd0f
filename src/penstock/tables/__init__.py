"""Tables in an open format (Delta Lake) in a directory, written by one committer and read by anyone meanwhile.

    table.py        Table: open, create, facts, maintenance, time
    changes.py      append, replace, merge, evolve
    view.py         a version of a table, to be read
    snapshot.py     the files of a version, and those that versions added
    staging.py      rows that one process writes and another one commits
    positions.py    up to where a table has each stream: what is new, what is a replay, what is a gap
    schema.py       types, and what may change in a schema
    conform.py      rows in the types of the table; reading.py: rows of its files
    files.py        data files: Parquet, by partition, flushed to disk
    commits.py      a change becomes a version, tried until it is in the log
    merging.py      upserts and deletes by key
    compaction.py   which small files are merged
    retention.py    old versions and the files that only they need
    checkpoint.py   checkpoints, by delta-rs
    log.py          the files of `_delta_log`; state.py: what they add up to; actions.py: their lines
    durable.py      flushing files and directories
    errors.py

This is the only package that imports delta-rs (`deltalake`). It knows nothing of topics and Spark.
"""

from __future__ import annotations

from penstock.tables.errors import (
    CommitConflict,
    NoTable,
    NotATable,
    PositionsMoved,
    SchemaMismatch,
    TableDamaged,
    TableError,
    TableFailed,
    UnsupportedTable,
)
from penstock.tables.positions import Span
from penstock.tables.reading import read_file
from penstock.tables.retention import Expired
from penstock.tables.schema import Breaking, Evolution
from penstock.tables.snapshot import Additions, Snapshot
from penstock.tables.staging import StagedRows, stage
from penstock.tables.table import Committed, Compacted, HistoryEntry, Table
from penstock.tables.view import View

__all__ = [
    "Additions",
    "Breaking",
    "CommitConflict",
    "Committed",
    "Compacted",
    "Evolution",
    "Expired",
    "HistoryEntry",
    "NoTable",
    "NotATable",
    "PositionsMoved",
    "SchemaMismatch",
    "Snapshot",
    "Span",
    "StagedRows",
    "Table",
    "TableDamaged",
    "TableError",
    "TableFailed",
    "UnsupportedTable",
    "View",
    "read_file",
    "stage",
]
