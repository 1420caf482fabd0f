"""One partition on this broker: a log with a high watermark, the role of this replica, and who waits for it.

The high watermark is what readers may see and what acks=all waits for: everything below it is on every in-sync
replica. What counts is what each of them holds: under the default policy (`flush.messages=1`) what it has made stable,
so nothing is served, and nothing acknowledged, that a power failure could take back; with flushing left to the system
what it has written. A follower learns the high watermark from its leader.

One class: whether an append moves the high watermark depends on the role, and every produce and every fetch looks at
both. What other replicas hold is `replication.Followers`. Where a follower's log parts from its leader's, and in which
order it is cut, is `divergence`.

Invariants
- The high watermark of a leader never goes back, and does not move while fewer replicas than `min.insync.replicas`
  are in sync. That of a follower goes back only with the end of the log, when that is cut. Nobody reads the log
  meanwhile.
- An append is answered to acks=all only at or below the high watermark, by the leader that took it in; whoever waits
  when leadership ends is told NOT_LEADER_OR_FOLLOWER.
- Waiters are called in the turn in which what they wait for happens; a parked fetch looks once at the end of it.
- A log that went offline answers every waiter with KAFKA_STORAGE_ERROR and accepts nothing more.
- Metadata of an older partition epoch than the one known changes nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from penstock.config.topic import TopicConfig
from penstock.core.metadata.image import NO_LEADER, PartitionState, effective_min_isr
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, BatchHeader
from penstock.replica.host import Host
from penstock.replica.replication import Follower, Followers
from penstock.storage.cut import Cut
from penstock.storage.durability import Flush, Position, is_passing_at_open
from penstock.storage.group_commit import IDLE, GroupCommit
from penstock.storage.log import Log
from penstock.storage.lookups import Lookup
from penstock.storage.slices import LogSlice

log = logging.getLogger(__name__)

CommitCallback: TypeAlias = Callable[[ErrorCode], None]


class Waiter(Protocol):
    """A parked fetch."""

    def notify(self, source: Partition) -> None: ...


class Partition:
    __slots__ = (
        "_adding",
        "_awaiting_commit",
        "_awaiting_deletion",
        "_commit",
        "_end",
        "_followers",
        "_gate",
        "_promised",
        "_removing",
        "_told",
        "config",
        "epoch_start_offset",
        "flush_state",
        "high_watermark",
        "host",
        "index",
        "is_deleted",
        "is_durable",
        "is_leader",
        "isr",
        "leader",
        "leader_epoch",
        "log",
        "partition_epoch",
        "replicas",
        "tail_waiters",
        "topic",
        "topic_id",
        "waiters",
        "when_claimed",
        "when_damaged",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        log: Log,
        config: TopicConfig,
        commit: GroupCommit,
        host: Host,
        *,
        high_watermark: int | None = None,
    ) -> None:
        """Follows nobody until `apply_state`. `high_watermark`: as it was last known; None: the end of the log."""
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.config = config
        self.is_durable = config.flush_messages <= 1
        self.is_deleted = False
        self.flush_state = IDLE
        self.waiters: dict[Waiter, None] = {}  # for the high watermark
        self.tail_waiters: dict[Waiter, None] = {}  # for the end of the log: followers
        self._awaiting_commit: deque[tuple[int, CommitCallback]] = deque()
        self._awaiting_deletion: list[tuple[int, CommitCallback]] = []
        # Recovery cut what was torn, and `HostedPartitions.open_all` makes the rest stable.
        self._end: Position = log.end_position()
        self.high_watermark = log.log_end_offset
        if high_watermark is not None:
            self.high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        self._commit = commit
        log.is_flushed_by_owner = True
        self.host = host
        self.leader = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self._adding: tuple[int, ...] = ()
        self._removing: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.is_leader = False
        self.epoch_start_offset = 0  # where the log ended when this broker became leader
        self._followers: Followers | None = None  # while leading with other replicas
        self._promised = 0  # where the log ended when the topic became durable: until then what was written counted
        self._gate: Callable[[Partition], None] | None = _refuse_append
        self._told: list[PartitionState] = []  # while the log is being cut
        self.when_claimed: Callable[[Partition], None] | None = None
        self.when_damaged: Callable[[Partition, str | None], None] | None = None

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def node_id(self) -> int:
        return self.host.node_id

    def apply_config(self, config: TopicConfig) -> None:
        was_durable = self.is_durable
        self.config = config
        self.is_durable = config.flush_messages <= 1
        if self.is_durable and not was_durable:
            self._promised = self.log.log_end_offset
            if self._followers is not None:
                self._followers.became_durable(self.host)
            self._commit.request(self)
            if not self.is_leader and self.log.stable_offset >= self.log.log_end_offset:
                self._claim()  # no flush will: there is nothing to flush
        elif self.is_leader:  # flushes or replicas that were waited for may no longer be needed
            self._holds(self.log.end_position() if not self.is_durable else None)

    # -- roles ------------------------------------------------------------------------------------------------

    def apply_state(self, state: PartitionState) -> None:
        """What the metadata says: lead, follow, or go on with other replicas.

        While the log is being cut nobody can lead with it, or follow another leader: that waits for the end of the cut.
        """
        if self.log.is_being_cut:
            self._told.append(state)
            return
        if state.partition_epoch < self.partition_epoch or state.leader_epoch < self.leader_epoch:
            return
        is_new_epoch = state.leader_epoch > self.leader_epoch
        # A change that the controller has told this leader of already: what is pending by now was asked for after it.
        is_news = state.partition_epoch > self.partition_epoch
        self.partition_epoch = state.partition_epoch
        self.leader_epoch = state.leader_epoch
        self.leader = state.leader
        self.replicas, self._adding, self._removing = state.replicas, state.adding, state.removing
        before, self.isr = self.isr, state.isr
        if state.leader != self.host.node_id:
            self._follow()
        elif is_new_epoch or not self.is_leader:
            self._lead()
        else:
            self.host.count_isr_change(before, self.isr)
            self._go_on_leading(is_news=is_news)

    @property
    def is_told_later(self) -> bool:
        """What the metadata says waits for the end of a cut; `Host.on_told` hears of it then."""
        return bool(self._told)

    @property
    def newest_epochs(self) -> tuple[int, int]:
        """(partition epoch, leader epoch) of the newest metadata that it was told of, also of what waits."""
        newest = self._told[-1] if self._told else self
        return newest.partition_epoch, newest.leader_epoch

    def _lead(self) -> None:
        host = self.host
        self.is_leader = True
        self.epoch_start_offset = self.log.log_end_offset
        self._gate = None if host.lease is None else _check_lease
        self._followers = None
        if len(self.replicas) > 1:
            self._followers = Followers(host.node_id, self.replicas, self.isr, host.now_ms())
        self._holds(None)
        self._notify()

    def _go_on_leading(self, *, is_news: bool) -> None:
        followers = self._followers
        if len(self.replicas) == 1:
            self._followers = None
        elif followers is None:
            self._followers = Followers(self.host.node_id, self.replicas, self.isr, self.host.now_ms())
        else:
            followers.assign(self.replicas)
            if is_news:
                followers.commit(self.isr)
        self._isr_changed()

    def _follow(self) -> None:
        was_leader, self.is_leader = self.is_leader, False
        self._followers = None
        self._gate = _refuse_append
        if was_leader:
            self._fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._notify()

    def when_committed(self, offset: int, callback: CommitCallback) -> None:
        """Call back once the high watermark reaches `offset`, or with the error that prevents it.

        On a follower at once: it would still be waited for, before all others, when this replica leads again, and the
        log may have been cut below `offset` by then.
        """
        if self.is_leader:
            self._awaiting_commit.append((offset, callback))
        else:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def report_damage(self, path: str | None = None) -> None:
        """By whoever reads this replica and finds it damaged: in the segment at `path`, or somewhere."""
        if self.when_damaged is not None:
            self.when_damaged(self, path)

    def lease_over(self) -> None:
        """This broker may not lead any more, and does not know yet who does: nobody waits for its word."""
        if self._followers is not None:
            self._fail_awaiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_leading(self) -> None:
        if not self.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.node_id} does not lead {self!r}")

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Fence clients that know an older or a newer leader than we do (-1: they do not say)."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch up to `epoch`, where it ends) in this leader's log.

        Its own epoch begins where it took over, also as long as it has written nothing in it. LogOffline where it does
        not know its log: whoever believed that it is empty would cut his own.
        """
        self.check_online()
        end, latest = self.log.log_end_offset, self.log.epochs.latest
        if epoch == self.leader_epoch:
            return epoch, end
        if latest < epoch < self.leader_epoch:
            return (latest if latest >= 0 else epoch), end
        return self.log.epochs.end_offset_for(epoch, end)

    # -- produce ----------------------------------------------------------------------------------------------

    def append(self, header: BatchHeader, data: Buffer, now_ms: int) -> int:
        """Append one checked batch (stage one: its order is fixed); returns its base offset.

        A repeat of a remembered idempotent batch returns the original offset.
        """
        if self._gate is not None:
            self._gate(self)
        log = self.log
        if log.offline is not None:  # also for a repeat: what it repeats may be lost
            self.check_online()
        if header.producer_id >= 0:
            duplicate = log.producers.check(header)
            if duplicate is not None:
                return duplicate
        try:
            base_offset = log.append(header, data, self.leader_epoch, now_ms)
        except StorageError as error:
            if not (isinstance(error.__cause__, OSError) and is_passing_at_open(error.__cause__)):
                self.host.on_append_failed(self)
            raise
        if self.is_durable:
            self._commit.request(self)
        else:
            if self._followers is None:
                self.high_watermark = end = log.log_end_offset  # where that is, `read` finds out
                if self.waiters or self._awaiting_commit:
                    self._committed(end)
            elif len(self.isr) == 1:
                self._count_replicas()
            if log.wants_flush or log.unflushed_messages >= self.config.flush_messages:
                self._commit.request(self)
        if self._followers is not None:
            tell(self.tail_waiters, self)
        return base_offset

    @property
    def effective_min_isr(self) -> int:
        """More replicas than there are cannot be asked for."""
        return effective_min_isr(self.config.min_insync_replicas, self.replicas, self._adding, self._removing)

    @property
    def _is_under_min_isr(self) -> bool:
        return len(self.isr) < self.effective_min_isr

    @property
    def adding(self) -> tuple[int, ...]:
        """Replicas of a reassignment that is under way."""
        return self._adding

    @property
    def is_reassigning(self) -> bool:
        return bool(self._adding or self._removing)

    @property
    def is_needed(self) -> bool:
        """What this replica holds may be nowhere else: it leads, is in sync, or too few others are in sync for the
        controller to forget it. On a durable topic too: what counted before it became durable may not be stable."""
        return self.is_leader or self.node_id in self.isr or self._is_under_min_isr

    @property
    def promised_offset(self) -> int:
        """Others may count on this replica for everything below, stable or not."""
        end = self.log.log_end_offset
        return max(self.log.stable_offset, min(self._promised, end)) if self.is_durable else end

    def check_min_isr(self) -> None:
        if len(self.isr) < self.config.min_insync_replicas and self._is_under_min_isr:  # the first is quick
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self!r} has {len(self.isr)} in-sync replica(s), min.insync.replicas is "
                f"{self.config.min_insync_replicas}",
            )

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

    def end_flush(self, ticket: Flush, error: OSError | None) -> None:
        self.log.end_flush(ticket, error)
        if error is not None:
            self._went_offline(error)
        elif ticket.generation != self.log.generation:
            if self.is_durable and self.log.stable_offset < self.log.log_end_offset:
                self._commit.request(self)  # it counted for nothing, as the log was cut: what is left needs another
        elif not self.is_leader:
            self._claim()  # also where flushing is left to the system by now: who leads may wait
        elif self.is_durable:
            self._holds(ticket.end)

    def _claim(self) -> None:
        if self.when_claimed is not None:
            self.when_claimed(self)

    def reopened(self, log: Log) -> None:
        """Another log is in place of one that was offline: see `replica.revival` for what may be in it."""
        was_opened = self.log.was_opened
        self.log = log
        log.is_flushed_by_owner = True
        self.high_watermark = min(max(self.high_watermark, log.log_start_offset), log.log_end_offset)
        self._end = log.end_position()
        if self.is_leader:
            if not was_opened:  # nothing was appended in this epoch
                self.epoch_start_offset = log.log_end_offset
            self._holds(None)
        self._notify()

    def _went_offline(self, error: OSError) -> None:
        if not self.is_deleted:
            log.critical("%r is offline: flush failed: %s; it is tried again when the disk is well", self, error)
        self._fail(ErrorCode.KAFKA_STORAGE_ERROR)
        self.host.on_offline(self)

    # -- high watermark ---------------------------------------------------------------------------------------

    def claimed_offset(self) -> int:
        """Everything below counts as held by this replica."""
        return self.log.stable_offset if self.is_durable else self.log.log_end_offset

    def _holds(self, end: Position | None) -> None:
        """This leader itself holds what lies below `end`; None: as far as its log says."""
        if self._followers is not None:
            self._count_replicas()
        elif end is not None:
            self._advance(end)
        elif (claimed := self.claimed_offset()) > self.high_watermark:
            self.high_watermark = claimed  # where it lies is looked up when a reader comes
            self._committed(claimed)

    def _count_replicas(self) -> None:
        """Move the high watermark to what all in-sync replicas hold."""
        followers = self._followers
        claimed = self.claimed_offset()
        if followers is None or claimed <= self.high_watermark or self._is_under_min_isr:
            return
        host = self.host
        offset = followers.high_watermark(claimed, self.log.log_end_offset, host.now_ms(), host)
        if offset > self.high_watermark:
            self.high_watermark = offset  # where it lies is looked up when a reader comes
            self._committed(offset)

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
        deletions, self._awaiting_deletion = self._awaiting_deletion, []
        for _, callback in deletions:
            callback(code)
        self._fail_awaiting(code)
        self._notify()

    def _fail_awaiting(self, code: ErrorCode) -> None:
        awaiting, self._awaiting_commit = self._awaiting_commit, deque()
        for _, callback in awaiting:
            callback(code)

    # -- followers, as their leader sees them -----------------------------------------------------------------

    @property
    def followers(self) -> Followers | None:
        """None: this broker does not lead, or is the only replica."""
        return self._followers

    def check_follower(self, replica_id: int, current_leader_epoch: int) -> None:
        """A replica that asks must be one of ours. Raises ApiError."""
        self.check_leading()
        if self._followers is None or replica_id not in self._followers.by_id:
            # It may know of a reassignment that we have not heard of: it is to try again.
            known = current_leader_epoch >= 0
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH if known else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def follower_claimed(
        self, replica_id: int, offset: int, log_start: int, now_ms: int, broker_epoch: int = -1
    ) -> None:
        """The replica says, apart from fetches, that it holds everything below `offset`. On durable topics: stable."""
        followers, follower = self._follower(replica_id, broker_epoch)
        follower.claimed_offset = offset
        self._follower_holds(followers, follower, offset, log_start, now_ms)

    def follower_fetched(
        self, replica_id: int, offset: int, log_start: int, now_ms: int, broker_epoch: int = -1
    ) -> None:
        """The replica holds everything below `offset`. `now_ms` is that of `Host`."""
        followers, follower = self._follower(replica_id, broker_epoch)
        self._follower_holds(followers, follower, offset, log_start, now_ms)

    def _follower_holds(
        self, followers: Followers, follower: Follower, offset: int, log_start: int, now_ms: int
    ) -> None:
        is_news = follower.holds(offset, log_start, self.log.log_end_offset, now_ms)
        if follower.broker_id not in followers.isr:
            self._look_at_return(followers, follower, now_ms)
        if is_news:
            self._count_replicas()
        if self._awaiting_deletion:
            self._look_at_deletions()

    def follower_asked(self, replica_id: int, log_start: int, now_ms: int, broker_epoch: int = -1) -> None:
        """A sign of life: on durable topics a fetch says what the replica has written, not what it has made stable."""
        _, follower = self._follower(replica_id, broker_epoch)
        follower.asked(log_start, self.log.log_end_offset, now_ms)
        if self._awaiting_deletion:
            self._look_at_deletions()

    def consider_returns(self) -> None:
        """Where nobody writes there is nothing new to fetch or acknowledge: what followers hold still counts."""
        if self._followers is not None:
            for follower in self._followers.by_id.values():
                self._look_at_return(self._followers, follower, self.host.now_ms())

    def _look_at_return(self, followers: Followers, follower: Follower, now_ms: int) -> None:
        joined = followers.joined_by(follower, self.high_watermark, self.epoch_start_offset, now_ms, self.host)
        if joined is not None:
            log.debug("%r: broker %d has caught up, asking for its return to the ISR", self, follower.broker_id)
            self.propose_isr(joined)

    def _follower(self, replica_id: int, broker_epoch: int) -> tuple[Followers, Follower]:
        if self._followers is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._followers, self._followers.in_its_life(replica_id, broker_epoch, self.host)

    # -- in-sync replicas -------------------------------------------------------------------------------------

    def propose_isr(self, isr: tuple[int, ...]) -> None:
        """To be asked of the controller; until it has answered, both the old and the new ones count."""
        if self._followers is not None:
            self._followers.propose(isr, self.host)
            self.host.propose_isr(self)

    def commit_isr(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        """The controller has agreed; the metadata will say the same."""
        self.host.count_isr_change(self.isr, isr)
        self.isr, self.partition_epoch = isr, partition_epoch
        if self._followers is not None:
            self._followers.commit(isr)
        self._isr_changed()

    def isr_refused(self) -> None:
        if self._followers is not None:
            self._followers.refuse(self.host.now_ms())
            self._count_replicas()

    def _isr_changed(self) -> None:
        if self._is_under_min_isr:
            # What waits has been appended, and may well be committed later: the client is to try again.
            self._fail_awaiting(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        self._holds(None)

    # -- following --------------------------------------------------------------------------------------------

    def append_fetched(
        self, data: Buffer, leader_epoch: int, high_watermark: int, log_start_offset: int, now_ms: int
    ) -> None:
        """What a fetch from the leader of `leader_epoch` brought. Raises CorruptBatch with nothing written."""
        self.check_following(leader_epoch)
        self.check_online()
        owner = self.log
        if len(data) >= HEADER_SIZE:
            owner.append_replicated(data, now_ms, self.leader_epoch)
        elif len(data):
            raise StorageError(f"{self!r}: {len(data)} bytes are too few for a batch")
        target = min(high_watermark, owner.log_end_offset)
        if target > self.high_watermark:
            self.high_watermark = target
            self._committed(target)
        start = min(log_start_offset, self.high_watermark)
        if start > owner.log_start_offset:
            owner.move_log_start(start)
            self.log_start_moved()
            self.host.on_log_start(self)
        self._flush_what_is_due()

    def _flush_what_is_due(self) -> None:
        owner = self.log
        if self.is_durable:
            if owner.stable_offset < owner.log_end_offset:
                self._commit.request(self)
        elif owner.wants_flush or owner.unflushed_messages >= self.config.flush_messages:
            self._commit.request(self)

    def check_following(self, leader_epoch: int) -> None:
        """Whoever fetched for an earlier role of this partition is too late. Raises ApiError."""
        if self.is_deleted or self.is_leader or leader_epoch != self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, f"{self!r} has moved on to epoch {self.leader_epoch}")

    # -- cuts, on followers -----------------------------------------------------------------------------------

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

    def begin_below(self, batch: bytes, now_ms: int) -> Cut:
        """As `begin_anew`, with a batch in which the start of the log lies: see `Log.begin_below`."""
        log.info("%r: begins with the batch in which its start %d lies", self, self.log.log_start_offset)
        return self.log.begin_below(batch, now_ms, self.leader_epoch)

    def end_cut(self, cut: Cut) -> None:
        """Raises StorageError where it failed: then the log is offline. What the metadata said meanwhile counts now."""
        try:
            self._end_cut(cut)
            if not self.is_deleted:
                self._flush_what_is_due()
        finally:
            told, self._told = self._told, []
            if told and not self.is_deleted:
                for state in told:
                    self.apply_state(state)
                self.host.on_told(self)

    def _end_cut(self, cut: Cut) -> None:
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
        self.log.check_readable()

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

    def delete_records(self, before_offset: int) -> int:
        """Move the log start; -1 means the high watermark. Returns the new log start.

        Whole segments below it are for `Housekeeping.delete_below_start`.
        """
        self.check_leading()
        self.check_online()
        target = self.high_watermark if before_offset == -1 else before_offset
        if target < 0 or target > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete {self!r} up to {before_offset}: its high watermark is {self.high_watermark}",
            )
        self.log.move_log_start(target)
        self._notify()  # followers delete as they hear of it
        return self.log.log_start_offset

    @property
    def low_watermark(self) -> int:
        """No replica that lives holds anything below."""
        start = self.log.log_start_offset
        return start if self._followers is None else self._followers.low_watermark(start, self.host)

    def when_deleted(self, offset: int, callback: CommitCallback) -> None:
        """Call back once the low watermark reaches `offset`, or with the error that prevents it."""
        if self.low_watermark >= offset:
            callback(ErrorCode.NONE)
        else:
            self._awaiting_deletion.append((offset, callback))

    def _look_at_deletions(self) -> None:
        low = self.low_watermark
        done = [callback for offset, callback in self._awaiting_deletion if offset <= low]
        self._awaiting_deletion = [one for one in self._awaiting_deletion if one[0] > low]
        for callback in done:
            callback(ErrorCode.NONE)

    def segments_replaced(self, bases: Sequence[int], next_base: int) -> None:
        """Compaction put one segment in the place of those at `bases`; the one after them is at `next_base`."""
        if self._end.segment in bases:  # all of them lie below the high watermark
            self._end = Position(self._end.offset, next_base, 0)

    def delete(self, code: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> None:
        """The topic is gone, or this replica of it: tell everyone who waits. Files are the caller's business."""
        self.is_deleted = True
        self.is_leader = False
        self._followers = None
        self._gate = _refuse_append
        self._fail(code)


def tell(waiters: dict[Waiter, None], source: Partition) -> None:
    for waiter in list(waiters):
        waiter.notify(source)


def _refuse_append(partition: Partition) -> None:
    raise ApiError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        f"broker {partition.node_id} does not lead {partition!r}, broker {partition.leader} does",
    )


def _check_lease(partition: Partition) -> None:
    lease = partition.host.lease
    if lease is not None and not lease():
        raise ApiError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {partition.node_id} has lost the controller and may no longer lead {partition!r}",
        )
