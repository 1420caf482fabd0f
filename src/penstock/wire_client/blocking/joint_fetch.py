"""The record batches of many partitions, each between two offsets: one fetch at a time to each leader.

This is for many small ranges. A fetch asks for as many ranges as its answer may hold, all leaders are asked before the
first answer is awaited, and the next fetch of a leader leaves before its last answer is handed out. So a hundred ranges
cost a few round trips, and memory for one answer.

It only takes the straight way. A range is left behind, at the offset that was reached, if its answer is an error or no
records, or if its leader is lost: `fetch_stream` reads the rest, with the patience for all that. Must not know: the
content of batches. Invariants:
- The batches of a range are handed out in order, and its position moves only past those.
- In each round, the first range of a leader moves or is left behind. Brokers send its first batch whatever the size.
- A chunk is valid until the next one is taken, as in `fetch_stream`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from penstock.model.errors import ApiError
from penstock.model.topic_partition import TopicPartition
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchResponse, PartitionData
from penstock.wire.primitives import NULL_UUID
from penstock.wire_client.blocking.connection import BlockingConnection, thread_buffer
from penstock.wire_client.blocking.fetch_stream import (
    LOOK_UP_S,
    MAX_BYTES,
    NEWEST_FETCH,
    FetchedChunk,
    offset_after,
    readable,
)
from penstock.wire_client.requests.errors import WireClientError, check
from penstock.wire_client.requests.fetch import FetchFrom, FetchTerms, joint_fetch_request
from penstock.wire_client.requests.leader_epochs import NO_EPOCH
from penstock.wire_client.requests.limits import REQUEST_TIMEOUT_S

if TYPE_CHECKING:
    from penstock.wire_client.blocking.cluster import BlockingCluster
    from penstock.wire_client.blocking.leader_calls import Leader

FEWEST_RECORD_BYTES = 32
"""The size of a record by which ranges are chosen for a fetch. It is low, because a range too many costs little."""
GUESSED_RECORD_BYTES = 1024
SPARE_BYTES = 64 << 10
"""Each range is asked for its guessed size and this."""
MORE = 16
"""How many times the spare grows for a range without an answer: its next batch may be larger."""
MAX_RANGES = 1000
"""In a fetch."""


class FetchRange(NamedTuple):
    """The records of a partition with start <= offset < end. Topic id and leader epoch as for `FetchStream`."""

    tp: TopicPartition
    start: int
    end: int
    topic_id: bytes | None = None
    leader_epoch: int = NO_EPOCH


class _Range:
    def __init__(self, index: int, wanted: FetchRange) -> None:
        self.index = index
        self.tp = wanted.tp
        self.position = wanted.start
        self.end = wanted.end
        self.topic_id = wanted.topic_id
        self.leader_epoch = wanted.leader_epoch
        self.current_epoch = NO_EPOCH
        self.spare_bytes = SPARE_BYTES
        self.is_moved = False
        """The caller has gone elsewhere."""


class _Lane:
    """A leader: the ranges that are still to be asked for, and the open fetch."""

    def __init__(self, connection: BlockingConnection, waiting: list[_Range]) -> None:
        self.connection = connection
        self.waiting = waiting
        self.asked: list[_Range] = []


class JointFetch:
    """Yields the index of a range with each chunk. `positions` tells afterwards how far each range was read.

    Batches are whole, so chunks may have records outside their range. Raises nothing but what the caller's own code
    raises: a failure only leaves ranges behind.
    """

    def __init__(
        self,
        cluster: BlockingCluster,
        ranges: Sequence[FetchRange],
        *,
        read_committed: bool,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._cluster = cluster
        self._ranges = [_Range(index, wanted) for index, wanted in enumerate(ranges)]
        self._terms = FetchTerms(0, 1, max_bytes, read_committed)
        self._by_id = all(one.topic_id is not None for one in ranges)
        self._read_bytes, self._read_offsets = GUESSED_RECORD_BYTES, 1

    @property
    def positions(self) -> list[int]:
        return [one.position for one in self._ranges]

    def advance(self, index: int, next_offset: int) -> None:
        """Moves the position of a range. If that is not the end of its last chunk, the range is left behind."""
        one = self._ranges[index]
        one.is_moved |= one.position != next_offset
        one.position = next_offset

    def __iter__(self) -> Iterator[tuple[int, FetchedChunk]]:
        lanes: list[_Lane] = []
        try:
            lanes += self._lanes()
            for lane in lanes:
                self._ask(lane)
            while any(lane.asked for lane in lanes):
                for lane in lanes:
                    chunks = self._answered(lane) if lane.asked else []
                    self._ask(lane)
                    for one, chunk in chunks:
                        yield one.index, chunk
                        with suppress(BufferError):  # the caller has a view of it and keeps the memory
                            chunk.records.release()
                    del chunks
        finally:
            for lane in lanes:
                self._cluster.give_back(lane.connection)

    # -- before the first fetch ---------------------------------------------------------

    def _lanes(self) -> list[_Lane]:
        by_leader: dict[int, list[_Range]] = {}
        lanes = []
        with suppress(ApiError, WireClientError):
            for one, leader in self._led():
                by_leader.setdefault(leader.node_id, []).append(one)
        for node_id, ranges in by_leader.items():
            with suppress(ApiError, WireClientError):
                lanes.append(_Lane(self._cluster.lease(node_id), ranges))
        return lanes

    def _led(self) -> list[tuple[_Range, Leader]]:
        """The ranges that their leaders can be asked for, by what is known of topic ids and leader epochs."""
        unread = [one for one in self._ranges if one.position < one.end]
        leaders = self._cluster.known_leaders({one.tp for one in unread}, LOOK_UP_S)
        led = [(one, leaders[one.tp]) for one in unread if one.tp in leaders and self._is_same_topic(one)]
        for one, leader in led:
            one.current_epoch = leader.epoch
        # A later leader may have a log without the last records of an earlier one.
        earlier = {one.tp: one.leader_epoch for one, leader in led if NO_EPOCH < one.leader_epoch < leader.epoch}
        ends = self._cluster.epoch_ends(earlier, LOOK_UP_S)
        return [
            (one, leader) for one, leader in led if one.tp not in ends or not 0 <= ends[one.tp].end_offset < one.end
        ]

    def _is_same_topic(self, one: _Range) -> bool:
        info = self._cluster.known_topic(one.tp.topic)
        # null: an old broker without topic ids
        return one.topic_id is None or (info is not None and info.topic_id in (one.topic_id, NULL_UUID))

    # -- rounds -------------------------------------------------------------------------

    def _ask(self, lane: _Lane) -> None:
        """Asks for the next ranges, if there are any."""
        positions: dict[TopicPartition, FetchFrom] = {}
        likely_bytes = 0
        record_bytes = self._read_bytes / self._read_offsets
        chosen: list[_Range] = []
        rest: list[_Range] = []
        for one in lane.waiting:
            has_room = likely_bytes < self._terms.max_bytes and len(chosen) < MAX_RANGES
            if not has_room or one.tp in positions:
                rest.append(one)
                continue
            expected = int((one.end - one.position) * record_bytes) + one.spare_bytes
            positions[one.tp] = FetchFrom(one.position, min(self._terms.max_bytes, expected), one.current_epoch)
            likely_bytes += (one.end - one.position) * FEWEST_RECORD_BYTES
            chosen.append(one)
        lane.asked, lane.waiting = chosen, rest
        if not chosen:
            return
        topic_ids = {one.tp.topic: one.topic_id or NULL_UUID for one in chosen}
        try:
            version = lane.connection.newest(Api.FETCH, NEWEST_FETCH if self._by_id else None)
            request = joint_fetch_request(positions, self._terms, topic_ids)
            lane.connection.send(Api.FETCH, request, version=version)
        except (ApiError, WireClientError):
            self._leave(lane)

    def _answered(self, lane: _Lane) -> list[tuple[_Range, FetchedChunk]]:
        """The records of the open fetch. Ranges without any are asked for again, or left behind."""
        try:
            answer = lane.connection.receive(FetchResponse, REQUEST_TIMEOUT_S, thread_buffer())
            check(answer.error_code)
        except (ApiError, WireClientError):
            self._leave(lane)
            return []
        asked, lane.asked = lane.asked, []
        topics = {one.topic_id: one.tp.topic for one in asked}
        found = {
            TopicPartition(topic.topic or topics.get(topic.topic_id, ""), entry.partition_index): entry
            for topic in answer.responses
            for entry in topic.partitions
        }
        chunks: list[tuple[_Range, FetchedChunk]] = []
        without: list[_Range] = []
        for one in asked:
            data = found.get(one.tp)
            if data is None or one.is_moved:
                continue
            if data.error_code:
                self._cluster.forget(one.tp.topic)
            elif (chunk := self._taken(one, data)) is not None:
                chunks.append((one, chunk))
            elif readable(data, self._terms.read_committed) >= one.end and one is not asked[0]:
                without.append(one)
        if not chunks:
            return []  # a broker sends one batch at least, if it has any for the ranges
        for one in without:
            one.spare_bytes = min(one.spare_bytes * MORE, self._terms.max_bytes)
        lane.waiting = [*without, *(one for one, _ in chunks if one.position < one.end), *lane.waiting]
        return chunks

    def _taken(self, one: _Range, data: PartitionData) -> FetchedChunk | None:
        """The chunk, if it has a whole batch."""
        records = data.records
        after = offset_after(records, one.position) if isinstance(records, memoryview) else one.position
        if after <= one.position:
            return None
        assert isinstance(records, memoryview)
        self._read_bytes += len(records)
        self._read_offsets += after - one.position
        one.position = after
        return FetchedChunk.of(data, records)

    def _leave(self, lane: _Lane) -> None:
        """Gives up on a leader."""
        for one in (*lane.asked, *lane.waiting):
            self._cluster.forget(one.tp.topic)
        lane.asked, lane.waiting = [], []
