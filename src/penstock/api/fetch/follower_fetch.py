"""A follower's fetch: it reads to the end of the log, and its fetch offsets report what the follower holds.

- It reports once, with the first look. A partition that is looked at only because of news reports nothing.
- A follower that keeps up fetches from the log end: that is noted, and the partition is not looked at before there is
  news.
- On durable topics followers report their position separately (`handlers.replica_acknowledgement`).
- A throttled follower gets nothing for now (`api.fetch.leader_throttle`): the partition is put back for the next look.

Must not know: how a request waits, session epochs, how an answer is encoded.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.fetch.fetch_findings import NO_ROOM, Asked, Findings
from penstock.api.fetch.fetch_sessions import SessionPartition
from penstock.api.fetch.fetch_watch import FetchWatch, Listening
from penstock.api.fetch.leader_throttle import LeaderThrottle
from penstock.api.fetch.parked_request import in_steps
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.storage.aborted_lookup import AbortedLookup
from penstock.storage.segments.lookups import Lookup
from penstock.storage.segments.slices import LogSlice
from penstock.wire.messages.fetch import FetchRequest, PartitionData

NOTHING: dict[SessionPartition, None] = {}


class FollowerFetch:
    makes_way: ClassVar = True  # a follower with another request gets the records found so far

    __slots__ = (
        "_broker_epoch",
        "_may_wait",
        "_only_news",
        "_partitions",
        "_replica_id",
        "_throttle",
        "asked",
        "ctx",
        "findings",
    )

    def __init__(
        self,
        ctx: RequestContext,
        request: FetchRequest,
        asked: Asked,
        max_bytes: int,
        partitions: HostedPartitions,
        throttle: LeaderThrottle,
    ) -> None:
        self.ctx = ctx
        self.asked = asked
        self._replica_id = replica_of(request)
        self._broker_epoch = -1 if request.replica_state is None else request.replica_state.replica_epoch
        self._may_wait = request.max_wait_ms > 0 and request.min_bytes > 0
        self._only_news = NOTHING
        self._partitions = partitions
        self._throttle = throttle
        self.findings = Findings(partitions, ctx.version, asked.watch, request.min_bytes, max_bytes, False)

    # -- looking ------------------------------------------------------------------------------------------------

    def first_look(self) -> None:
        for one in self._first():
            self._look_first(one)

    def first_look_in_steps(self) -> Generator[None, None, None]:
        yield from in_steps(self._first(), self._look_first)

    def _first(self) -> Collection[SessionPartition]:
        asked = self.asked
        news = NOTHING if asked.watch is None else asked.watch.take_all()
        if not news:
            return asked.partitions
        first = dict.fromkeys(asked.partitions)
        self._only_news = {one: None for one in news if one not in first}
        return first | self._only_news

    def _look_first(self, one: SessionPartition) -> None:
        self.findings.look_at(one, self._read if one in self._only_news else self._read_first)

    def look_at(self, one: SessionPartition) -> None:
        self.findings.look_at(one, self._read)

    def offered(self) -> Collection[SessionPartition]:
        """Nothing: a follower checks the answer against its own log."""
        return ()

    def _read_first(self, partition: Partition, asked: SessionPartition) -> PartitionData | None:
        if self._has_all(partition, asked):
            return None
        return self._read(partition, asked, is_first=True)

    def _has_all(self, partition: Partition, asked: SessionPartition) -> bool:
        watch = self.asked.watch
        if (
            not self._may_wait
            or watch is None
            or watch.is_eager
            or asked.fetch_offset != partition.log.log_end_offset
            or asked.last_fetched_epoch != partition.leader_epoch
            or asked.current_leader_epoch != partition.leader_epoch
            or asked.sent_log_start_offset != partition.log.log_start_offset
            or asked.had_error
        ):
            return False
        partition.check_follower(self._replica_id, asked.current_leader_epoch)
        partition.check_online()
        self._take_note(partition, asked)
        if asked.sent_high_watermark != partition.high_watermark:
            watch.put_back(asked)  # sent with the next answer
        return True

    def _read(self, partition: Partition, asked: SessionPartition, *, is_first: bool = False) -> PartitionData:
        partition.check_leader_epoch(asked.current_leader_epoch)
        partition.check_follower(self._replica_id, asked.current_leader_epoch)
        findings, watch = self.findings, self.asked.watch
        data = findings.blank(partition, asked)
        if findings.diverges(partition, asked, data):
            return data
        partition.check_online()
        partition.check_offset(asked.fetch_offset)
        if is_first:
            self._take_note(partition, asked)
            data.high_watermark = partition.high_watermark
            data.last_stable_offset = partition.last_stable_offset
        if 0 <= asked.sent_log_start_offset < data.log_start_offset:
            findings.is_urgent = True  # a DeleteRecords request waits until all replicas have deleted the records
        if watch is not None and watch.is_eager and asked.sent_high_watermark < data.high_watermark:
            findings.is_urgent = True
        if self._throttle.is_held_back(partition, self._replica_id):
            self._put_back(asked)
            return data
        room = findings.room_for(asked)
        if room == NO_ROOM:
            if asked.fetch_offset < partition.log.log_end_offset:
                self._put_back(asked)
            return data
        piece = partition.read_to_end(asked.fetch_offset, room)
        if piece is not None:
            if piece.size <= room or not findings.bytes_found:
                data.records = piece
            else:
                self._put_back(asked)
        return data

    def _put_back(self, asked: SessionPartition) -> None:
        if self.asked.watch is not None:
            self.asked.watch.put_back(asked)

    def _take_note(self, partition: Partition, asked: SessionPartition) -> None:
        """The follower holds everything below its fetch offset; on durable topics it reports that separately."""
        now_ms = self._partitions.host.now_ms()
        if partition.is_durable:
            partition.follower_asked(self._replica_id, asked.log_start_offset, now_ms, self._broker_epoch)
        else:
            partition.follower_fetched(
                self._replica_id, asked.fetch_offset, asked.log_start_offset, now_ms, self._broker_epoch
            )

    def aborted_lookup(self, partition: Partition, asked: SessionPartition) -> None:
        """Followers read undecided records, too."""

    def keep_aborted(self, asked: SessionPartition, lookup: AbortedLookup) -> None:
        """Never called: `aborted_lookup` returns None."""

    def lookup(self, partition: Partition, asked: SessionPartition) -> Lookup:
        """For a worker: locates records that `_read` did not find in memory."""
        return partition.lookup(asked.fetch_offset, min(asked.max_bytes, self.findings.max_bytes), to_end=True)

    # -- waiting ------------------------------------------------------------------------------------------------

    @property
    def is_enough(self) -> bool:
        return self.findings.is_enough

    @property
    def has_quiet_session(self) -> bool:
        """Whether there may be news although nothing was looked at."""
        return self.asked.watch is not None

    def listen(self) -> FetchWatch | Listening:
        """The source of news: log end offsets."""
        return self.asked.watch or self.findings.listen(Listening(to_tails=True))

    # -- answering ----------------------------------------------------------------------------------------------

    def count(self, partition: Partition, sent: LogSlice) -> None:
        self._throttle.sent(partition, self._replica_id, sent.size)


def replica_of(request: FetchRequest) -> int:
    """Below zero: a consumer."""
    state = request.replica_state
    return request.replica_id if state is None else state.replica_id
