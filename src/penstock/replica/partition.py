"""One partition on this broker: a log with a high watermark, the role of this replica, and its waiters.

The high watermark limits consumers' reads, and acks=all waits for it: every in-sync replica holds the log below it.
Under the default policy (`flush.messages=1`) a replica holds what it has made stable. So a power failure takes back
nothing that was served or acknowledged. If flushing is left to the system, a replica holds what it has written. A
follower learns the high watermark from its leader.

One class, because every produce and fetch needs both the role and the high watermark. The decisions are elsewhere:
`core.partition.roles` has the table of roles and events, `core.partition.high_watermark` decides where the high
watermark may move, `core.partition.followers` tracks the other replicas, and `divergence` finds where a follower's log
diverges from its leader's.

Only `_enter` changes the role and the fields the data path reads (`is_leader`, `is_deleted`, the gate of appends): an
append looks at no table. Only `_know` changes `metadata`: leader, replicas and ISR.

Invariants
- The high watermark of a leader never goes back, and does not move while fewer replicas than `min.insync.replicas` are
  in sync. That of a follower goes back only when its log is truncated, and the log is not read meanwhile.
- An append with acks=all succeeds only at or below the high watermark, on the leader that appended it. When leadership
  ends, all waiters get NOT_LEADER_OR_FOLLOWER.
- Waiters are called in the turn of the event they wait for; a parked fetch checks once at the end of the turn.
- A log that goes offline fails every waiter with KAFKA_STORAGE_ERROR and accepts no appends.
- Metadata of an older partition epoch than the known one changes nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from penstock.config.topic import TopicConfig
from penstock.core.metadata.image import NO_LEADER, PartitionState
from penstock.core.partition import high_watermark as watermark
from penstock.core.partition.follower import Follower
from penstock.core.partition.followers import Followers, preferred_read_replica
from penstock.core.partition.roles import LEADING, Act, Input, Role, Transition, heard, transition_of
from penstock.core.shard.exchange import Marker
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, BatchHeader, read_header
from penstock.records.control import ABORT, COMMIT, build_marker
from penstock.replica.host import Host
from penstock.storage.cut import Cut
from penstock.storage.durability import Flush, Position, is_passing_at_open
from penstock.storage.group_commit import IDLE, GroupCommit
from penstock.storage.log import Log
from penstock.storage.producers.transactions import MarkerCheck
from penstock.storage.producers.verification import Guard
from penstock.storage.segments.lookups import Lookup
from penstock.storage.segments.slices import LogSlice

log = logging.getLogger(__name__)

CommitCallback: TypeAlias = Callable[[ErrorCode], None]


class Waiter(Protocol):
    """A parked fetch."""

    def notify(self, source: Partition) -> None: ...


class Partition:
    __slots__ = (
        "_awaiting_commit",
        "_awaiting_deletion",
        "_commit",
        "_end",
        "_followers",
        "_gate",
        "_promised",
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
        "leader_epoch",
        "log",
        "metadata",
        "role",
        "tail_waiters",
        "topic",
        "topic_id",
        "waiters",
        "when_claimed",
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
        """Follows no leader until `apply_state`. `high_watermark`: the last known value; None: the end of the log."""
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.config = config
        self.is_durable = config.flush_messages <= 1
        self.flush_state = IDLE
        self.waiters: dict[Waiter, None] = {}  # wait for the high watermark
        self.tail_waiters: dict[Waiter, None] = {}  # followers that wait for the log end offset
        self._awaiting_commit: deque[tuple[int, CommitCallback]] = deque()
        self._awaiting_deletion: list[tuple[int, CommitCallback]] = []
        # Recovery cut torn batches, and `HostedPartitions.open_all` makes the rest stable.
        self._end: Position = log.end_position()
        self.high_watermark = log.log_end_offset
        if high_watermark is not None:
            self.high_watermark = watermark.within_log(high_watermark, log.log_start_offset, log.log_end_offset)
        self._commit = commit
        log.is_flushed_by_owner = True
        self.host = host
        self._know(PartitionState(index, replicas=(), leader=NO_LEADER, leader_epoch=-1, partition_epoch=-1))
        self.epoch_start_offset = 0  # where the log ended when this broker became leader
        self._followers: Followers | None = None  # only on a leader with other replicas
        # where the log ended when the topic became durable: below that, written records count as held
        self._promised = 0
        self._enter(Role.NEW)
        self._told: list[PartitionState] = []  # metadata received while the log is being cut
        self.when_claimed: Callable[[Partition], None] | None = None

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def node_id(self) -> int:
        return self.host.node_id

    def apply_config(self, config: TopicConfig, *, is_of_now: bool = True) -> None:
        """`is_of_now`: the metadata here is as new as these settings. Otherwise newer metadata follows, and the high
        watermark waits for it: the new settings with the old in-sync replicas could commit what another leader, elected
        meanwhile, does not have.
        """
        was_durable = self.is_durable
        self.config = config
        self.is_durable = config.flush_messages <= 1
        if self.is_durable and not was_durable:
            self._promised = self.log.log_end_offset
            if self._followers is not None:
                self._followers.became_durable(self.isr, self.host)
            self._commit.request(self)
            if not self.is_leader and self.log.stable_offset >= self.log.log_end_offset:
                self._claim()  # no flush will follow: there is nothing to flush
        elif self.is_leader and is_of_now:  # flushes or replicas may no longer be needed
            self._holds(self.log.end_position() if not self.is_durable else None)

    # -- roles ------------------------------------------------------------------------------------------------

    def _enter(self, role: Role) -> None:
        """The only place that changes the role and the fields the data path reads."""
        self.role = role
        self.is_deleted = role is Role.DELETED
        self.is_leader = role in LEADING
        self._gate: Callable[[Partition], None] | None = _refuse_append
        if self.is_leader:
            self._gate = None if self.host.lease is None else _check_lease
        if role is not Role.LEADER:
            self._followers = None

    def _know(self, metadata: PartitionState) -> None:
        """The only place that changes leader, epochs, replicas and ISR."""
        self.metadata = metadata
        self.leader_epoch = metadata.leader_epoch  # copied because every append and every fetch reads it

    @property
    def leader(self) -> int:
        return self.metadata.leader

    @property
    def partition_epoch(self) -> int:
        return self.metadata.partition_epoch

    @property
    def replicas(self) -> tuple[int, ...]:
        return self.metadata.replicas

    @property
    def isr(self) -> tuple[int, ...]:
        return self.metadata.isr

    def _meet(self, given: Input) -> Transition:
        return transition_of(self.role, given)

    def apply_state(self, state: PartitionState) -> None:
        """Apply metadata: lead, follow, or continue with other replicas.

        While the log is being cut this replica can neither lead nor follow another leader: the change waits for the end
        of the cut.
        """
        before, node_id = self.metadata, self.host.node_id
        step = self._meet(heard(before, state, node_id))
        if step.act is Act.IGNORE:
            return
        if step.act is Act.PUT_OFF:
            self._told.append(state)
            return
        self._know(state)
        self._enter(step.role)
        if step.act is Act.TAKE_OVER:
            self._lead()
        elif step.act is Act.GO_ON_LEADING:
            self.host.count_isr_change(before.isr, state.isr)
            # If this leader has heard of the change already, the pending proposal is newer and stays.
            self._go_on_leading(is_news=state.partition_epoch > before.partition_epoch)
        elif step.act is Act.RESIGN:
            self._fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._notify()

    @property
    def is_told_later(self) -> bool:
        """Metadata changes wait for the end of a cut; `PartitionEvents.role_changed` follows then."""
        return bool(self._told)

    @property
    def newest_epochs(self) -> tuple[int, int]:
        """(partition epoch, leader epoch) of the newest metadata received, including metadata that waits."""
        newest = self._told[-1] if self._told else self.metadata
        return newest.partition_epoch, newest.leader_epoch

    def _lead(self) -> None:
        self.epoch_start_offset = self.log.log_end_offset
        if self.role is Role.LEADER:
            self._begin_to_count()
        self._holds(None)
        self._notify()

    def _begin_to_count(self) -> None:
        host = self.host
        self._followers = Followers(host.node_id, self.metadata, host.now_ms())

    def _go_on_leading(self, *, is_news: bool) -> None:
        if self._followers is not None:
            self._followers.assign(self.replicas)
            if is_news:
                self._followers.decided()
        elif self.role is Role.LEADER:
            self._begin_to_count()
        self._isr_changed()

    def when_committed(self, offset: int, callback: CommitCallback) -> None:
        """Call back once the high watermark reaches `offset`, or with the error that prevents it.

        A follower calls back at once. Otherwise the callback would still be waiting, before all others, when this
        replica leads again, and the log might have been truncated below `offset` by then.
        """
        if self.is_leader:
            self._awaiting_commit.append((offset, callback))
        else:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def report_damage(self, path: str | None = None) -> None:
        """A reader found damage in this replica: in the segment at `path`, or in an unknown place."""
        self.host.events.damage_found(self, path)

    def lease_over(self) -> None:
        """This broker may no longer lead, and does not know the new leader: waiting produce requests fail."""
        if self._meet(Input.LEASE_OVER).act is Act.FAIL_APPENDS:
            self._fail_awaiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_leading(self) -> None:
        if not self.is_leader:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.node_id} does not lead {self!r}")

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Fence clients that know an older or a newer leader epoch (-1: the client sent none)."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch up to `epoch`, its end offset) in this leader's log.

        The leader's own epoch begins where it took over, even if it has no records yet. Raises LogOffline if the log is
        not readable: a follower that took it for empty would truncate its own.
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
        """Append one checked batch (stage one: its order is fixed) and return its base offset.

        A repeat of a remembered idempotent batch returns the original offset.
        """
        if self._gate is not None:
            self._gate(self)
        log = self.log
        if log.offline is not None:  # also for a repeat: the original may be lost
            self.check_online()
        if header.producer_id >= 0:
            duplicate = log.producers.check(header)
            if duplicate is not None:
                return duplicate
        return self._append(header, data, now_ms)

    def append_transactional(self, header: BatchHeader, data: Buffer, now_ms: int, guard: Guard | None) -> int:
        """Like `append`, for a batch that may begin a transaction here. `guard`: from `begin_verification`, before the
        coordinator was asked. None: no verification was needed.
        """
        self._check_append()
        producers = self.log.producers
        duplicate = producers.check(header)
        if duplicate is not None:
            return duplicate
        producers.check_verified(header, guard)
        return self._append(header, data, now_ms)

    def append_marker(self, marker: Marker, now_ms: int) -> bool:
        """End the transaction of a producer here. False: its marker is already here, perhaps not committed yet."""
        self._check_append()
        producer_id, epoch, is_commit, coordinator_epoch, version = marker
        check = self.log.producers.check_marker(producer_id, epoch, coordinator_epoch, version)
        if check is MarkerCheck.ALREADY_THERE:
            return False
        data = build_marker(producer_id, epoch, COMMIT if is_commit else ABORT, coordinator_epoch, now_ms)
        self._append(read_header(data), data, now_ms)
        return True

    def _check_append(self) -> None:
        if self._gate is not None:
            self._gate(self)
        self.check_online()

    def _append(self, header: BatchHeader, data: Buffer, now_ms: int) -> int:
        log = self.log
        try:
            base_offset = log.append(header, data, self.leader_epoch, now_ms)
        except StorageError as error:
            if not (isinstance(error.__cause__, OSError) and is_passing_at_open(error.__cause__)):
                self.host.events.append_failed(self)
            raise
        if self.is_durable:
            self._commit.request(self)
        else:
            if self._followers is None:
                self.high_watermark = end = log.log_end_offset  # `read` looks up the position
                if self.waiters or self._awaiting_commit:
                    self._committed(end)
            elif len(self.metadata.isr) == 1:
                self._count_replicas()
            if log.wants_flush or log.unflushed_messages >= self.config.flush_messages:
                self._commit.request(self)
        if self._followers is not None:
            tell(self.tail_waiters, self)
        return base_offset

    @property
    def effective_min_isr(self) -> int:
        """`min.insync.replicas`, but not more than the number of replicas."""
        return self.metadata.effective_min_isr(self.config.min_insync_replicas)

    @property
    def _is_under_min_isr(self) -> bool:
        return watermark.is_under_min_isr(self.metadata, self.config.min_insync_replicas)

    @property
    def adding(self) -> tuple[int, ...]:
        """Replicas that a reassignment is adding."""
        return self.metadata.adding

    @property
    def is_reassigning(self) -> bool:
        return self.metadata.is_reassigning

    @property
    def is_needed(self) -> bool:
        """Whether this log may be the only copy: the replica leads, is in sync, or too few others are in sync for the
        controller to drop it. On a durable topic too: records from before it became durable may not be stable.
        """
        return self.is_leader or self.node_id in self.isr or self._is_under_min_isr

    @property
    def promised_offset(self) -> int:
        """Other replicas may count on this one for all records below, stable or not."""
        log = self.log
        return watermark.promised_offset(
            log.stable_offset, log.log_end_offset, self._promised, is_durable=self.is_durable
        )

    def check_min_isr(self) -> None:
        if len(self.metadata.isr) < self.config.min_insync_replicas and self._is_under_min_isr:  # fast check first
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
                # the flush does not count, because the log was cut: the remaining records need another flush
                self._commit.request(self)
        elif not self.is_leader:
            self._claim()  # even if flushing is now left to the system: the leader may still wait for this report
        elif self.is_durable:
            self._holds(ticket.end)

    def _claim(self) -> None:
        if self.when_claimed is not None:
            self.when_claimed(self)

    def reopened(self, log: Log) -> None:
        """Replace an offline log with a new one: see `replica.revival` for its content."""
        step = self._meet(Input.LOG_REOPENED)
        was_opened = self.log.was_opened
        self.log = log
        log.is_flushed_by_owner = True
        self.high_watermark = watermark.within_log(self.high_watermark, log.log_start_offset, log.log_end_offset)
        self._end = log.end_position()
        if step.act is Act.LEAD_WITH:
            if not was_opened:  # nothing was appended in this epoch
                self.epoch_start_offset = log.log_end_offset
            self._holds(None)
        self._notify()

    def _went_offline(self, error: OSError) -> None:
        if self._meet(Input.LOG_OFFLINE).act is Act.IGNORE:
            return
        log.critical("%r is offline: flush failed: %s; the log is opened again when the disk works", self, error)
        self._fail(ErrorCode.KAFKA_STORAGE_ERROR)
        self.host.events.log_unusable(self)

    # -- high watermark ---------------------------------------------------------------------------------------

    def claimed_offset(self) -> int:
        """This replica counts as holding everything below."""
        log = self.log
        return watermark.claimed_offset(log.stable_offset, log.log_end_offset, is_durable=self.is_durable)

    def _holds(self, end: Position | None) -> None:
        """This leader holds the log below `end`; None: up to its stable or log end offset."""
        if self._followers is not None:
            self._count_replicas()
        elif end is not None:
            self._advance(end)
        elif (claimed := self.claimed_offset()) > self.high_watermark:
            self.high_watermark = claimed  # its position is looked up by the next read
            self._committed(claimed)

    def _count_replicas(self) -> None:
        """Move the high watermark to the offset that all in-sync replicas have reached."""
        followers = self._followers
        claimed = self.claimed_offset()
        if followers is None or claimed <= self.high_watermark or self._is_under_min_isr:
            return
        counted = watermark.maximal_isr(self.metadata.isr, followers.pending_isr)
        end, host = self.log.log_end_offset, self.host
        offset = watermark.held_by_all(claimed, counted, followers.by_id.values(), end, host.now_ms(), host)
        if offset > self.high_watermark:
            self.high_watermark = offset  # its position is looked up by the next read
            self._committed(offset)

    def _advance(self, end: Position) -> None:
        """For a sole replica, or because the leader says so."""
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
        """Consumers' fetch sessions report it."""
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

    # # -- followers, as seen by the leader --------------------------------------------------------------------

    @property
    def followers(self) -> Followers | None:
        """None: this broker does not lead, or is the only replica."""
        return self._followers

    def preferred_read_replica(self, rack: str, offset: int, rack_of: Callable[[int], str | None]) -> int | None:
        """An in-sync follower in the consumer's rack that has the offset; None: the leader itself."""
        if self._followers is None:
            return None
        return preferred_read_replica(self._followers, self.isr, offset, rack, rack_of, self.node_id)

    def check_follower(self, replica_id: int, current_leader_epoch: int) -> None:
        """The requesting replica must be one of this partition. Raises ApiError."""
        self.check_leading()
        if self._followers is None or replica_id not in self._followers.by_id:
            # The replica may know of a reassignment that has not reached this broker yet: it should try again.
            known = current_leader_epoch >= 0
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH if known else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def follower_claimed(
        self, replica_id: int, offset: int, log_start: int, now_ms: int, broker_epoch: int = -1
    ) -> None:
        """The replica reports, apart from fetches, that it holds everything below `offset`. On durable topics:
        stable.
        """
        followers, follower = self._follower(replica_id, broker_epoch)
        follower.claimed_offset = offset
        self._follower_holds(followers, follower, offset, log_start, now_ms)

    def follower_fetched(
        self, replica_id: int, offset: int, log_start: int, now_ms: int, broker_epoch: int = -1
    ) -> None:
        """The replica holds everything below `offset`. `now_ms` is on the clock of `Host`."""
        followers, follower = self._follower(replica_id, broker_epoch)
        self._follower_holds(followers, follower, offset, log_start, now_ms)

    def _follower_holds(
        self, followers: Followers, follower: Follower, offset: int, log_start: int, now_ms: int
    ) -> None:
        is_news = follower.holds(offset, log_start, self.log.log_end_offset, now_ms)
        if follower.broker_id not in self.metadata.isr:
            self._look_at_return(followers, follower, now_ms)
        if is_news:
            self._count_replicas()
        if self._awaiting_deletion:
            self._look_at_deletions()

    def follower_asked(self, replica_id: int, log_start: int, now_ms: int, broker_epoch: int = -1) -> None:
        """A fetch shows that the replica is alive. On durable topics its offset says what the replica has written, not
        what it has flushed.
        """
        _, follower = self._follower(replica_id, broker_epoch)
        follower.asked(log_start, self.log.log_end_offset, now_ms)
        if self._awaiting_deletion:
            self._look_at_deletions()

    def consider_returns(self) -> None:
        """In an idle partition followers have nothing new to fetch or acknowledge; their known offsets still count."""
        if self._followers is not None:
            for follower in self._followers.by_id.values():
                self._look_at_return(self._followers, follower, self.host.now_ms())

    def _look_at_return(self, followers: Followers, follower: Follower, now_ms: int) -> None:
        needed = watermark.joining_offset(self.high_watermark, self.epoch_start_offset)
        joined = followers.joined_by(follower, self.metadata, needed, now_ms, self.host)
        if joined is not None:
            log.debug("%r: broker %d has caught up, requesting its return to the ISR", self, follower.broker_id)
            self.propose_isr(joined)

    def _follower(self, replica_id: int, broker_epoch: int) -> tuple[Followers, Follower]:
        if self._followers is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._followers, self._followers.in_its_life(replica_id, broker_epoch, self.host)

    # -- in-sync replicas -------------------------------------------------------------------------------------

    def propose_isr(self, isr: tuple[int, ...]) -> None:
        """Request the change from the controller. Until it answers, both the old and the new ISR count."""
        if self._followers is not None:
            self._followers.propose(isr, self.isr, self.host)
            self.host.events.isr_proposed(self)

    def commit_isr(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        """The controller has agreed; the metadata will say the same."""
        self.host.count_isr_change(self.isr, isr)
        self._know(replace(self.metadata, isr=isr, partition_epoch=partition_epoch))
        if self._followers is not None:
            self._followers.decided()
        self._isr_changed()

    def isr_refused(self) -> None:
        if self._followers is not None:
            self._followers.refuse(self.host.now_ms())
            self._count_replicas()

    def _isr_changed(self) -> None:
        if self._is_under_min_isr:
            # The waiting batches are appended and may still be committed: the client should try again.
            self._fail_awaiting(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        self._holds(None)

    # -- following --------------------------------------------------------------------------------------------

    def append_fetched(
        self, data: Buffer, leader_epoch: int, high_watermark: int, log_start_offset: int, now_ms: int
    ) -> None:
        """Append a fetch answer from the leader of `leader_epoch`. Raises CorruptBatch with nothing written."""
        self.check_following(leader_epoch)
        self.check_online()
        owner = self.log
        if len(data) >= HEADER_SIZE:
            owner.append_replicated(data, now_ms, self.leader_epoch)
        elif len(data):
            raise StorageError(f"{self!r}: {len(data)} bytes are too few for a batch")
        target = watermark.of_follower(self.high_watermark, high_watermark, owner.log_end_offset)
        if target > self.high_watermark:
            self.high_watermark = target
            self._committed(target)
        start = min(log_start_offset, self.high_watermark)
        if start > owner.log_start_offset:
            owner.move_log_start(start)
            self.log_start_moved()
            self.host.log_start_moved(self)
        self._flush_what_is_due()

    def _flush_what_is_due(self) -> None:
        owner = self.log
        if self.is_durable:
            if owner.stable_offset < owner.log_end_offset:
                self._commit.request(self)
        elif owner.wants_flush or owner.unflushed_messages >= self.config.flush_messages:
            self._commit.request(self)

    def check_following(self, leader_epoch: int) -> None:
        """Reject an answer to a fetch of an earlier role of this partition. Raises ApiError."""
        if self.is_deleted or self.is_leader or leader_epoch != self.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH, f"{self!r} is now in leader epoch {self.leader_epoch}")

    # # -- truncation, on followers ----------------------------------------------------------------------------

    def begin_cut(self, offset: int, *, may_wait: bool = True) -> Cut | None:
        """Like `Log.begin_cut`: the persisted recovery point is at most `offset`. Then `Cut.run` and `end_cut`."""
        step = self._meet(Input.CUT_BEGINS)
        before, mark = self.log.log_end_offset, self.high_watermark
        cut = self.log.begin_cut(offset, may_wait=may_wait)
        if cut is not None:
            self._enter(step.role)
            log.info("%r: truncating the log from offset %d to %d, to match the leader", self, before, offset)
            self.high_watermark = min(mark, self.log.log_end_offset)
            if self.high_watermark < mark:
                log.warning("%r: high watermark goes back from %d to %d", self, mark, self.high_watermark)
        return cut

    def begin_anew(self, offset: int) -> Cut:
        """On a follower whose leader has nothing of this log. Like `begin_cut`."""
        step = self._meet(Input.CUT_BEGINS)
        log.warning("%r: the log starts anew at offset %d; before it was %r", self, offset, self.log)
        cut = self.log.begin_anew(offset)
        self._enter(step.role)
        self.high_watermark = self.log.log_end_offset
        return cut

    def begin_below(self, batch: bytes, now_ms: int) -> Cut:
        """Like `begin_anew`, with the batch that contains the log start: see `Log.begin_below`."""
        step = self._meet(Input.CUT_BEGINS)
        log.info("%r: the log starts with the batch that contains its start offset %d", self, self.log.log_start_offset)
        cut = self.log.begin_below(batch, now_ms, self.leader_epoch)
        self._enter(step.role)
        return cut

    def hold(self) -> Cut:
        """For a new replica: its log is not used and does not change until `end_cut`."""
        step = self._meet(Input.CUT_BEGINS)
        cut = self.log.hold()
        self._enter(step.role)
        return cut

    def end_cut(self, cut: Cut) -> None:
        """Raises StorageError if the cut failed: then the log is offline. Metadata received meanwhile applies now."""
        step = self._meet(Input.CUT_ENDS)
        self._enter(step.role)
        try:
            self._end_cut(cut)
            if step.act is Act.TAKE_BACK:
                self._flush_what_is_due()
        finally:
            told, self._told = self._told, []
            if told and step.act is Act.TAKE_BACK:
                for state in told:
                    self.apply_state(state)
                self.host.events.role_changed(self)

    def _end_cut(self, cut: Cut) -> None:
        try:
            self.log.end_cut(cut)
            if cut.remainder is not None and cut.remainder.is_anew:
                self.high_watermark = self.log.log_start_offset
                self._end = self.log.end_position()
            self._cut_to_end()
        finally:
            self._notify()  # waiters behind the new end are out of range, or the log is offline

    def truncate_to(self, offset: int) -> None:
        """Truncate synchronously. Blocks."""
        cut = self.begin_cut(offset)
        if cut is not None:
            cut.run()
            self.end_cut(cut)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Truncate synchronously. Blocks."""
        cut = self.begin_anew(offset)
        cut.run()
        self.end_cut(cut)

    def _cut_to_end(self) -> None:
        end = self.log.end_position()
        if self._end.offset > end.offset:
            self._end = end  # later records there may have another position
        if self.high_watermark >= end.offset:
            self.high_watermark = end.offset
            self._end = end

    # -- fetch ------------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset: all records below precede open transactions and transactions whose marker may be
        lost.
        """
        return self.log.last_stable_offset(self.high_watermark)

    def check_online(self) -> None:
        self.log.check_readable()

    def check_offset(self, offset: int) -> None:
        if offset < self.log.log_start_offset or offset > self.log.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)

    def read(self, offset: int, max_bytes: int, *, read_committed: bool = False) -> LogSlice | None:
        """Whole batches from the one that holds `offset`; None if nothing is readable yet.

        Never waits for the disk: raises NotCached instead; then use `lookup`.
        """
        log = self.log
        # Checked first: a log that could not be opened does not know its offsets, and a client that gets "out of range"
        # resets its position.
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
        """For followers: includes uncommitted records. Raises NotCached like `read`."""
        self.check_online()
        self.check_offset(offset)
        try:
            return self.log.reader.read(offset, max_bytes, may_wait=False)
        except OSError as error:
            raise StorageError(f"cannot read {self!r} at offset {offset}: {error}") from error

    def lookup(self, offset: int, max_bytes: int, *, to_end: bool = False, read_committed: bool = False) -> Lookup:
        """For a worker, after `read` or `read_to_end` raised NotCached. Then `LogReader.end_lookup`."""
        if to_end:
            return self.log.reader.lookup(offset, max_bytes)
        end_offset = self.last_stable_offset if read_committed else self.high_watermark
        return self.log.reader.lookup(offset, max_bytes, end_offset)

    # -- housekeeping -----------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Move the log start; -1 means the high watermark. Returns the new log start.

        `Housekeeping.delete_below_start` deletes whole segments below it.
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
        self._notify()  # followers learn the new log start from their fetches
        return self.log.log_start_offset

    @property
    def low_watermark(self) -> int:
        """The smallest log start offset of the live replicas."""
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
        """Compaction replaced the segments at `bases` with one; the segment after them is at `next_base`."""
        if self._end.segment in bases:  # all of them are below the high watermark
            self._end = Position(self._end.offset, next_base, 0)

    def delete(self, code: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) -> None:
        """The topic or this replica is gone: fail all waiters. The caller removes the files."""
        self._enter(self._meet(Input.DELETE).role)
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
