"""One partition on this broker: its log, its high watermark, and who waits for it.

The high watermark is what readers may see and what acks=all waits for. Under the default
policy (`flush.messages=1`) it follows the stable offset: nothing is served, and nothing
acknowledged, that a power failure could take back. With flushing left to the system it
follows the log end.

Invariants: `high_watermark` never goes back while the partition lives; an append is
answered to acks=all only at or below it; a log that went offline answers every waiter
with KAFKA_STORAGE_ERROR and accepts nothing more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from penstock.config.topic import TopicConfig
from penstock.model.errors import ApiError, ErrorCode, LogOffline, StorageError
from penstock.ports.disk import Buffer
from penstock.records.batch import BatchHeader
from penstock.storage.group_commit import IDLE, GroupCommit
from penstock.storage.log import Flush, Log, LogSlice, Position

log = logging.getLogger(__name__)

CommitCallback: TypeAlias = Callable[[ErrorCode], None]


class Waiter(Protocol):
    """A parked fetch."""

    def notify(self) -> None: ...


class Partition:
    __slots__ = (
        "_awaiting_commit",
        "_commit",
        "_end",
        "config",
        "flush_state",
        "high_watermark",
        "index",
        "is_deleted",
        "is_durable",
        "isr",
        "leader",
        "leader_epoch",
        "log",
        "topic",
        "topic_id",
        "waiters",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: Log,
        config: TopicConfig,
        commit: GroupCommit,
        *,
        leader: int,
        leader_epoch: int,
        isr: tuple[int, ...],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self._commit = commit
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.is_deleted = False
        self.flush_state = IDLE
        self._awaiting_commit: deque[tuple[int, CommitCallback]] = deque()
        self.waiters: dict[Waiter, None] = {}
        # Recovery cut what was torn, and `HostedPartitions.open_all` makes the rest stable.
        self._end: Position = log.end_position()
        self.high_watermark = log.log_end_offset
        self.config = config
        self.is_durable = config.flush_messages <= 1

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    def apply_config(self, config: TopicConfig) -> None:
        was_durable = self.is_durable
        self.config = config
        self.is_durable = config.flush_messages <= 1
        if was_durable and not self.is_durable:
            self._advance(self.log.end_position())
        elif self.is_durable and not was_durable:
            self._commit.request(self)

    # -- produce ------------------------------------------------------------------------

    def append(self, header: BatchHeader, data: Buffer, now_ms: int) -> int:
        """Append one checked batch (stage one: its order is fixed); returns its base offset.

        A repeat of a remembered idempotent batch returns the original offset.
        """
        log = self.log
        if log.offline is not None:  # also for a repeat: what it repeats may be lost
            self.check_online()
        if header.producer_id >= 0:
            duplicate = log.producers.check(header)
            if duplicate is not None:
                return duplicate
        base_offset = log.append(header, data, self.leader_epoch, now_ms)
        if self.is_durable:
            self._commit.request(self)
        else:
            self._advance(log.end_position())
            if log.has_unsynced_segments or log.unflushed_messages >= self.config.flush_messages:
                self._commit.request(self)
        return base_offset

    def check_min_isr(self) -> None:
        if len(self.isr) < self.config.min_insync_replicas:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self!r} has {len(self.isr)} in-sync replica(s), min.insync.replicas is "
                f"{self.config.min_insync_replicas}",
            )

    def when_committed(self, offset: int, callback: CommitCallback) -> None:
        """Call back once the high watermark reaches `offset`, or with the error that prevents it."""
        self._awaiting_commit.append((offset, callback))

    # -- flush --------------------------------------------------------------------------

    def begin_flush(self) -> Flush | None:
        if self.is_deleted or self.log.offline is not None:
            return None
        ticket = self.log.begin_flush()
        if ticket is None and self.log.offline is not None:
            self._went_offline(self.log.offline)
        return ticket

    def end_flush(self, ticket: Flush, error: OSError | None) -> None:
        self.log.end_flush(ticket, error)
        if error is not None:
            self._went_offline(error)
        elif self.is_durable:
            self._advance(ticket.end)

    def _went_offline(self, error: OSError) -> None:
        if not self.is_deleted:
            log.critical("%r is offline: flush failed: %s; restart the broker after mending the disk", self, error)
        self._fail(ErrorCode.KAFKA_STORAGE_ERROR)

    def _advance(self, end: Position) -> None:
        if end.offset <= self.high_watermark:
            return
        self._end = end
        self.high_watermark = high_watermark = end.offset
        awaiting = self._awaiting_commit
        while awaiting and awaiting[0][0] <= high_watermark:
            awaiting.popleft()[1](ErrorCode.NONE)
        if self.waiters:
            self._notify()

    def _notify(self) -> None:
        for waiter in list(self.waiters):
            waiter.notify()

    def _fail(self, code: ErrorCode) -> None:
        awaiting, self._awaiting_commit = self._awaiting_commit, deque()
        for _, callback in awaiting:
            callback(code)
        self._notify()

    # -- fetch --------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Everything below is decided: no open transaction starts before it."""
        unstable = self.log.producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(self.high_watermark, unstable)

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Fence clients that know an older or a newer leader than we do (-1: they do not say)."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def check_online(self) -> None:
        if self.log.offline is not None:
            raise LogOffline(self.log.directory, self.log.offline)

    def check_offset(self, offset: int) -> None:
        if offset < self.log.log_start_offset or offset > self.log.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)

    def read(self, offset: int, max_bytes: int, *, read_committed: bool = False) -> LogSlice | None:
        """Whole batches from the one that holds `offset`; None when nothing is readable yet."""
        log = self.log
        # First of all: a log that could not be opened knows nothing of its offsets, and a client
        # that is told "out of range" starts over somewhere else.
        self.check_online()
        self.check_offset(offset)
        limit = self.high_watermark
        if read_committed:
            limit = self.last_stable_offset
        if offset >= limit:
            return None
        try:
            if limit < self.high_watermark:
                return log.read_below(offset, max_bytes, limit)
            return log.read(offset, max_bytes, self._end)
        except OSError as error:
            raise StorageError(f"cannot read {self!r} at offset {offset}: {error}") from error

    # -- housekeeping -------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Move the log start; -1 means the high watermark. Returns the new low watermark."""
        self.check_online()
        target = self.high_watermark if before_offset == -1 else before_offset
        if target < 0 or target > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete {self!r} up to {before_offset}: its high watermark is {self.high_watermark}",
            )
        self.log.advance_log_start(target)
        return self.log.log_start_offset

    def segments_replaced(self, bases: Sequence[int], next_base: int) -> None:
        """Compaction put one segment in the place of those at `bases`; the one after them is at `next_base`."""
        if self._end.segment in bases:  # all of them lie below the high watermark
            self._end = Position(self._end.offset, next_base, 0)

    def delete(self) -> None:
        """The topic is gone: tell everyone who waits. Files are the caller's business."""
        self.is_deleted = True
        self._fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
