"""A range of whole batches of one segment, and its verification before it is served."""

from __future__ import annotations

from penstock.model.errors import CorruptBatch
from penstock.ports.disk import FileSlice
from penstock.storage.scan import checked_batches
from penstock.storage.segment import Segment


class LogSlice(FileSlice):
    """`offset` was asked for; `next_offset` is the one to ask for after it."""

    __slots__ = ("next_offset", "offset", "segment")

    def __init__(self, segment: Segment, position: int, size: int, offset: int, next_offset: int) -> None:
        super().__init__(segment.file(), position, size)
        self.segment = segment
        self.offset = offset
        self.next_offset = next_offset


def verify(piece: LogSlice, *, may_have_gaps: bool) -> LogSlice:
    """The longest sound prefix of whole batches. Raises CorruptBatch when the first one is bad.

    Base offset and length lie outside the checksum, so the chain is checked too: lengths lead from batch to
    batch, and offsets follow each other (rise, where compaction `may_have_gaps`). Blocks; touches nothing but
    the file, so it may run in a thread.
    """
    path, start = piece.segment.path, piece.position
    end, expected = start, piece.offset
    try:
        for position, header in checked_batches(piece.file, path, start, start + piece.size):
            if position == start:
                is_wrong = header.last_offset < expected or (header.base_offset > expected and not may_have_gaps)
            else:
                is_wrong = header.base_offset < expected or (header.base_offset > expected and not may_have_gaps)
            if is_wrong or header.next_offset > piece.next_offset:
                raise CorruptBatch(
                    path, position, f"holds {header.base_offset} to {header.last_offset}, expected {expected}"
                )
            end, expected = position + header.size_bytes, header.next_offset
    except CorruptBatch:
        if end == start:
            raise
        return LogSlice(piece.segment, start, end - start, piece.offset, expected)
    return piece
