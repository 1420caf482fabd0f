"""Reads batches with their checksums: for recovery, and for verification before batches are served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from crc32c import crc32c

from penstock.model.errors import CorruptBatch
from penstock.records.batch import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, BatchHeader

_CHUNK_BYTES = 1 << 20


class Readable(Protocol):
    """A file or other source of bytes by position."""

    def read(self, position: int, size: int) -> bytes: ...


def checked_batches(file: Readable, path: str, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every batch from `position` to `end`; raise CorruptBatch at the first bad one.

    Memory is bounded, whatever a damaged length says.
    """
    chunk, chunk_at = memoryview(b""), position
    while position < end:
        at = position - chunk_at
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_at, at = memoryview(file.read(position, min(_CHUNK_BYTES, end - position))), position, 0
            if len(chunk) < HEADER_SIZE:
                raise CorruptBatch(path, position, f"{len(chunk)} bytes are too few for a header")
        header = BatchHeader._make(HEADER.unpack_from(chunk, at))
        size = header.batch_length + LENGTH_OVERHEAD
        if header.magic != MAGIC or size < HEADER_SIZE:
            raise CorruptBatch(path, position, f"magic {header.magic}, batch length {header.batch_length}")
        if position + size > end:
            raise CorruptBatch(path, position, f"a batch of {size} bytes, only {end - position} remain")
        crc = crc32c(chunk[at + CRC_START : at + size])
        if at + size > len(chunk):
            crc = _crc_of_rest(file, crc, chunk_at + len(chunk), position + size)
        if crc != header.crc:
            raise CorruptBatch(path, position, "checksum does not match")
        if header.last_offset_delta < 0 or header.base_offset < 0:
            raise CorruptBatch(path, position, f"base offset {header.base_offset} + {header.last_offset_delta}")
        yield position, header
        position += size


def _crc_of_rest(file: Readable, crc: int, position: int, end: int) -> int:
    while position < end:
        part = file.read(position, min(_CHUNK_BYTES, end - position))
        if not part:
            return -1  # end of file: matches no checksum
        crc = crc32c(part, crc)
        position += len(part)
    return crc
