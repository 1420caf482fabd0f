"""The records of a topic's partitions from their positions to what is committed now, as batches of Arrow.

The straight way reads all partitions together (`JointFetch`). A partition that is left behind there, because a leader
is lost or its log does not have the position, is read with patience (`FetchStream`). Must not know: rows, tables.
Invariants:
- Only committed records are read, each position once, in the order of offsets within a partition.
- A position is never moved past records that were not handed out, except those that retention has deleted: that is a
  Loss, which the caller allows or not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from penstock.arrow.decode import BatchDecoder
from penstock.arrow.decode.place import Answer, check_place
from penstock.model.errors import PenstockError
from penstock.model.topic_partition import TopicPartition
from penstock.wire.primitives import NULL_UUID
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.fetch_stream import FetchedChunk, FetchStream
from penstock.wire_client.blocking.joint_fetch import FetchRange, JointFetch
from penstock.wire_client.blocking.long_poll import LongPoll
from penstock.wire_client.requests.errors import OffsetOutOfRange
from penstock.wire_client.requests.offsets import EARLIEST_MS, LATEST_MS

RecordBatch = Any

SHORT_S = 10.0
"""How long a log may end before a position: a leader that was elected just now may know of less than is committed."""
_EVERYTHING = 2**63 - 1


class Piece(NamedTuple):
    """Records of a partition. Everything before `position` was handed out, with this piece."""

    partition: int
    records: RecordBatch | None
    position: int
    lost: int = 0
    """Records (offsets) before this piece that retention has deleted."""


class ShorterLog(PenstockError):
    """The log ends before a position: records that were read are gone from it, and others may take their offsets."""

    def __init__(self, tp: TopicPartition, position: int, end: int) -> None:
        super().__init__(
            f"the log of partition {tp.partition} of topic {tp.topic} became shorter: it ends at {end}, and was read "
            f"up to {position}"
        )


class TopicReader:
    def __init__(self, cluster: BlockingCluster, topic: str, topic_id: bytes, columns: Any) -> None:
        self._cluster = cluster
        self._topic = topic
        self._topic_id = None if topic_id == NULL_UUID else topic_id
        self._columns = columns
        self._news = LongPoll(cluster, read_committed=True)
        self._decoders: dict[int, BatchDecoder] = {}
        self._short_since: dict[int, float] = {}

    def partitions(self) -> int:
        """Requested now. Raises ApiError."""
        self._cluster.forget(self._topic)
        return len(self._cluster.topic(self._topic).partitions)

    def starts(self, partitions: range) -> dict[int, int]:
        return self._offsets(partitions, EARLIEST_MS)

    def ends(self, partitions: range) -> dict[int, int]:
        """What is committed."""
        return self._offsets(partitions, LATEST_MS)

    def is_short(self, positions: Mapping[int, int], ends: Mapping[int, int]) -> bool:
        """Whether a log ends before its position. Raises ShorterLog if it has for `SHORT_S`."""
        now = time.monotonic()
        short = [one for one, end in ends.items() if end < positions[one]]
        self._short_since = {one: self._short_since.get(one, now) for one in short}
        for one, since in self._short_since.items():
            if now - since >= SHORT_S:
                raise ShorterLog(self._tp(one), positions[one], ends[one])
        return bool(short)

    def at(self, partitions: range, timestamp_ms: int) -> dict[int, int]:
        """The first offsets from then on; the ends where there is none."""
        found = self._offsets(partitions, timestamp_ms)
        ends = self.ends(partitions)
        return {partition: offset if offset >= 0 else ends[partition] for partition, offset in found.items()}

    def _offsets(self, partitions: range, wanted: int) -> dict[int, int]:
        asked = {self._tp(partition): wanted for partition in partitions}
        found = self._cluster.list_offsets(asked, read_committed=wanted == LATEST_MS)
        return {tp.partition: entry.offset for tp, entry in found.items()}

    def wait(self, positions: Mapping[int, int], timeout_s: float) -> None:
        """Until there may be records beyond one of the positions."""
        self._news.wait({self._tp(partition): position for partition, position in positions.items()}, timeout_s)

    def close(self) -> None:
        self._news.close()

    def read(self, positions: Mapping[int, int], ends: Mapping[int, int]) -> Iterator[Piece]:
        """Raises ShorterLog, TopicRecreated, CorruptRecordBatch, ApiError, WireClientError."""
        reached = {one: positions[one] for one in sorted(ends) if positions[one] < ends[one]}
        ranges = [FetchRange(self._tp(one), reached[one], ends[one], self._topic_id) for one in reached]
        fetch = JointFetch(self._cluster, ranges, read_committed=True)
        partitions = list(reached)
        for index, chunk in fetch:
            partition = partitions[index]
            for piece in self._pieces(partition, reached[partition], chunk):
                reached[partition] = piece.position
                yield piece
            fetch.advance(index, reached[partition])
            del chunk  # its memory is that of the next one
        for partition, position in reached.items():
            if position < ends[partition]:
                yield from self._patiently(partition, position, ends[partition])

    def _patiently(self, partition: int, position: int, end: int) -> Iterator[Piece]:
        tp = self._tp(partition)
        while position < end:
            stream = FetchStream(self._cluster, tp, position, end, read_committed=True, topic_id=self._topic_id)
            try:
                for chunk in stream:
                    for piece in self._pieces(partition, position, chunk):
                        position = piece.position
                        yield piece
                    stream.advance(position)
                    del chunk
                if position < end:  # compaction left nothing there
                    position = end
                    yield Piece(partition, None, position)
            except OffsetOutOfRange as error:
                if error.log_start_offset <= position:
                    raise ShorterLog(tp, position, error.log_end_offset) from error
                lost, position = error.log_start_offset - position, error.log_start_offset
                yield Piece(partition, None, position, lost)

    def _pieces(self, partition: int, position: int, chunk: FetchedChunk) -> Iterator[Piece]:
        """The last one has the position after the chunk. In between a position may be within a batch."""
        tp = self._tp(partition)
        decoder = self._decoders.get(partition)
        if decoder is None:
            decoder = self._decoders[partition] = BatchDecoder(self._columns, self._topic, partition)
        decoded = decoder.open(chunk.records, position, _EVERYTHING, chunk.aborted, read_committed=True)
        answer = Answer(tp, position, chunk.records, decoded.next_offset, chunk.high_watermark)
        check_place(answer, lambda: self._cluster.list_offsets({tp: LATEST_MS})[tp].offset)
        for records in decoded:
            yield Piece(partition, records, records.column("offset")[-1].as_py() + 1)
        yield Piece(partition, None, max(position, decoded.next_offset))

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)
