"""Readers from the first offset that record everything they read, and sometimes start again.

They send the leader epoch they know, like Kafka's clients, so a deposed leader does not answer them: a leader of that
epoch without the records read before has lost them. Some read from any replica (KIP-392): a replica that lags has less,
but returns the same records. Sometimes they ask a leader for the end of a partition, which must not be before the high
watermark they saw. Must not know: faults, checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from crc32c import crc32c

from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.disk import Buffer
from penstock.records.batch import CRC_START, HEADER_SIZE, read_header
from penstock.records.builder import Record
from penstock.sim.checks.files import records_of
from penstock.sim.judges.history import History, Place, Violation
from penstock.sim.workload.caller import TROUBLE, Caller, KnownLeader
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.primitives import NULL_UUID
from penstock.wire_client.requests.errors import error_code

WAIT_MS = 100
MAX_BYTES = 16 << 10
RETRY_S = 0.05
AGAIN_CHANCE = 0.01
END_CHANCE = 0.03
LATEST, EARLIEST = -1, -2


def _written(record: Record) -> bytes:
    """The writer's name of a record; a tombstone of ours has it in a header."""
    if record.value is not None:
        return record.value.partition(b" ")[0]
    return (record.headers[0][1] or b"") if record.headers else b""


class Manner(NamedTuple):
    """How a reader reads, and what it may meet."""

    begins_at: int = 0
    may_have_holes: bool = False
    """The partition is compacted."""
    is_trimmed: bool = False
    """The oldest records may be deleted: then it continues at the beginning of the log."""
    jump_chance: float = 0.0
    """Of returning to any offset after a read, like a consumer that resumes at its committed offset."""


PLAIN = Manner()
WITH_HOLES = Manner(may_have_holes=True)


class Reader:
    def __init__(
        self,
        caller: Caller,
        history: History,
        places: Sequence[Place],
        choose: Callable[[Place, KnownLeader], int] = lambda place, leader: leader.node_id,
        manner: Manner = PLAIN,
    ) -> None:
        """`choose` selects the broker."""
        self._choose = choose
        self._manner = manner
        self._caller = caller
        self._history = history
        self.positions = dict.fromkeys(places, manner.begins_at)
        self._shown: dict[Place, tuple[int, int]] = {}  # the highest high watermark, and its leader epoch
        self._asked: dict[Place, int] = {}  # leader epoch of the last request for its end

    async def run(self, is_over: Callable[[], bool], pause_s: float) -> None:
        caller, manner = self._caller, self._manner
        while not is_over():
            for place in self.positions:
                try:
                    if self._wants_end(place):
                        await self._ask_for_end(place)
                    moved = await self.read(place)
                except TROUBLE as error:
                    caller.note(error)
                    await caller.pause(RETRY_S)
                    await caller.look_again(place)
                else:
                    if not moved and caller.random.random() < AGAIN_CHANCE:
                        self.positions[place] = manner.begins_at
                    if manner.jump_chance and caller.random.random() < manner.jump_chance:
                        self.positions[place] = caller.random.randint(manner.begins_at, self.positions[place])
            await caller.pause(pause_s)

    async def read(self, place: Place) -> bool:
        """Return whether records were read. Raises the caller's errors, ApiError, Violation."""
        caller = self._caller
        leader = await caller.leader(place)
        asked = self._choose(place, leader)
        position = self.positions[place]
        topic_id = caller.id_of(place.topic)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            session_epoch=-1,
            topics=[
                FetchTopic(
                    topic=place.topic,
                    topic_id=topic_id or NULL_UUID,
                    partitions=[
                        FetchPartition(
                            partition=place.partition,
                            current_leader_epoch=leader.epoch,
                            fetch_offset=position,
                            partition_max_bytes=MAX_BYTES,
                        )
                    ],
                )
            ],
        )
        answer = await caller.ask(
            caller.address_of(asked),
            Api.FETCH,
            request,
            FetchResponse,
            purpose="read",
            wait_s=WAIT_MS / 1000,
            has_topic_ids=topic_id is not None,
        )
        if answer.error_code:
            raise ApiError(error_code(answer.error_code), "no data")
        data = answer.responses[0].partitions[0]
        code = error_code(data.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and asked == leader.node_id:
            await self._miss(place, leader, position)
        if code is not ErrorCode.NONE:
            raise ApiError(code, f"cannot read {place}")
        if asked == leader.node_id:
            before = self._shown.get(place, (0, leader.epoch))
            if leader.epoch == before[1] or data.high_watermark > before[0]:  # a new leader may still be behind
                self._was_shown(place, leader, data.high_watermark, before)
        self.positions[place] = self._take(place, leader._replace(node_id=asked), position, data)
        return self.positions[place] > position

    async def _miss(self, place: Place, leader: KnownLeader, position: int) -> None:
        """The leader answers that it has nothing there."""
        if self._manner.is_trimmed:
            start = await self._offset_at(place, leader, EARLIEST)
            self._caller.counts["trimmed"] += 1
            if start > position:
                self.positions[place] = start
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{place} begins at {start}")
        raise Violation(
            "a read is stable",
            f"{self._caller.name} read {place} up to {position}, and broker {leader.node_id} (epoch {leader.epoch}) "
            f"has nothing there",
        )

    def _wants_end(self, place: Place) -> bool:
        """On a new leader, and sometimes later; ListOffsets knows topics only by name."""
        if self._caller.id_of(place.topic) is not None:
            return False
        known = self._caller.leaders.get(place)
        is_new = known is not None and known.epoch != self._asked.get(place)
        return is_new or self._caller.random.random() < END_CHANCE

    async def _ask_for_end(self, place: Place) -> None:
        """A new leader that does not know its end yet must say so (KIP-207)."""
        leader = await self._caller.leader(place)
        self._asked[place] = leader.epoch
        end = await self._offset_at(place, leader, LATEST)
        self._was_shown(place, leader, end, self._shown.get(place, (0, leader.epoch)))

    async def _offset_at(self, place: Place, leader: KnownLeader, timestamp: int) -> int:
        caller = self._caller
        partition = ListOffsetsPartition(
            partition_index=place.partition, current_leader_epoch=leader.epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=place.topic, partitions=[partition])], timeout_ms=WAIT_MS
        )
        answer = await caller.ask(
            caller.address_of(leader.node_id), Api.LIST_OFFSETS, request, ListOffsetsResponse, purpose="read"
        )
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise ApiError(error_code(found.error_code), f"cannot get the begin or end offset of {place}")
        return found.offset

    def _was_shown(self, place: Place, leader: KnownLeader, high_watermark: int, before: tuple[int, int]) -> None:
        if high_watermark < before[0]:
            raise Violation(
                "a high watermark that was shown does not go back",
                f"{self._caller.name} learns from broker {leader.node_id} (epoch {leader.epoch}) that {place} ends at "
                f"{high_watermark}, but saw {before[0]} in epoch {before[1]}",
            )
        self._shown[place] = high_watermark, leader.epoch

    def _take(self, place: Place, leader: KnownLeader, position: int, data: PartitionData) -> int:
        view = memoryview(cast("Buffer", data.records or b""))
        at = 0
        while len(view) - at >= HEADER_SIZE:
            header = read_header(view, at)
            batch = view[at : at + header.size_bytes]
            if len(batch) < header.size_bytes:
                break  # cut off by the limit
            if crc32c(batch[CRC_START:]) != header.crc:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{place}@{header.base_offset}")
            if header.next_offset > data.high_watermark:
                raise Violation(
                    "nothing above the high watermark is served",
                    f"{self._caller.name} got {place} up to {header.next_offset} from broker {leader.node_id} "
                    f"(epoch {leader.epoch}), which says its high watermark is {data.high_watermark}",
                )
            for record in records_of(header, batch):
                if record.offset < position:
                    continue
                if record.offset != position and not self._manner.may_have_holes:
                    raise Violation(
                        "offsets have no holes",
                        f"{self._caller.name} reads {place} at {position} and gets {record.offset} from broker "
                        f"{leader.node_id} (epoch {leader.epoch})",
                    )
                value = _written(record)
                self._history.saw(place, record.offset, value, self._caller.name, leader.node_id, leader.epoch)
                position = record.offset + 1
            if position < header.next_offset:
                if not self._manner.may_have_holes:
                    raise Violation(
                        "offsets have no holes",
                        f"{self._caller.name} reads {place} and gets a batch up to {header.next_offset} that ends at "
                        f"{position} from broker {leader.node_id} (epoch {leader.epoch})",
                    )
                position = header.next_offset
            at += header.size_bytes
        return position
