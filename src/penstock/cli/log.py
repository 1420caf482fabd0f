"""`penstock log dump`: print and verify segments, indexes and snapshots.

It only reads, so it may run on the directory of a running broker. Exit code 1 means that something is corrupt.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType

import click

from penstock.cli.stdout import OutputFailed, give_up, output_errors
from penstock.model.errors import ConfigError
from penstock.storage import dump as files
from penstock.storage.dump import PROBLEM, Fields, Finding
from penstock.storage.files import INDEX, LEFTOVERS, LOG, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX
from penstock.storage.leader_epochs import FILE_NAME as LEADER_EPOCHS

SUFFIXES = (LOG, INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT)
WRITE_PAUSE_S = 0.1
METADATA_DIRECTORY = "__cluster_metadata-0"


@click.group()
def log() -> None:
    """Print and verify log segments and indexes."""


@log.command("dump")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.option("--records", is_flag=True, help="Decode the records too: keys, values, headers.")
@click.option(
    "--max",
    "max_bytes",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Show at most this number of bytes of a key, value or header; 0 shows all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def dump_command(paths: tuple[str, ...], records: bool, max_bytes: int, as_json: bool) -> None:
    """Print and verify log files: batches with their checksums, index entries against the log.

    FILE is a .log, .index, .timeindex, .txnindex or .snapshot file, a leader-epoch-checkpoint, a partition's
    directory or a broker's data directory. The exit code is 1 if something is corrupt.
    """
    show = JsonLines(max_bytes) if as_json else TextLines(max_bytes)
    problems = 0
    for path in _expand(paths):
        try:
            for finding in _findings(path, records):
                problems += finding.kind == PROBLEM
                _write(show.line(path, finding))
        except FileNotFoundError:
            if path in paths:
                raise ConfigError(f"{path} was deleted meanwhile") from None
            # A running broker deletes old segments.
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if problems:
        click.echo(f"penstock: found {problems} problem{'s' * (problems > 1)}", err=True)
        sys.exit(1)


def _write(line: str) -> None:
    try:
        with output_errors():  # distinct from errors of the file
            click.echo(line)
    except OutputFailed as error:
        give_up()
        raise ConfigError(str(error)) from error  # exit code 1 would mean corruption


# -- files ---------------------------------------------------------------------------------------------------


class ReadOnlyFile:
    """A file that is opened read-only and read at given positions."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (data := os.pread(self._fd, size, position)):
            parts.append(data)
            position += len(data)
            size -= len(data)
        return b"".join(parts)

    def __enter__(self) -> ReadOnlyFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)


def _expand(paths: tuple[str, ...]) -> list[str]:
    """The files that the arguments name. Raises ConfigError before anything is printed."""
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            inside = _files_of(path)
            if not inside:
                raise ConfigError(f"{path} holds no log files")
            found += inside
        elif not os.path.exists(path):
            raise ConfigError(f"{path}: there is no such file")
        elif not os.path.isfile(path):
            raise ConfigError(f"{path} is not a regular file")
        elif not _is_known(path):
            raise ConfigError(f"{path}: not a log file ({', '.join(SUFFIXES)} or {LEADER_EPOCHS})")
        else:
            found.append(path)
    return found


def _files_of(directory: str) -> list[str]:
    """The files of a partition, or of all partitions of a data directory."""
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise ConfigError(f"cannot read {directory}: {error.strerror}") from error
    found = [os.path.join(directory, name) for name in names if _is_known(name)]
    found = [path for path in found if os.path.isfile(path)]
    for name in names:
        inside = os.path.join(directory, name)
        if name.rpartition("-")[2].isdigit() and os.path.isdir(inside):
            found += [path for path in _files_of(inside) if os.path.isfile(path)]
    return found


def _is_known(path: str) -> bool:
    name = os.path.basename(path)
    return name == LEADER_EPOCHS or _suffix(name) in SUFFIXES


def _suffix(name: str) -> str:
    for leftover in LEFTOVERS:
        name = name.removesuffix(leftover)
    return os.path.splitext(name)[1]


def _findings(path: str, with_records: bool) -> Iterator[Finding]:
    directory, name = os.path.split(os.path.abspath(path))
    stem = name.partition(".")[0]
    base_offset = int(stem) if stem.isascii() and stem.isdigit() else 0
    with ReadOnlyFile(path) as file:
        yield Finding("file", 0, {"size": file.size()})
        if name == LEADER_EPOCHS:
            yield from files.dump_leader_epochs(file)
            return
        suffix = _suffix(name)
        if suffix == LOG:
            is_metadata = os.path.basename(directory) == METADATA_DIRECTORY
            yield from files.dump_batches(
                file,
                base_offset,
                with_records=with_records or is_metadata,
                is_metadata=is_metadata,
                pause=lambda: time.sleep(WRITE_PAUSE_S),
            )
        elif suffix == SNAPSHOT:
            yield from files.dump_snapshot(file)
        elif suffix == TRANSACTION_INDEX:
            yield from files.dump_aborted_transactions(file)
        else:
            yield from _index_findings(file, path, suffix, base_offset)


def _index_findings(file: ReadOnlyFile, path: str, suffix: str, base_offset: int) -> Iterator[Finding]:
    """Verifies an index against the log beside it. Without that log the entries are only printed."""
    directory, name = os.path.split(path)
    log_path = os.path.join(directory, name.replace(suffix, LOG))
    if not os.path.isfile(log_path):
        yield Finding("note", 0, {"reason": f"{os.path.basename(log_path)} is missing: entries are not verified"})
        if suffix == INDEX:
            yield from files.dump_offset_index(file, base_offset, None)
        else:
            yield from files.dump_time_index(file, base_offset, None, None)
        return
    with ReadOnlyFile(log_path) as log_file:
        if suffix == INDEX:
            yield from files.dump_offset_index(file, base_offset, log_file)
            return
        index_path = os.path.join(directory, name.replace(suffix, INDEX))
        if not os.path.isfile(index_path):
            yield from files.dump_time_index(file, base_offset, log_file, None)
            return
        with ReadOnlyFile(index_path) as index_file:
            yield from files.dump_time_index(file, base_offset, log_file, index_file)


# -- lines ---------------------------------------------------------------------------------------------------


class JsonLines:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def line(self, path: str, finding: Finding) -> str:
        shown = {name: self._plain(value) for name, value in finding.fields.items()}
        if "metadata" in shown:
            del shown["value"]
        return json.dumps({"file": path, "kind": finding.kind, "position": finding.position, **shown})

    def _plain(self, value: object) -> object:
        """Bytes as text if they are UTF-8, else as {"hex": ...}."""
        if isinstance(value, list):
            return [self._plain(item) for item in value]
        if isinstance(value, tuple):
            return [self._plain(item) for item in value]
        if not isinstance(value, bytes):
            return value
        text, is_text = _shown(value, self._max_bytes)
        return text if is_text else {"hex": text}


class TextLines:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def line(self, path: str, finding: Finding) -> str:
        fields, position = finding.fields, finding.position
        match finding.kind:
            case "file":
                return f"{path}  {fields['size']} bytes"
            case "problem":
                return f"CORRUPT  {path} at position {position}: {fields['reason']}"
            case "note" | "skipped":
                return f"  {fields['reason']}"
            case "batch":
                return f"  {_batch_text(position, fields)}"
            case "record":
                return f"    {self._record_text(fields)}"
            case "unused":
                return f"  unused  {fields['size']} preallocated bytes from position {position}"
        words = [f"{name.replace('_', ' ')} {_time_or_number(name, value)}" for name, value in fields.items()]
        return f"  {finding.kind}  position {position}  {'  '.join(words)}"

    def _record_text(self, fields: Fields) -> str:
        words = [f"record {fields['offset']}", _time(fields["timestamp"])]
        if "metadata" in fields:
            return "  ".join([*words, json.dumps(fields["metadata"])])
        if "control" in fields:
            words.append(f"control {fields['control']}")
        words += [f"key {self._bytes(fields['key'])}", f"value {self._bytes(fields['value'])}"]
        headers = fields["headers"]
        if isinstance(headers, list) and headers:
            words.append("headers " + ", ".join(f"{json.dumps(name)}: {self._bytes(value)}" for name, value in headers))
        return "  ".join(words)

    def _bytes(self, value: object) -> str:
        if not isinstance(value, bytes):
            return "null"
        text, is_text = _shown(value, self._max_bytes)
        return json.dumps(text, ensure_ascii=False) if is_text else f"0x{text}"


def _batch_text(position: int, fields: Fields) -> str:
    kind = "appended" if fields["timestamp_type"] == "LogAppendTime" else "created"
    words = [
        f"batch {fields['base_offset']}..{fields['last_offset']}",
        f"count {fields['count']}",
        f"position {position}",
        f"size {fields['size']}",
        f"{kind} {_time(fields['base_timestamp'])} to {_time(fields['max_timestamp'])}",
        f"codec {fields['codec']}",
    ]
    if fields["producer_id"] != -1:
        words.append(
            f"producer {fields['producer_id']} epoch {fields['producer_epoch']} "
            f"sequence {fields['base_sequence']}..{fields['last_sequence']}"
        )
    words.append(f"leader epoch {fields['leader_epoch']}")
    flags = fields["flags"]
    if isinstance(flags, list) and flags:
        words.append(" ".join(flags))
    words.append("crc ok" if fields["crc_ok"] else "crc BAD")
    return "  ".join(words)


def _shown(value: bytes, max_bytes: int) -> tuple[str, bool]:
    """(text, True) for UTF-8, else (hex, False). Long values are cut and end in "..."."""
    is_cut = 0 < max_bytes < len(value)
    mark = "..." if is_cut else ""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return (value[:max_bytes] if is_cut else value).hex() + mark, False
    return (value[:max_bytes].decode(errors="ignore") if is_cut else text) + mark, True


def _time_or_number(name: str, value: object) -> str:
    if name == "timestamp":
        return _time(value)
    return ("ok" if value else "BAD") if name == "crc_ok" else str(value)


def _time(timestamp_ms: object) -> str:
    if not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms < 253_402_300_800_000:
        return str(timestamp_ms)  # no timestamp, or beyond the year 9999
    seconds, ms = divmod(timestamp_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"
