"""Dumps the files of a log for people, and checks them.

Knows the disk formats and no disk: the caller provides something to read from. Never writes, never trusts a length,
and does not stop at damage: a problem is one more finding, and reading continues at the next valid place.
The log may grow meanwhile; indexes are compared with the log as it is when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import Protocol, TypeAlias

from crc32c import crc32c

from penstock.model.errors import ApiError
from penstock.records.batch import (
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    add_sequence,
)
from penstock.records.builder import MalformedRecords, Record, iterate_records
from penstock.records.compression import NAMES, decompress
from penstock.records.control import CONTROL_KEY
from penstock.storage.producers.producer_snapshot import SNAPSHOT_ENTRY, SNAPSHOT_HEAD, read_our_part
from penstock.storage.producers.transaction_index import ENTRY as ABORTED_ENTRY
from penstock.storage.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY

PROBLEM = "problem"
TORN = "torn"
_CHUNK_BYTES = 1 << 20
_MAX_BATCH_BYTES = 1 << 30  # a length beyond it is damage
_CONTROL_TYPES = {0: "abort", 1: "commit", 2: "leader-change"}

Fields: TypeAlias = dict[str, object]


class DumpedFile(Protocol):
    """A file with positioned reads; a short result means its end."""

    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Finding:
    """One item in a file. A `problem` has its message under "reason"."""

    kind: str
    position: int
    fields: Fields = field(default_factory=dict)


def problem(position: int, reason: str) -> Finding:
    return Finding(PROBLEM, position, {"reason": reason})


# -- batches -------------------------------------------------------------------------------------------------


def dump_batches(
    file: DumpedFile,
    base_offset: int,
    *,
    with_records: bool,
    is_metadata: bool = False,
    pause: Callable[[], None] = lambda: None,
) -> Iterator[Finding]:
    """Yield every batch of a `.log` file, and its records if requested.

    A batch that looks torn is read again after a `pause`, because a running broker may be writing it.
    """
    position, expected = 0, base_offset
    while position < (end := file.size()):
        header, reason = _header_at(file, position, end)
        if header is None and reason.startswith(TORN):
            pause()
            header, reason = _header_at(file, position, end := file.size())
        if header is None:
            yield problem(position, reason)
            position = _next_sound_batch(file, position + 1, end)
            if position < end:
                yield Finding("skipped", position, {"reason": f"reading continues at position {position}"})
            continue
        crc_is_ok = _checksum(file, position, header.size_bytes) == header.crc
        yield Finding("batch", position, _batch_fields(header, crc_is_ok))
        if not crc_is_ok:
            yield problem(position, "checksum does not match")
        if header.base_offset < expected or header.last_offset_delta < 0:
            yield problem(
                position, f"offsets {header.base_offset} to {header.last_offset} where {expected} should come"
            )
        elif crc_is_ok:
            expected = header.next_offset
        if with_records and crc_is_ok:
            yield from _records(file, position, header, is_metadata)
        position += header.size_bytes


def _header_at(file: DumpedFile, position: int, end: int) -> tuple[BatchHeader | None, str]:
    """Return the header, or None and the reason why there is none."""
    data = file.read(position, HEADER_SIZE)
    if len(data) < HEADER_SIZE:
        return None, f"{TORN}: {end - position} bytes are too few for a batch header"
    header = BatchHeader._make(HEADER.unpack(data))
    if header.magic != MAGIC:
        return None, f"no batch: magic {header.magic}"
    if not HEADER_SIZE <= header.size_bytes <= _MAX_BATCH_BYTES:
        return None, f"no batch: length {header.batch_length}"
    # The file may have grown since `end` was read.
    if position + header.size_bytes > end and position + header.size_bytes > (end := file.size()):
        return None, f"{TORN}: a batch of {header.size_bytes} bytes, only {end - position} remain"
    return header, ""


def _checksum(file: DumpedFile, position: int, size: int) -> int:
    crc, at, end = 0, position + CRC_START, position + size
    while at < end:
        data = file.read(at, min(_CHUNK_BYTES, end - at))
        if not data:
            return -1
        crc = crc32c(data, crc)
        at += len(data)
    return crc


def _next_sound_batch(file: DumpedFile, position: int, end: int) -> int:
    """The first position from `position` on with a batch whose checksum matches; `end` if there is none."""
    magic = bytes((MAGIC,))
    while position + HEADER_SIZE <= end:
        chunk = file.read(position, _CHUNK_BYTES)
        at = chunk.find(magic, 16)
        while 0 <= at <= len(chunk) - (HEADER_SIZE - 16):
            header, _ = _header_at(file, position + at - 16, end)
            if (
                header is not None
                and 0 < header.record_count == header.last_offset_delta + 1
                and _checksum(file, position + at - 16, header.size_bytes) == header.crc
            ):
                return position + at - 16
            at = chunk.find(magic, at + 1)
        if len(chunk) < _CHUNK_BYTES:
            break
        position += len(chunk) - HEADER_SIZE
    return end


def _batch_fields(header: BatchHeader, crc_is_ok: bool) -> Fields:
    flags = [
        name
        for name, is_set in (
            ("transactional", header.is_transactional),
            ("control", header.is_control),
            ("delete-horizon", bool(header.attributes & DELETE_HORIZON_BIT)),
        )
        if is_set
    ]
    codec = header.compression
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "size": header.size_bytes,
        "timestamp_type": "LogAppendTime" if header.attributes & TIMESTAMP_TYPE_BIT else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "codec": NAMES[codec] if codec < len(NAMES) else f"unknown-{codec}",
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": add_sequence(header.base_sequence, max(header.last_offset_delta, 0)),
        "leader_epoch": header.leader_epoch,
        "flags": flags,
        "crc": header.crc,
        "crc_ok": crc_is_ok,
    }


def _records(file: DumpedFile, position: int, header: BatchHeader, is_metadata: bool) -> Iterator[Finding]:
    data = file.read(position + HEADER_SIZE, header.size_bytes - HEADER_SIZE)
    try:
        for record in iterate_records(header, decompress(header.compression, data)):
            yield Finding("record", position, _record_fields(header, record, is_metadata))
    except (ApiError, MalformedRecords) as error:
        yield problem(position, f"records: {error}")


def _record_fields(header: BatchHeader, record: Record, is_metadata: bool) -> Fields:
    fields: Fields = {
        "offset": record.offset,
        "timestamp": header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else record.timestamp_ms,
        "key": record.key,
        "value": record.value,
        "headers": list(record.headers),
    }
    if header.is_control and record.key is not None and len(record.key) >= CONTROL_KEY.size:
        kind = CONTROL_KEY.unpack_from(record.key)[1]
        fields["control"] = _CONTROL_TYPES.get(kind, f"type-{kind}")
    elif is_metadata and record.value is not None:
        with suppress(ValueError, RecursionError):  # Kafka's own metadata log: shown as bytes
            fields["metadata"] = json.loads(record.value)
    return fields


# -- indexes -------------------------------------------------------------------------------------------------


def dump_offset_index(file: DumpedFile, base_offset: int, log: DumpedFile | None) -> Iterator[Finding]:
    """Yield the entries of an `.index` file. With the log, each must point to the batch that ends with its offset."""
    before = (-1, -1)
    for at, (relative, position) in _entries(file, OFFSET_ENTRY):
        if at and relative == 0:
            yield Finding("unused", at, {"size": file.size() - at})  # preallocated by Kafka
            break
        offset = base_offset + relative
        yield Finding("offset-entry", at, {"offset": offset, "log_position": position})
        if (relative, position) <= before or position <= before[1]:
            yield problem(at, f"offset {offset} at {position} is not above the previous entry")
        before = (relative, position)
        if log is not None:
            header, reason = _header_at(log, position, log.size())
            if header is None:
                yield problem(at, f"points to {position} in the log: {reason}")
            elif header.last_offset != offset:
                yield problem(
                    at,
                    f"has offset {offset}, the batch at {position} has {header.base_offset} to {header.last_offset}",
                )
    yield from _check_whole_entries(file, OFFSET_ENTRY)


def dump_time_index(
    file: DumpedFile, base_offset: int, log: DumpedFile | None, index: DumpedFile | None
) -> Iterator[Finding]:
    """Yield the entries of a `.timeindex` file. With the log, each must name a batch and its largest timestamp."""
    before = (-1, -1)
    for at, (timestamp, relative) in _entries(file, TIME_ENTRY):
        if at and timestamp == 0 and relative == 0:
            yield Finding("unused", at, {"size": file.size() - at})
            break
        offset = base_offset + relative
        yield Finding("time-entry", at, {"timestamp": timestamp, "offset": offset})
        if timestamp <= before[0] or relative < before[1]:
            yield problem(at, f"timestamp {timestamp} of offset {offset} is not above the previous entry")
        before = (timestamp, relative)
        if log is not None:
            reason = _time_entry_problem(log, index, base_offset, timestamp, offset)
            if reason:
                yield problem(at, reason)
    yield from _check_whole_entries(file, TIME_ENTRY)


def _time_entry_problem(
    log: DumpedFile, index: DumpedFile | None, base_offset: int, timestamp: int, offset: int
) -> str:
    position = _floor_position(index, offset - base_offset) if index is not None else 0
    while position < (end := log.size()):
        header, reason = _header_at(log, position, end)
        if header is None:
            return f"the log is damaged before offset {offset}: {reason} at {position}"
        if header.last_offset >= offset:
            if header.last_offset != offset:
                return f"no batch ends with offset {offset}"
            if header.max_timestamp != timestamp:
                return f"has timestamp {timestamp}, but the batch of offset {offset} has {header.max_timestamp}"
            return ""
        position += header.size_bytes
    return f"the log ends before offset {offset}"


def _floor_position(index: DumpedFile, relative: int) -> int:
    """The log position of the last entry at or before `relative`, by bisection; the bytes may be damaged."""
    low, high = 0, index.size() // OFFSET_ENTRY.size
    found = 0
    while low < high:
        middle = (low + high) // 2
        data = index.read(middle * OFFSET_ENTRY.size, OFFSET_ENTRY.size)
        if len(data) < OFFSET_ENTRY.size:
            break
        entry, position = OFFSET_ENTRY.unpack(data)
        if entry <= relative and not (middle and entry == 0):
            low, found = middle + 1, position
        else:
            high = middle
    return found


def dump_aborted_transactions(file: DumpedFile) -> Iterator[Finding]:
    """Entries of a `.txnindex` file."""
    for at, (version, producer_id, first, last, stable) in _entries(file, ABORTED_ENTRY):
        if version != 0:
            yield problem(at, f"entry of unsupported version {version}")
            return
        fields: Fields = {
            "producer_id": producer_id,
            "first_offset": first,
            "last_offset": last,
            "last_stable_offset": stable,
        }
        yield Finding("aborted-transaction", at, fields)
        if not 0 <= first <= last:
            yield problem(at, f"first offset {first}, last offset {last}")
    yield from _check_whole_entries(file, ABORTED_ENTRY)


def _entries(file: DumpedFile, entry: Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
    at = 0
    step = _CHUNK_BYTES // entry.size * entry.size
    while data := file.read(at, step):
        whole = len(data) // entry.size * entry.size
        for inside in range(0, whole, entry.size):
            yield at + inside, entry.unpack_from(data, inside)
        if whole < step:
            return
        at += step


def _check_whole_entries(file: DumpedFile, entry: Struct) -> Iterator[Finding]:
    if rest := file.size() % entry.size:
        yield problem(file.size() - rest, f"{rest} bytes after the last entry of {entry.size}")


# -- small files ---------------------------------------------------------------------------------------------


def dump_snapshot(file: DumpedFile) -> Iterator[Finding]:
    """Yield the producers of a `.snapshot` file, even if the checksum does not match."""
    data = file.read(0, file.size())
    if len(data) < SNAPSHOT_HEAD.size:
        yield problem(0, f"{len(data)} bytes are too few for a snapshot")
        return
    version, crc, count = SNAPSHOT_HEAD.unpack_from(data)
    crc_is_ok = crc == crc32c(memoryview(data)[6:])
    yield Finding("snapshot", 0, {"version": version, "count": count, "crc": crc, "crc_ok": crc_is_ok})
    if version != 1:
        yield problem(0, f"snapshot of unsupported version {version}")
        return
    if not crc_is_ok:
        yield problem(2, "checksum does not match")
    end = SNAPSHOT_HEAD.size + count * SNAPSHOT_ENTRY.size
    ours = read_our_part(data, end, count) if SNAPSHOT_HEAD.size <= end <= len(data) else None
    if ours is None:
        yield problem(6, f"{count} entries do not fit a file of {len(data)} bytes")
    names = (
        "producer_id",
        "producer_epoch",
        "last_sequence",
        "last_offset",
        "offset_delta",
        "timestamp",
        "coordinator_epoch",
        "transaction_first_offset",
    )
    last = min(end, len(data)) - SNAPSHOT_ENTRY.size
    for number, at in enumerate(range(SNAPSHOT_HEAD.size, last + 1, SNAPSHOT_ENTRY.size)):
        fields = dict(zip(names, SNAPSHOT_ENTRY.unpack_from(data, at), strict=True))
        if ours is not None and ours[0]:
            fields["earlier_batches"] = [f"{one.first_sequence}@{one.first_offset}" for one in ours[0][number][1]]
        yield Finding("producer", at, fields)
    for decided in ours[1] if ours is not None else ():
        yield Finding("decided-transaction", end, decided._asdict())


def dump_leader_epochs(file: DumpedFile) -> Iterator[Finding]:
    """Yield the lines of a `leader-epoch-checkpoint`: version, number of entries, then epoch and first offset."""
    data = file.read(0, file.size())
    lines = data.split(b"\n")
    numbers: list[int] = []
    at, before = 0, (-1, -1)
    for number, line in enumerate(lines):
        if number == len(lines) - 1 and not line:
            break
        try:
            numbers = [int(word) for word in line.decode("ascii").split()]
        except ValueError:
            yield problem(at, f"line {number + 1} contains text other than numbers")
            return
        if number == 0 and numbers != [0]:
            yield problem(at, f"version {line.decode()}")
        elif number == 1 and numbers != [len(lines) - 3]:
            yield problem(at, f"{line.decode()} entries announced, {len(lines) - 3} there")
        elif number > 1:
            if len(numbers) != 2:
                yield problem(at, f"line {number + 1} is not an epoch and an offset")
                return
            yield Finding("leader-epoch", at, {"epoch": numbers[0], "start_offset": numbers[1]})
            if numbers[0] <= before[0] or numbers[1] <= before[1]:
                yield problem(at, f"epoch {numbers[0]} from {numbers[1]} is not above the previous entry")
            before = (numbers[0], numbers[1])
        at += len(line) + 1
    if len(lines) < 3 or lines[-1]:
        yield problem(at, "the file is incomplete")
