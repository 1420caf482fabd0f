"""The record batches of one partition between two offsets, as stored on the broker, with one fetch ahead.

The headers of a chunk's batches tell where the next one begins. So the next fetch is sent before a chunk is handed out,
and the broker reads while the caller decodes. Must not know: the content of batches. Invariants:
- A chunk starts with the batch that holds the position, or with the first one after it if the log has a hole there.
- The position moves only past records that were handed out. After a lost connection or a new leader the same position
  is fetched again.
- If a log ends too early, the stream accepts that only after a while without a lost connection or a new leader: a
  broker that has just restarted may not know yet how much of its log is committed.
- The records of a chunk are a view that is released when the next chunk is taken; using it then is an error. The caller
  may keep its own views of it (memoryview slices, numpy arrays): memory is reused only when no view is left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import HEADER_SIZE, LENGTH_OVERHEAD
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchResponse, PartitionData
from penstock.wire.primitives import NULL_UUID
from penstock.wire_client.blocking.connection import BlockingConnection, thread_buffer
from penstock.wire_client.blocking.retrying import Pauses
from penstock.wire_client.requests.errors import (
    FetchStalled,
    LogTruncated,
    NoSuchTopic,
    OffsetOutOfRange,
    TopicRecreated,
    WireClientError,
    check,
    error_code,
)
from penstock.wire_client.requests.fetch import FetchFrom, FetchTerms, fetch_request
from penstock.wire_client.requests.leader_epochs import NO_EPOCH
from penstock.wire_client.requests.limits import REQUEST_TIMEOUT_S
from penstock.wire_client.requests.offsets import EARLIEST_MS, LATEST_MS
from penstock.wire_client.requests.retriable import LOST, Again, may

if TYPE_CHECKING:
    from penstock.wire_client.blocking.cluster import BlockingCluster

MAX_BYTES = 8 << 20
MAX_WAIT_MS = 500
BY_TOPIC_ID = 13
NEWEST_FETCH = 17
EARLIEST_LOCAL_MS = -4
LOOK_UP_S = 2.0
SHORT_S = 10.0
"""How long a log must be too short before the stream accepts that as its end."""
# The size of a fetch that reaches the end: the mean size of a record so far, at first this, plus a spare.
GUESSED_RECORD_BYTES = 1024
SPARE_BYTES = 64 << 10
ANOTHER_TOPIC = frozenset((ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID))
_WALK = Struct(">qi11xi")  # base offset, batch length, last offset delta


class FetchedChunk(NamedTuple):
    records: memoryview
    """Whole batches, perhaps followed by a part of another. Valid until the next chunk is taken."""
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of aborted transactions; only for read_committed."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int

    @classmethod
    def of(cls, data: PartitionData, records: memoryview) -> FetchedChunk:
        aborted = [(entry.producer_id, entry.first_offset) for entry in data.aborted_transactions or ()]
        return cls(records, aborted, data.high_watermark, data.last_stable_offset, data.log_start_offset)


class FetchStream:
    """The batches from `start` up to `end`, which the log must reach within `SHORT_S`.

    Batches are whole, so the first and the last chunk may have records outside the range. With `topic_id`, another
    topic of the same name is refused. With `leader_epoch`, the records up to `end` have this leader epoch or an earlier
    one, and a log that was truncated since then is refused. Raises OffsetOutOfRange, LogTruncated, TopicRecreated,
    ApiError, and FetchStalled after `timeout_s` without progress.
    """

    def __init__(
        self,
        cluster: BlockingCluster,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        read_committed: bool,
        max_bytes: int = MAX_BYTES,
        topic_id: bytes | None = None,
        leader_epoch: int = NO_EPOCH,
        timeout_s: float = 120.0,
    ) -> None:
        self._cluster = cluster
        self._tp = tp
        self._position = start
        self._end = end
        self._read_committed = read_committed
        self._terms = FetchTerms(MAX_WAIT_MS, 1, max_bytes, read_committed)
        self._topic_id = topic_id
        self._leader_epoch = leader_epoch
        self._current_epoch = NO_EPOCH
        """That of the leader to which the stream is connected."""
        self._timeout_s = timeout_s
        self._record_bytes = float(GUESSED_RECORD_BYTES)
        self._connection: BlockingConnection | None = None
        self._broker = "that is not known"
        self._asked: int | None = None
        """The offset of the open fetch."""
        self._lent: memoryview | None = None
        self._deadline = 0.0
        self._short_since: float | None = None

    @property
    def position(self) -> int:
        """The offset at which the next chunk begins."""
        return self._position

    def advance(self, next_offset: int) -> None:
        """Moves the position to `next_offset`, if that is not the end of the last chunk."""
        self._position = next_offset

    def __iter__(self) -> Iterator[FetchedChunk]:
        try:
            while self._position < self._end:
                begin = self._position
                chunk = self._next_chunk()
                if chunk is None:
                    return
                yield chunk
                if self._position <= begin:
                    raise WireClientError(
                        f"{self._name}: broker {self._broker} sent {len(chunk.records)} bytes without a whole "
                        f"record batch at offset {begin}"
                    )
        finally:
            self._release()
            self._leave()

    # -- one chunk ----------------------------------------------------------------------

    def _next_chunk(self) -> FetchedChunk | None:
        """Retries until there is a chunk. None if the log has nothing more below `end`."""
        self._release()
        begin = time.monotonic()
        self._deadline = begin + self._timeout_s
        self._short_since = None
        pauses = Pauses()
        while True:
            try:
                data = self._fetch(self._deadline)
                if data is None:
                    reason = "it throttles"
                elif data.error_code:
                    reason = self._refused(error_code(data.error_code))
                elif data.records:
                    return self._take(data)
                elif data.high_watermark < self._end:
                    reason = self._too_short(data.high_watermark)
                elif readable(data, self._read_committed) < self._end:
                    reason = f"its log is committed only up to offset {readable(data, self._read_committed)}"
                elif self._is_hole():
                    self._position = self._end
                    return None
                else:
                    reason = "it reads from remote storage"
            except LOST as error:
                reason = str(error)
                self._short_since = None
                self._lost()
            except ApiError as error:
                if not may(Again.ASK, error.code) or isinstance(error, NoSuchTopic):
                    raise
                reason = str(error)
                self._short_since = None
                self._lost()
            now = time.monotonic()
            if now >= self._deadline:
                raise FetchStalled(self._tp, self._position, self._end, self._broker, now - begin, reason)
            pauses.sleep(self._deadline)

    def _take(self, data: PartitionData) -> FetchedChunk:
        records = data.records
        assert isinstance(records, memoryview)
        self._lent = records
        begin = self._position
        self._position = max(begin, offset_after(records, begin))
        if self._position > begin:
            self._record_bytes = len(records) / (self._position - begin)
            if self._position < self._end:
                self._ask_ahead()
        return FetchedChunk.of(data, records)

    def _is_hole(self) -> bool:
        """Whether compaction left nothing up to the end, as the answer has no records despite readable offsets.

        A broker that reads too slowly from remote storage answers the same.
        """
        earliest = self._cluster.list_offsets({self._tp: EARLIEST_LOCAL_MS})[self._tp].offset
        return earliest <= self._position

    def _refused(self, code: ErrorCode) -> str:
        """The reason for a retry. Raises if a retry is useless."""
        reason = code.name
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            first, log_end = self._range()
            if self._position < first:
                raise OffsetOutOfRange(self._tp, self._position, first, log_end)
            if self._position > log_end:
                reason = self._too_short(log_end)
        elif not may(Again.FETCH, code) and code not in ANOTHER_TOPIC:
            raise ApiError(code, f"{self._name} at offset {self._position}: broker {self._broker} says {code.name}")
        else:
            self._short_since = None
        self._lost()
        return reason

    def _too_short(self, log_end: int) -> str:
        """The reason to wait. Raises OffsetOutOfRange when waiting has become useless."""
        now = time.monotonic()
        if self._short_since is None:
            self._short_since = now
            # Independent of the timeout: a shorter wait would mistake a delay for a loss.
            self._deadline = max(self._deadline, now + 2 * SHORT_S)
        elif now - self._short_since >= SHORT_S:
            first, log_end = self._range()
            if log_end < self._end:
                raise OffsetOutOfRange(self._tp, self._end - 1, first, log_end)
            self._short_since = None
        return f"its log ends at offset {log_end}"

    def _range(self) -> tuple[int, int]:
        """The range of the log, from its leader. A new leader waits for its followers before it reports the end."""
        first = self._cluster.list_offsets({self._tp: EARLIEST_MS})[self._tp].offset
        return first, self._cluster.list_offsets({self._tp: LATEST_MS})[self._tp].offset

    # -- requests -----------------------------------------------------------------------

    def _fetch(self, deadline: float) -> PartitionData | None:
        """The answer for the position; None if the broker throttles. One attempt."""
        if self._connection is None:
            self._connect(deadline)
        assert self._connection is not None
        if self._asked is None:
            self._ask(self._connection)
        while True:
            asked, self._asked = self._asked, None
            left_s = min(deadline - time.monotonic(), REQUEST_TIMEOUT_S) + MAX_WAIT_MS / 1000
            answer = self._connection.receive(FetchResponse, left_s, thread_buffer())
            if asked == self._position:
                break
            self._ask(self._connection)  # the caller moved the position
        check(answer.error_code)
        if not answer.responses or not answer.responses[0].partitions:
            return None
        return answer.responses[0].partitions[0]

    def _connect(self, deadline: float) -> None:
        broker = self._cluster.leader(self._tp, min(LOOK_UP_S, max(0.0, deadline - time.monotonic())))
        self._broker = f"{broker.node_id} at {broker.host}:{broker.port}"
        self._check_topic_id()
        self._current_epoch = self._cluster.leader_epoch(self._tp)
        self._check_history()
        self._connection = self._cluster.lease(broker.node_id)
        self._broker = f"{broker.node_id} at {self._connection.place}"

    def _check_topic_id(self) -> None:
        if self._topic_id is None:
            return
        name = self._tp.topic
        if self._cluster.topic(name).topic_id in (
            self._topic_id,
            NULL_UUID,
        ):  # null: an old broker without topic ids
            return
        info = self._cluster.topics([name]).get(name)
        if info is not None and info.topic_id != self._topic_id:
            raise TopicRecreated(name, self._topic_id, info.topic_id)

    def _check_history(self) -> None:
        """A later leader may have a log without the last records of an earlier one."""
        if not NO_EPOCH < self._leader_epoch < self._current_epoch:
            return
        end_offset = self._cluster.epoch_ends({self._tp: self._leader_epoch})[self._tp].end_offset
        if 0 <= end_offset < self._end:
            raise LogTruncated(self._tp, end_offset, self._end, self._leader_epoch)

    def _ask_ahead(self) -> None:
        assert self._connection is not None
        try:
            if self._connection.is_usable:
                self._ask(self._connection)
            else:
                self._lost()
        except LOST:
            self._lost()

    def _ask(self, connection: BlockingConnection) -> None:
        cap = NEWEST_FETCH if self._topic_id is not None else None
        version = connection.newest(Api.FETCH, cap)
        expected = int((self._end - self._position) * self._record_bytes) + SPARE_BYTES
        begin = FetchFrom(self._position, min(self._terms.max_bytes, expected), self._current_epoch)
        request = fetch_request({self._tp: begin}, self._terms, self._topic_id)
        connection.send(Api.FETCH, request, version=version)
        self._asked = self._position

    # -- leaving ------------------------------------------------------------------------

    def _release(self) -> None:
        lent, self._lent = self._lent, None
        if lent is not None:
            with suppress(BufferError):  # the caller has a view of it and keeps the memory
                lent.release()

    def _lost(self) -> None:
        self._cluster.forget(self._tp.topic)
        self._leave()

    def _leave(self) -> None:
        connection, self._connection, self._asked = self._connection, None, None
        if connection is not None:
            self._cluster.give_back(connection)

    @property
    def _name(self) -> str:
        return f"{self._tp.topic}-{self._tp.partition}"


def readable(data: PartitionData, read_committed: bool) -> int:
    """The offset up to which a reader may read."""
    return data.last_stable_offset if read_committed and data.last_stable_offset >= 0 else data.high_watermark


def offset_after(records: memoryview, position: int) -> int:
    """The offset after the last whole batch; `position` if there is none. The decoder detects damage."""
    at, size, after = 0, len(records), position
    unpack = _WALK.unpack_from
    while size - at >= HEADER_SIZE:
        base_offset, length, last_offset_delta = unpack(records, at)
        if length < HEADER_SIZE - LENGTH_OVERHEAD:
            break
        at += length + LENGTH_OVERHEAD
        if at > size:
            break
        after = base_offset + last_offset_delta + 1
    return after
