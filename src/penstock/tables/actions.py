"""The lines of a log entry, as the Delta protocol has them. Fields that this writer does not use are left out.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

READER_VERSION = 1
WRITER_VERSION = 2


class Action(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class Protocol(Action, frozen=True):
    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Format(Action, frozen=True):
    provider: str
    options: dict[str, str]


class Metadata(Action, frozen=True):
    id: str
    format: Format
    schema_string: str
    partition_columns: list[str]
    configuration: dict[str, str]
    name: str | None = None
    description: str | None = None
    created_time: int | None = None


class AddFile(Action, frozen=True):
    path: str
    """Relative to the table, percent-encoded."""
    partition_values: dict[str, str | None]
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None


class RemoveFile(Action, frozen=True):
    path: str
    data_change: bool
    deletion_timestamp: int | None = None
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: int | None = None


class Transaction(Action, frozen=True):
    app_id: str
    version: int
    last_updated: int | None = None


class CommitInfo(Action, frozen=True):
    timestamp: int | None = None
    operation: str | None = None
    operation_parameters: dict[str, Any] | None = None
    operation_metrics: dict[str, Any] | None = None
    engine_info: str | None = None
    is_blind_append: bool | None = None
    positions: dict[str, tuple[int, int]] | None = None
    """Ours: the offsets of each stream that the commit added."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of them is there. The commit info of other writers may have any content."""

    commit_info: Any = msgspec.field(default=None, name="commitInfo")
    protocol: Protocol | None = None
    meta_data: Metadata | None = msgspec.field(default=None, name="metaData")
    txn: Transaction | None = None
    add: AddFile | None = None
    remove: RemoveFile | None = None


_DECODER = msgspec.json.Decoder(Line)
_ENCODER = msgspec.json.Encoder()


def line_of(action: Action) -> Line:
    match action:
        case AddFile():
            return Line(add=action)
        case RemoveFile():
            return Line(remove=action)
        case Transaction():
            return Line(txn=action)
        case Metadata():
            return Line(meta_data=action)
        case Protocol():
            return Line(protocol=action)
        case CommitInfo():
            return Line(commit_info=msgspec.to_builtins(action))
    raise AssertionError(action)


def encode(lines: Iterable[Line]) -> bytes:
    return b"".join(_ENCODER.encode(line) + b"\n" for line in lines)


def decode(entry: bytes) -> list[Line]:
    """Raises msgspec.DecodeError."""
    return [_DECODER.decode(line) for line in entry.splitlines() if line.strip()]


def removal(file: AddFile, now_ms: int, *, data_change: bool) -> RemoveFile:
    return RemoveFile(
        path=file.path,
        data_change=data_change,
        deletion_timestamp=now_ms,
        extended_file_metadata=True,
        partition_values=file.partition_values,
        size=file.size,
    )
