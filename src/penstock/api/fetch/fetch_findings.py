"""The requested partitions of a fetch and its findings: the common part of consumers' and followers' fetches.

A partition may be looked at several times; each look replaces its earlier finding. The caller decides how to read:
below the high watermark (`api.fetch.consumer_fetch`) or to the end of the log (`api.fetch.follower_fetch`). Must not
know: the client, how a request waits, how an answer is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from penstock.api.fetch.fetch_sessions import NO_SESSION, FetchSession, SessionPartition
from penstock.api.fetch.fetch_watch import FetchWatch, Listening
from penstock.model.errors import ApiError, ErrorCode, NotCached, StorageError
from penstock.ports.disk import FileSlice
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.storage.segments.lookups import Lookup
from penstock.wire.messages.fetch import EpochEndOffset, PartitionData

FIRST_WITH_TOPIC_IDS: Final = 13
NO_ROOM: Final = -1


@dataclass(slots=True)
class Asked:
    """The partitions of a request, including its session."""

    partitions: Sequence[SessionPartition]
    """For the first look. With a watch, partitions with news are added."""
    session: FetchSession | None
    watch: FetchWatch | None
    is_incremental: bool

    @property
    def session_id(self) -> int:
        return NO_SESSION if self.session is None else self.session.id


class Found(NamedTuple):
    asked: SessionPartition
    data: PartitionData
    partition: Partition | None


Read: TypeAlias = Callable[[Partition, SessionPartition], PartitionData | None]
"""None: nothing to look at before there is news. Raises NotCached if a worker must locate the records."""


class Findings:
    __slots__ = (
        "_lists_aborted",
        "_partitions",
        "_uses_topic_ids",
        "bytes_found",
        "cold",
        "found",
        "is_urgent",
        "max_bytes",
        "min_bytes",
        "news",
    )

    def __init__(
        self,
        partitions: HostedPartitions,
        version: int,
        watch: FetchWatch | None,
        min_bytes: int,
        max_bytes: int,
        lists_aborted: bool,
    ) -> None:
        """`lists_aborted`: the answer lists aborted transactions."""
        self._partitions = partitions
        self._uses_topic_ids = version >= FIRST_WITH_TOPIC_IDS
        self._lists_aborted = lists_aborted
        self.news: FetchWatch | Listening | None = watch  # registers every partition that is looked at
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.found: dict[SessionPartition, Found] = {}
        self.cold: list[SessionPartition] = []  # to be located in a worker
        self.bytes_found = 0
        self.is_urgent = False  # an error, for example: do not wait for more bytes

    @property
    def is_enough(self) -> bool:
        return self.bytes_found >= self.min_bytes or self.is_urgent or bool(self.cold)

    def look_at(self, one: SessionPartition, read: Read) -> bool:
        """Return whether there are records, an error, or an offset to locate."""
        before = self.found.get(one)
        if before is not None and isinstance(before.data.records, FileSlice):
            self.bytes_found -= before.data.records.size
        partition: Partition | None = None
        is_something = True
        try:
            if self._uses_topic_ids:
                partition = self._partitions.get_by_id(one.topic_id, one.index)
            else:
                partition = self._partitions.get(one.topic, one.index)
            if self.news is not None:
                self.news.watch(one, partition)
            data = read(partition, one)
            if data is None:
                return False
            if isinstance(data.records, FileSlice):
                self.bytes_found += data.records.size
            else:
                is_something = False
        except NotCached:
            assert partition is not None, "somebody has read from it"
            data = self.blank(partition, one)
            self.cold.append(one)
        except (ApiError, StorageError) as error:
            data = error_data(one.index, ErrorCode(error.code))
            self.is_urgent = True
        self.found[one] = Found(one, data, partition)
        return is_something

    def blank(self, partition: Partition, asked: SessionPartition) -> PartitionData:
        """The fields of a partition's answer other than its records."""
        return PartitionData(
            partition_index=asked.index,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=[] if self._lists_aborted else None,
        )

    def diverges(self, partition: Partition, asked: SessionPartition, data: PartitionData) -> bool:
        """Whether the reader's log diverges from ours before its fetch offset. The answer then has the divergence
        point.
        """
        if asked.last_fetched_epoch < 0:
            return False
        epoch, end = partition.end_of_epoch(asked.last_fetched_epoch)
        # without epoch and end offset the follower would read the answer as "nothing diverges"
        if epoch < 0 or end < 0:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"leader epoch {asked.last_fetched_epoch} is unknown here")
        if epoch == asked.last_fetched_epoch and end >= asked.fetch_offset:
            return False
        data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
        self.is_urgent = True
        return True

    def room_for(self, asked: SessionPartition) -> int:
        """In bytes; NO_ROOM: none. Only the first batch of an answer may exceed the room."""
        room = min(asked.max_bytes, self.max_bytes - self.bytes_found)
        if room > 0:
            return room
        return NO_ROOM if self.bytes_found else 0

    def listen(self, listening: Listening) -> Listening:
        """Listen to all partitions found, and to those looked at later: without a session there is no watch."""
        self.news = listening
        for one, _, partition in self.found.values():
            if partition is not None:
                listening.watch(one, partition)
        return listening

    def take_cold(
        self, lookup: Callable[[Partition, SessionPartition], Lookup]
    ) -> list[tuple[SessionPartition, Partition, Lookup]]:
        """The lookups that need a worker. Afterwards their partitions are looked at again."""
        cold, self.cold = self.cold, []
        lookups: list[tuple[SessionPartition, Partition, Lookup]] = []
        for one in cold:
            partition = self.found[one].partition
            assert partition is not None
            try:
                lookups.append((one, partition, lookup(partition, one)))
            except StorageError as error:
                self.put_error(one, partition, ErrorCode(error.code))
        return lookups

    def put_error(self, asked: SessionPartition, partition: Partition, code: ErrorCode) -> None:
        self.found[asked] = Found(asked, error_data(asked.index, code), partition)
        self.is_urgent = True


def error_data(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=None,
        records=b"",
    )
