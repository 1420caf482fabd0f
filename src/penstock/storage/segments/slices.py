"""A range of whole batches of one segment, and its verification before it is served."""

from __future__ import annotations

from penstock.model.errors import CorruptBatch
from penstock.ports.disk import File, FileSlice
from penstock.storage.leader_epochs import LeaderEpochs
from penstock.storage.segments.scan import checked_batches
from penstock.storage.segments.segment import Segment


class LogSlice(FileSlice):
    """`offset` is the requested offset; `next_offset` is the one to request next.

    Before verification, `next_offset` comes from headers; `end_offset` is known and must not be exceeded.
    `generation` distinguishes slices from before a truncation from later ones.
    """

    __slots__ = ("end_offset", "generation", "next_offset", "offset", "segment")

    def __init__(self, segment: Segment, file: File, position: int, size: int, offset: int, next_offset: int) -> None:
        super().__init__(file, position, size)
        self.segment = segment
        self.offset = offset
        self.next_offset = next_offset
        self.end_offset = next_offset
        self.generation = 0

    def is_trusted(self) -> bool:
        """Whether this process wrote or checked these bytes."""
        return self.segment.is_trusted(self.position, self.position + self.size)


def verify(piece: LogSlice, *, may_have_gaps: bool, epochs: LeaderEpochs | None = None) -> LogSlice:
    """Return the longest valid prefix of whole batches, with the next offset that follows from it.

    Raises CorruptBatch if the first batch is bad. Base offset and length are outside the checksum, so the chain is
    checked too: lengths lead from batch to batch, and offsets follow each other (or increase, if compaction
    `may_have_gaps`). The leader epoch is outside it too and compared with `epochs` if given. Blocks; uses only the
    file, so it may run in a thread.
    """
    path, start, file = piece.segment.path, piece.position, piece.file
    end, expected = start, piece.offset
    try:
        for position, header in checked_batches(file, path, start, start + piece.size):
            base_offset = header.base_offset
            if position == start:  # the lookup checked the chain up to here
                fits = header.last_offset >= expected and (base_offset <= expected or may_have_gaps)
            else:
                fits = base_offset == expected or (base_offset > expected and may_have_gaps)
            if not fits or header.next_offset > piece.end_offset:
                raise CorruptBatch(path, position, f"holds {base_offset} to {header.last_offset}, expected {expected}")
            if epochs is not None and epochs.contradicts(header.leader_epoch, header.last_offset):
                known = epochs.epoch_of(header.last_offset)
                raise CorruptBatch(path, position, f"leader epoch {header.leader_epoch}, expected {known}")
            end, expected = position + header.size_bytes, header.next_offset
    except CorruptBatch:
        if end == start:
            raise
    if end - start == piece.size and expected == piece.next_offset:
        return piece
    sound = LogSlice(piece.segment, file, start, end - start, piece.offset, expected)
    sound.generation = piece.generation
    return sound
