"""Distinguishes a torn tail of the metadata log, which recovery cuts, from damage, which it must not cut.

Every entry says how much of the log was stable when it was written (record header `stable`). Suppose a place cannot be
read, and an intact entry after it was written when that place was already stable. Then stable bytes have changed, and
cutting there would silently lose topics. Entries without the header come from a broker that made each entry stable
before the next.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from penstock.model.errors import CorruptBatch, StorageError
from penstock.ports.disk import Disk
from penstock.records.batch import CRC_START, HEADER_SIZE, BatchHeader, iterate_headers, read_header
from penstock.records.builder import MalformedRecords, iterate_records
from penstock.storage.files import LOG, read_whole

STABLE_HEADER = "stable"
_MAGIC_AT = 16


def refuse_damage(disk: Disk, directory: str) -> None:
    """Reads the whole log. Raises StorageError."""
    if not disk.is_directory(directory):
        return
    names = [name for name in disk.list_directory(directory) if name.endswith(LOG) and name[: -len(LOG)].isdigit()]
    end_offset: int | None = None
    for number, name in enumerate(names):
        path, base_offset = f"{directory}/{name}", int(name[: -len(LOG)])
        if end_offset is not None and base_offset != end_offset:
            complaint = f"{directory}: offsets {end_offset} to {base_offset} are missing"
            _refuse_if_stable(disk, directory, names[number:], end_offset, complaint)
            return
        data = memoryview(read_whole(disk, path) or b"")
        end, end_offset = 0, base_offset
        try:
            for at, header in iterate_headers(data, path):
                end, end_offset = at + header.size_bytes, header.next_offset
        except CorruptBatch as damage:
            _refuse_if_proven(data[end + 1 :], end_offset, str(damage))
            _refuse_if_stable(disk, directory, names[number + 1 :], end_offset, str(damage))
            return


def _refuse_if_stable(disk: Disk, directory: str, names: list[str], lost_offset: int, complaint: str) -> None:
    for name in names:
        _refuse_if_proven(memoryview(read_whole(disk, f"{directory}/{name}") or b""), lost_offset, complaint)


def _refuse_if_proven(data: memoryview, lost_offset: int, complaint: str) -> None:
    for header, payload in _sound_batches(data):
        if _stable_offset(header, payload) > lost_offset:
            raise StorageError(
                f"{complaint}; later records show that this part of the log was already stable, so this is damage and "
                "not a torn tail: restore the metadata log from a copy of the data directory"
            )


def _stable_offset(header: BatchHeader, payload: memoryview) -> int:
    """The stable offset when this batch was written."""
    try:
        for record in iterate_records(header, payload):
            for name, value in record.headers:
                if name == STABLE_HEADER and value is not None and value.isdigit():
                    return int(value)
    except MalformedRecords:
        pass  # its checksum matches: a batch of another writer, treated like one of an old broker
    return header.base_offset


def _sound_batches(data: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Whole batches with a matching checksum, wherever in `data` they begin."""
    raw = bytes(data)
    magic = raw.find(b"\2", _MAGIC_AT)
    while magic >= 0:
        start = magic - _MAGIC_AT
        if len(raw) - start < HEADER_SIZE:
            return
        header = read_header(raw, start)
        end = start + header.size_bytes
        if HEADER_SIZE <= header.size_bytes <= len(raw) - start and crc32c(raw[start + CRC_START : end]) == header.crc:
            yield header, memoryview(raw)[start + HEADER_SIZE : end]
            magic = end + _MAGIC_AT - 1
        magic = raw.find(b"\2", magic + 1)
