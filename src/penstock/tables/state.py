"""What the entries of a log add up to at one version: schema, files, positions.

`replay` alone changes it; the same code runs when a table is opened, after our commits, and for the commits of others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.tables.actions import READER_VERSION, WRITER_VERSION, AddFile, Line, Metadata, Protocol
from penstock.tables.errors import TableDamaged, UnsupportedTable
from penstock.tables.log import TableLog

_FEATURES_READER, _FEATURES_WRITER = 3, 7
KNOWN_FEATURES = frozenset(("appendOnly", "invariants"))
"""Of writer version 2: the first is obeyed, and columns with the second are refused."""
_INVARIANTS = "delta.invariants"
_APPEND_ONLY = "delta.appendOnly"


@dataclass(slots=True)
class TableState:
    version: int = -1
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    files: dict[str, AddFile] = field(default_factory=dict)
    """The active files by path, oldest first."""
    positions: dict[str, int] = field(default_factory=dict)
    timestamp_ms: int = 0
    metadata_version: int = -1
    """The last version that changed the schema or a setting."""
    rows_version: int = -1
    """The last version that changed the rows, other than by adding some."""

    def replay(self, version: int, lines: Iterable[Line]) -> None:
        has_changes = False
        for line in lines:
            if line.add is not None:
                self.files[line.add.path] = line.add
            elif line.remove is not None:
                self.files.pop(line.remove.path, None)
                has_changes |= line.remove.data_change
            elif line.txn is not None:
                self.positions[line.txn.app_id] = line.txn.version
            elif line.meta_data is not None:
                self.metadata, self.metadata_version = line.meta_data, version
            elif line.protocol is not None:
                self.protocol, self.metadata_version = line.protocol, version
            elif isinstance(line.commit_info, dict):
                timestamp = line.commit_info.get("timestamp")
                if isinstance(timestamp, int):
                    self.timestamp_ms = max(self.timestamp_ms, timestamp)
        if has_changes:
            self.rows_version = version
        self.version = version

    @property
    def described(self) -> Metadata:
        assert self.metadata is not None
        return self.metadata

    @property
    def is_append_only(self) -> bool:
        return self.described.configuration.get(_APPEND_ONLY, "").lower() == "true"


def read_state(log: TableLog, version: int | None = None) -> TableState:
    """The newest state, or that of a version. Raises TableDamaged."""
    state = TableState()
    checkpoints = [one for one in log.checkpoints() if version is None or one.version <= version]
    if checkpoints:
        state.replay(checkpoints[-1].version, log.read_checkpoint(checkpoints[-1]))
    for number, lines in log.since(state.version):
        if version is not None and number > version:
            break
        state.replay(number, lines)
    if state.metadata is None or state.protocol is None or (version is not None and state.version != version):
        wanted = "" if version is None else f" of version {version}"
        raise TableDamaged(
            f"{log.directory} lacks entries{wanted}: it has entries {_span(log.versions())} and checkpoints at "
            f"{', '.join(str(one.version) for one in log.checkpoints()) or 'no version'}"
        )
    return state


def check_writable(state: TableState, name: object) -> None:
    """Raises UnsupportedTable."""
    protocol = state.protocol
    assert protocol is not None
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    by_features = (protocol.min_reader_version, protocol.min_writer_version) <= (_FEATURES_READER, _FEATURES_WRITER)
    plain = protocol.min_reader_version <= READER_VERSION and protocol.min_writer_version <= WRITER_VERSION
    named = protocol.min_writer_version == _FEATURES_WRITER and by_features and features <= KNOWN_FEATURES
    if not plain and not named:
        needs = ", ".join(sorted(features - KNOWN_FEATURES)) or f"writer version {protocol.min_writer_version}"
        raise UnsupportedTable(f"{name} was made or changed by another writer of Delta and needs {needs}")
    for column in json.loads(state.described.schema_string)["fields"]:
        if _INVARIANTS in _metadata_of(column):
            raise UnsupportedTable(
                f"{name} was made by another writer of Delta: column {column['name']} has an invariant"
            )


def _metadata_of(column: dict[str, Any]) -> dict[str, Any]:
    found = column.get("metadata")
    return found if isinstance(found, dict) else {}


def _span(versions: list[int]) -> str:
    return f"{versions[0]} to {versions[-1]}" if versions else "none"
