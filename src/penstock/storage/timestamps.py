"""From a timestamp to a record: time index, offset index, headers, and the records of the one batch that matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from penstock.ports.disk import Buffer
from penstock.records.batch import COMPRESSION_MASK, HEADER_SIZE, TIMESTAMP_TYPE_BIT, BatchHeader
from penstock.records.builder import MalformedRecords, Record, iterate_records
from penstock.storage.segment import Segment

Decompress: TypeAlias = Callable[[int, Buffer], Buffer]  # (codec, payload)


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


def first_at_or_after(
    segments: Sequence[Segment], timestamp: int, log_start_offset: int, decompress: Decompress
) -> TimestampOffset | None:
    """The first record at `log_start_offset` or later with at least `timestamp`."""
    for segment in segments:
        segment.load_max_timestamp()
        if segment.max_timestamp < timestamp:
            continue
        # Everything up to this entry is older; the record may be in the very batch it names.
        entry = segment.time_index.floor(0, timestamp)
        if entry is not None and not segment.is_time_entry_true(entry):
            segment.rebuild_indexes()
            entry = segment.time_index.floor(0, timestamp)
        start_offset = max(segment.base_offset + (entry[1] if entry else 0), log_start_offset)
        found = segment.find(start_offset)
        if found is None:
            continue
        for position, header in segment.walk(found[0], segment.size):
            if header.max_timestamp < timestamp or header.last_offset < log_start_offset:
                continue
            for record in _records(segment, position, header, decompress):
                if record.timestamp_ms >= timestamp and record.offset >= log_start_offset:
                    return TimestampOffset(record.timestamp_ms, record.offset)
    return None


def largest(segments: Sequence[Segment], decompress: Decompress) -> TimestampOffset | None:
    """The record with the largest timestamp; of several, the first."""
    best: Segment | None = None
    for segment in segments:
        segment.load_max_timestamp()
        if segment.size and (best is None or segment.max_timestamp > best.max_timestamp):
            best = segment
    if best is None:
        return None
    found = best.find(best.max_timestamp_offset)
    if found is None:
        return None
    position, header = found
    for record in _records(best, position, header, decompress):
        if record.timestamp_ms == header.max_timestamp:
            return TimestampOffset(record.timestamp_ms, record.offset)
    return TimestampOffset(header.max_timestamp, header.last_offset)


def _records(segment: Segment, position: int, header: BatchHeader, decompress: Decompress) -> list[Record]:
    """Empty where a client framed its records wrongly: such a batch has no times."""
    payload: Buffer = segment.file().read(position + HEADER_SIZE, header.size_bytes - HEADER_SIZE)
    codec = header.attributes & COMPRESSION_MASK
    if codec:
        payload = decompress(codec, payload)
    try:
        records = list(iterate_records(header, payload))
    except MalformedRecords:
        return []
    if header.attributes & TIMESTAMP_TYPE_BIT:
        return [record._replace(timestamp_ms=header.max_timestamp) for record in records]
    return records
