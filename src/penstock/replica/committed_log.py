"""A log with a high watermark: what of it may be read, who waits for it, and how it is cut.

The same for leader and follower; which of the two it is, and what moves the high watermark, `Partition` knows.

Invariants
- `high_watermark` goes back only with the end of the log, when a follower cuts it. While it is cut nobody reads it.
- Waiters are called in the turn in which what they wait for happens; a parked fetch looks once at the end of it.
- A log that went offline answers every waiter with KAFKA_STORAGE_ERROR and accepts nothing more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from penstock.config.topic import TopicConfig
from penstock.model.errors import ApiError, ErrorCode, LogOffline, StorageError
from penstock.storage.cut import Cut
from penstock.storage.durability import Flush, Position
from penstock.storage.group_commit import IDLE
from penstock.storage.log import Log
from penstock.storage.lookups import Lookup
from penstock.storage.slices import LogSlice

log = logging.getLogger(__name__)

CommitCallback: TypeAlias = Callable[[ErrorCode], None]


class Waiter(Protocol):
    """A parked fetch."""

    def notify(self, source: CommittedLog) -> None: ...


class CommittedLog:
    __slots__ = (
        "_awaiting_commit",
        "_end",
        "config",
        "flush_state",
        "high_watermark",
        "index",
        "is_deleted",
        "is_durable",
        "log",
        "tail_waiters",
        "topic",
        "topic_id",
        "waiters",
    )

    def __init__(
        self, topic: str, topic_id: bytes, index: int, log: Log, config: TopicConfig, high_watermark: int | None
    ) -> None:
        """`high_watermark`: as it was last known; None: the end of the log."""
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.config = config
        self.is_durable = config.flush_messages <= 1
        self.is_deleted = False
        self.flush_state = IDLE
        self._awaiting_commit: deque[tuple[int, CommitCallback]] = deque()
        self.waiters: dict[Waiter, None] = {}  # for the high watermark
        self.tail_waiters: dict[Waiter, None] = {}  # for the end of the log: followers
        # Recovery cut what was torn, and `HostedPartitions.open_all` makes the rest stable.
        self._end: Position = log.end_position()
        self.high_watermark = log.log_end_offset
        if high_watermark is not None:
            self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    def claimed_offset(self) -> int:
        """Everything below counts as held by this replica."""
        return self.log.stable_offset if self.is_durable else self.log.log_end_offset

    # -- flush ------------------------------------------------------------------------------------------------

    def begin_flush(self) -> Flush | None:
        if self.is_deleted or self.log.offline is not None:
            return None
        ticket = self.log.begin_flush()
        if ticket is None and self.log.offline is not None:
            self._went_offline(self.log.offline)
        return ticket

    def put_off_flush(self, ticket: Flush) -> None:
        self.log.put_off_flush(ticket)

    def _went_offline(self, error: OSError) -> None:
        if not self.is_deleted:
            log.critical("%r is offline: flush failed: %s; it is tried again when the disk is well", self, error)
        self._fail(ErrorCode.KAFKA_STORAGE_ERROR)

    # -- high watermark ---------------------------------------------------------------------------------------

    def _advance(self, end: Position) -> None:
        """As the only replica there is, or because the leader says so."""
        if end.offset <= self.high_watermark:
            return
        self._end = end
        self.high_watermark = high_watermark = end.offset
        self._committed(high_watermark)

    def _committed(self, high_watermark: int) -> None:
        awaiting = self._awaiting_commit
        while awaiting and awaiting[0][0] <= high_watermark:
            awaiting.popleft()[1](ErrorCode.NONE)
        if self.waiters:
            tell(self.waiters, self)

    def log_start_moved(self) -> None:
        """Consumers' sessions tell of it."""
        if self.waiters:
            tell(self.waiters, self)

    def _notify(self) -> None:
        tell(self.waiters, self)
        tell(self.tail_waiters, self)

    def _fail(self, code: ErrorCode) -> None:
        self._fail_awaiting(code)
        self._notify()

    def _fail_awaiting(self, code: ErrorCode) -> None:
        awaiting, self._awaiting_commit = self._awaiting_commit, deque()
        for _, callback in awaiting:
            callback(code)

    # -- truncation, on followers -----------------------------------------------------------------------------

    def truncation_point(self, epoch: int, end_offset: int) -> int:
        """Where the log parts from the leader's, whose largest epoch up to ours is `epoch` and ends at `end_offset`."""
        owner = self.log
        end = owner.log_end_offset
        if end_offset < 0:  # the leader knows nothing of our epochs
            return min(self.high_watermark, end)
        if epoch >= 0:
            own_epoch, own_end = owner.epochs.end_offset_for(epoch, end)
            if own_end >= 0 and own_epoch >= 0:
                return min(own_end, end_offset, end) if own_epoch == epoch else min(own_end, end)
        return min(end_offset, end)

    def begin_cut_to_epoch(self, epoch: int, end_offset: int, *, may_wait: bool = True) -> Cut | None:
        """Follower: cut what the leader does not have."""
        return self.begin_cut(self.truncation_point(epoch, end_offset), may_wait=may_wait)

    def begin_cut(self, offset: int, *, may_wait: bool = True) -> Cut | None:
        """As `Log.begin_cut`: a recovery point of at most that is persisted. Then `Cut.run` and `end_cut`."""
        before, mark = self.log.log_end_offset, self.high_watermark
        cut = self.log.begin_cut(offset, may_wait=may_wait)
        if cut is not None:
            log.info("%r: cut from offset %d to %d as the leader has it", self, before, offset)
            self.high_watermark = min(mark, self.log.log_end_offset)
            if self.high_watermark < mark:
                log.warning("%r: high watermark goes back from %d to %d", self, mark, self.high_watermark)
        return cut

    def begin_anew(self, offset: int) -> Cut:
        """Follower: the leader has nothing of what is here. As `begin_cut`."""
        log.warning("%r: begins anew at offset %d, held %r", self, offset, self.log)
        cut = self.log.begin_anew(offset)
        self.high_watermark = self.log.log_end_offset
        return cut

    def end_cut(self, cut: Cut) -> None:
        """Raises StorageError where it failed: then the log is offline."""
        try:
            self.log.end_cut(cut)
            if cut.remainder is not None and cut.remainder.is_anew:
                self.high_watermark = self.log.log_start_offset
                self._end = self.log.end_position()
            self._cut_to_end()
        finally:
            self._notify()  # who waits behind the new end is out of range, or the log is offline

    def truncate_to(self, offset: int) -> None:
        """Here and now. Blocks."""
        cut = self.begin_cut(offset)
        if cut is not None:
            cut.run()
            self.end_cut(cut)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Here and now. Blocks."""
        cut = self.begin_anew(offset)
        cut.run()
        self.end_cut(cut)

    def _cut_to_end(self) -> None:
        end = self.log.end_position()
        if self._end.offset > end.offset:
            self._end = end  # what is written there next may lie elsewhere
        if self.high_watermark >= end.offset:
            self.high_watermark = end.offset
            self._end = end

    # -- fetch ------------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Everything below is decided: no open transaction starts before it."""
        unstable = self.log.producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(self.high_watermark, unstable)

    def check_online(self) -> None:
        if self.log.offline is not None:
            raise LogOffline(self.log.directory, self.log.offline)
        self.log.check_not_being_cut()

    def check_offset(self, offset: int) -> None:
        if offset < self.log.log_start_offset or offset > self.log.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)

    def read(self, offset: int, max_bytes: int, *, read_committed: bool = False) -> LogSlice | None:
        """Whole batches from the one that holds `offset`; None when nothing is readable yet.

        Never waits for the disk: NotCached where it would have to, then `lookup`.
        """
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
                return log.reader.read_below(offset, max_bytes, limit, may_wait=False)
            if self._end.offset != limit:
                self._end = log.reader.position_of(limit, may_wait=False)
            return log.reader.read(offset, max_bytes, self._end, may_wait=False)
        except OSError as error:
            raise StorageError(f"cannot read {self!r} at offset {offset}: {error}") from error

    def read_to_end(self, offset: int, max_bytes: int) -> LogSlice | None:
        """For followers: also what is not committed yet. NotCached as in `read`."""
        self.check_online()
        self.check_offset(offset)
        try:
            return self.log.reader.read(offset, max_bytes, may_wait=False)
        except OSError as error:
            raise StorageError(f"cannot read {self!r} at offset {offset}: {error}") from error

    def lookup(self, offset: int, max_bytes: int, *, to_end: bool = False, read_committed: bool = False) -> Lookup:
        """For a worker, where `read` or `read_to_end` raised NotCached. Then `LogReader.end_lookup`."""
        if to_end:
            return self.log.reader.lookup(offset, max_bytes)
        end_offset = self.last_stable_offset if read_committed else self.high_watermark
        return self.log.reader.lookup(offset, max_bytes, end_offset)

    # -- housekeeping -----------------------------------------------------------------------------------------

    def segments_replaced(self, bases: Sequence[int], next_base: int) -> None:
        """Compaction put one segment in the place of those at `bases`; the one after them is at `next_base`."""
        if self._end.segment in bases:  # all of them lie below the high watermark
            self._end = Position(self._end.offset, next_base, 0)


def tell(waiters: dict[Waiter, None], source: CommittedLog) -> None:
    for waiter in list(waiters):
        waiter.notify(source)
