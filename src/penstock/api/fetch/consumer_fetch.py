"""A consumer's fetch: it reads below the high watermark, with `read_committed` below the last stable offset.

- The first look covers everything in the request. With a session it covers only the partitions in this request, those
  offered last time (a consumer may repeat a fetch without naming them) and those with news.
- Offered records are read again just before the answer: a log may have been truncated meanwhile.
- Consumers may read from followers, and instead of records the leader may return a replica in the consumer's rack
  (KIP-392).

With `read_committed` the answer lists the aborted transactions in its range, from the log's `.txnindex` files.

Must not know: how a request waits, session epochs, how an answer is encoded.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.fetch.fetch_findings import NO_ROOM, Asked, Findings
from penstock.api.fetch.fetch_sessions import SessionPartition
from penstock.api.fetch.fetch_watch import FetchWatch, Listening
from penstock.api.fetch.parked_request import in_steps
from penstock.api.traffic import Traffic
from penstock.core.partition.followers import RACK_AWARE_SELECTOR
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.storage.aborted_lookup import AbortedLookup
from penstock.storage.segments.lookups import Lookup
from penstock.storage.segments.slices import LogSlice
from penstock.wire.messages.fetch import AbortedTransaction, FetchRequest, PartitionData

READ_COMMITTED = 1
FIRST_FROM_FOLLOWERS = 11  # KIP-392: older consumers may read from the leader only


class ConsumerFetch:
    makes_way: ClassVar = False

    __slots__ = ("_aborted", "_partitions", "_rack", "_read_committed", "_traffic", "asked", "ctx", "findings")

    def __init__(
        self,
        ctx: RequestContext,
        request: FetchRequest,
        asked: Asked,
        max_bytes: int,
        partitions: HostedPartitions,
        traffic: Traffic,
    ) -> None:
        self.ctx = ctx
        self.asked = asked
        self._read_committed = request.isolation_level == READ_COMMITTED
        self._rack = request.rack_id
        self._aborted: dict[SessionPartition, AbortedLookup] = {}
        self._partitions = partitions
        self._traffic = traffic
        self.findings = Findings(
            partitions, ctx.version, asked.watch, request.min_bytes, max_bytes, self._read_committed
        )

    # -- looking ------------------------------------------------------------------------------------------------

    def first_look(self) -> None:
        for one in self._first():
            self.look_at(one)

    def first_look_in_steps(self) -> Generator[None, None, None]:
        yield from in_steps(self._first(), self.look_at)

    def _first(self) -> Collection[SessionPartition]:
        asked = self.asked
        if asked.watch is None:
            return asked.partitions
        return asked.watch.take_all() | dict.fromkeys(asked.partitions)

    def look_at(self, one: SessionPartition) -> None:
        if self.findings.look_at(one, self._read) and self.asked.watch is not None:
            self._stands(one)

    def offered(self) -> Collection[SessionPartition]:
        return [one for one, found in self.findings.found.items() if found.data.records]

    def _stands(self, asked: SessionPartition) -> None:
        """The next fetch looks at it even without news."""
        watch = self.asked.watch
        if watch is not None:
            watch.standing[asked] = None

    def _read(self, partition: Partition, asked: SessionPartition) -> PartitionData:
        partition.check_leader_epoch(asked.current_leader_epoch)
        if self.ctx.version < FIRST_FROM_FOLLOWERS:
            partition.check_leading()
        findings = self.findings
        data = findings.blank(partition, asked)
        if self._rack:
            preferred = self._preferred_replica(partition, asked.fetch_offset)
            if preferred is not None:
                data.preferred_read_replica = preferred
                self._stands(asked)
                findings.is_urgent = True
                return data
        if findings.diverges(partition, asked, data):
            self._stands(asked)
            return data
        room = findings.room_for(asked)
        if room == NO_ROOM:
            partition.check_online()
            partition.check_offset(asked.fetch_offset)
            self._stands(asked)
            return data
        piece = partition.read(asked.fetch_offset, room, read_committed=self._read_committed)
        if piece is not None:
            if piece.size <= room or not findings.bytes_found:
                if self._read_committed:
                    # Before the records: if these transactions are not in memory, no records are offered yet.
                    aborted = self._aborted_between(partition, asked, piece.next_offset)
                    data.aborted_transactions = [
                        AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                        for producer_id, first_offset in aborted
                    ]
                data.records = piece
            else:
                self._stands(asked)
        return data

    def _aborted_between(
        self, partition: Partition, asked: SessionPartition, end_offset: int
    ) -> Iterable[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions in the range of these records."""
        start, known = asked.fetch_offset, {}
        lookup = self._aborted.get(asked)
        if lookup is not None and lookup.found is not None:
            known = dict.fromkeys((one.producer_id, one.first_offset) for one in lookup.found)
            start = lookup.upper_bound
        if start < end_offset:  # the log has grown, or no worker had to look
            found = partition.log.aborted_between(start, end_offset)
            known |= dict.fromkeys((one.producer_id, one.first_offset) for one in found)
        return known

    def _preferred_replica(self, partition: Partition, offset: int) -> int | None:
        if not is_rack_aware(self._partitions):
            return None
        return partition.preferred_read_replica(self._rack, offset, self._partitions.rack_of)

    def lookup(self, partition: Partition, asked: SessionPartition) -> Lookup:
        """For a worker: locates records that `_read` did not find in memory."""
        max_bytes = min(asked.max_bytes, self.findings.max_bytes)
        return partition.lookup(asked.fetch_offset, max_bytes, read_committed=self._read_committed)

    def aborted_lookup(self, partition: Partition, asked: SessionPartition) -> AbortedLookup | None:
        """Needed together with `lookup`: perhaps only the aborted transactions were not in memory."""
        if not self._read_committed or not partition.log.has_aborted:
            return None
        return partition.log.aborted_lookup(asked.fetch_offset, partition.last_stable_offset)

    def keep_aborted(self, asked: SessionPartition, lookup: AbortedLookup) -> None:
        """Keep the findings of a worker for the next look."""
        self._aborted[asked] = lookup

    # -- waiting ------------------------------------------------------------------------------------------------

    @property
    def is_enough(self) -> bool:
        return self.findings.is_enough

    @property
    def has_quiet_session(self) -> bool:
        """Whether there may be news although nothing was looked at."""
        session = self.asked.session
        return self.asked.watch is not None and session is not None and bool(session.partitions)

    def listen(self) -> FetchWatch | Listening:
        """The source of news: high watermarks."""
        return self.asked.watch or self.findings.listen(Listening(to_tails=False))

    # -- answering ----------------------------------------------------------------------------------------------

    def count(self, partition: Partition, sent: LogSlice) -> None:
        traffic = self._traffic.of(partition.topic)
        traffic.bytes_out += sent.size
        traffic.records_out += sent.next_offset - sent.offset


def is_rack_aware(partitions: HostedPartitions) -> bool:
    return partitions.broker.replica_selector_class == RACK_AWARE_SELECTOR
