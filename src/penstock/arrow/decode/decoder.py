"""`BatchDecoder`: decodes the bytes of a fetch answer to Arrow RecordBatches with the requested columns.

It knows nothing of connections, committed offsets or Spark. Invariants:
- it returns exactly the rows with `start` <= offset < `end`, in offset order, without control records and, under
  read_committed, without aborted ones;
- a damaged batch that overlaps the range raises CorruptRecordBatch; nothing is skipped silently;
- `next_offset` is beyond `start`, or an error was raised, or there were no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from penstock.arrow.cache.warmup import kernels_of
from penstock.arrow.decode.aborted import AbortedTransactions
from penstock.arrow.decode.columns import KAFKA_SCHEMA, Columns, RecordBatch, Schema
from penstock.arrow.decode.reference import ReferenceChunk
from penstock.ports.disk import Buffer
from penstock.records.builder import Record, build_batch

DEFAULT_MAX_ROWS = 10_000


class DecodedRows(NamedTuple):
    batches: list[RecordBatch]
    next_offset: int
    rows: int


class Chunk(Protocol):
    """One fetch answer. Iterating decodes one RecordBatch at a time."""

    @property
    def next_offset(self) -> int:
        """The offset after the last whole batch, known before decoding. After a hole it may be beyond `end`."""

    def __iter__(self) -> Iterator[RecordBatch]: ...


_OpenChunk = Callable[[Buffer, int, int, AbortedTransactions | None], Chunk]


class BatchDecoder:
    """Decodes the answers for one partition. Not thread safe."""

    def __init__(self, schema: Schema, topic: str, partition: int, *, max_rows: int = DEFAULT_MAX_ROWS) -> None:
        columns = Columns(schema, topic, partition, max_rows)
        self._open: _OpenChunk = _native(columns) or (lambda *arguments: ReferenceChunk(columns, *arguments))

    def decode(
        self,
        records: Buffer,
        start: int,
        end: int,
        aborted: Sequence[tuple[int, int]] = (),
        read_committed: bool = False,
    ) -> DecodedRows:
        """Decodes all at once. `aborted`: (producer id, first offset), as in the fetch answer."""
        chunk = self.open(records, start, end, aborted, read_committed)
        batches = list(chunk)
        return DecodedRows(batches, chunk.next_offset, sum(batch.num_rows for batch in batches))

    def open(
        self,
        records: Buffer,
        start: int,
        end: int,
        aborted: Sequence[tuple[int, int]] = (),
        read_committed: bool = False,
    ) -> Chunk:
        """Decodes in steps: it needs memory for one RecordBatch, whatever the decompressed size. Iterate it once."""
        return self._open(records, start, end, AbortedTransactions(aborted) if read_committed else None)


def warm_up() -> None:
    """Compiles the kernels, or loads them from numba's cache, and runs each of them once."""
    records = [
        Record(b"key", b"value", (("name", b"content"), ("name", None))),
        Record(None, None),
    ]
    BatchDecoder(KAFKA_SCHEMA, "warm-up", 0).decode(build_batch(records), 0, len(records))


def _native(columns: Columns) -> _OpenChunk | None:
    if kernels_of("decode") is None:
        return None
    from penstock.arrow.decode.native import NativeChunk, Scratch

    scratch = Scratch(columns.max_rows)
    return lambda *arguments: NativeChunk(columns, scratch, *arguments)
