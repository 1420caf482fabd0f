"""A leader's view of its followers: what each holds, who is in sync, and what follows for the high watermark.

Pure: offsets and times come in as arguments, and nothing here acts. Must not know logs, sockets or the controller.

Invariants
- The in-sync replicas count twice while a change is pending: as they are and as proposed (`maximal_isr`). Whichever
  of the two the controller holds, a member of it that lacks a record keeps the high watermark below that record.
- A follower is caught up at the time of an earlier fetch if it now asks for what was the log's end then: so one that
  keeps pace is in sync although the log has always grown a little further.
- A follower that disowned what it should hold (`Follower.disown`) neither joins nor holds the high watermark back until
  it has what it could not take then, and a pause is over: or a full disk would come and go with every try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.model.errors import ApiError, ErrorCode
from penstock.replica.host import Host

UNKNOWN_OFFSET: Final = -1
NEVER_MS: Final = -(1 << 62)
ANY_BROKER_EPOCH: Final = -1
REFUSED_MS: Final = 1000
FIRST_PAUSE_MS: Final = 1000
LONGEST_PAUSE_MS: Final = 60_000
FORGIVEN_AFTER_MS: Final = 2 * LONGEST_PAUSE_MS
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Follower:
    """One other replica as its fetches show it."""

    __slots__ = (
        "_disowned_from",
        "_disowned_ms",
        "_pause_ms",
        "_previous_fetch_ms",
        "_previous_leader_end",
        "_returns_from",
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "claimed_offset",
        "end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, caught_up_ms: int = NEVER_MS) -> None:
        self.broker_id = broker_id
        self.broker_epoch: int | None = None  # of its last fetch; None: none yet
        self._disowned_from = self._returns_from = UNKNOWN_OFFSET
        self._disowned_ms, self._pause_ms = NEVER_MS, 0
        self.forget(caught_up_ms)

    def forget(self, caught_up_ms: int) -> None:
        """What it holds is unknown; it has from now on to show it."""
        self.end_offset = UNKNOWN_OFFSET
        self.claimed_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.caught_up_ms = caught_up_ms
        self._previous_fetch_ms = caught_up_ms
        self._previous_leader_end = UNKNOWN_OFFSET

    def holds(self, offset: int, log_start: int, leader_end: int, now_ms: int) -> bool:
        """It has everything below `offset`; whether that is news."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif 0 <= self._previous_leader_end <= offset:
            self.caught_up_ms = max(self.caught_up_ms, self._previous_fetch_ms)
        self._previous_fetch_ms = now_ms
        self._previous_leader_end = max(self._previous_leader_end, leader_end)
        self.log_start_offset = log_start
        is_news = offset != self.end_offset
        self.end_offset = offset
        return is_news

    def asked(self, log_start: int, leader_end: int, now_ms: int) -> None:
        """A sign of life that says nothing of what it holds: a fetch for a durable topic, where that is told apart."""
        self.log_start_offset = log_start
        if self.end_offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)

    def hold_to_claims(self) -> None:
        """From now on what it claims counts, and so does what it claimed: what fetches showed may not be stable."""
        nothing_yet = min(self.end_offset, self.log_start_offset)  # an empty log has nothing to claim
        if self.end_offset > max(self.claimed_offset, nothing_yet):
            self.end_offset = max(self.claimed_offset, nothing_yet)
            self.caught_up_ms = NEVER_MS
            self._previous_leader_end = UNKNOWN_OFFSET

    def disown(self, offset: int, leader_end: int, now_ms: int) -> None:
        """It says itself that from `offset` on nothing there counts: nobody waits for it as for one that is late.

        The pause doubles each time it had stored more since and is at its end again; one that has not come further
        cannot return anyway, and need not wait longer once it can.
        """
        if now_ms - self._disowned_ms > FORGIVEN_AFTER_MS:
            self._pause_ms = FIRST_PAUSE_MS
        elif self.end_offset > self._disowned_from:
            self._pause_ms = min(2 * self._pause_ms, LONGEST_PAUSE_MS)
        self._disowned_ms, self._disowned_from, self._returns_from = now_ms, offset, leader_end
        self.end_offset = min(self.end_offset, offset)
        self.claimed_offset = min(self.claimed_offset, offset)
        self.caught_up_ms = NEVER_MS
        self._previous_leader_end = UNKNOWN_OFFSET  # that it was at the end before does not make it one that keeps pace

    def is_kept_out(self, now_ms: int) -> bool:
        """It disowned, and has not shown since that it can store what it could not, or not for long enough."""
        return self.end_offset < self._returns_from or now_ms < self._disowned_ms + self._pause_ms

    def is_caught_up(self, leader_end: int, now_ms: int, lag_time_max_ms: int) -> bool:
        return self.end_offset == leader_end or now_ms - self.caught_up_ms <= lag_time_max_ms


class Followers:
    """All other replicas of one partition in one leader epoch, and its in-sync replicas."""

    __slots__ = ("_joining", "_node_id", "_refused_until_ms", "_replicas", "by_id", "isr", "pending_isr")

    def __init__(self, node_id: int, replicas: Sequence[int], isr: tuple[int, ...], now_ms: int) -> None:
        self._node_id = node_id
        self.by_id = {one: Follower(one, now_ms) for one in isr}  # of the others nothing is known
        self.isr = isr
        self.pending_isr: tuple[int, ...] | None = None
        self._joining: dict[int, int] = {}  # by it; and the broker epoch in which each has caught up
        self._refused_until_ms = NEVER_MS
        self.assign(replicas)

    def assign(self, replicas: Sequence[int]) -> None:
        known, node_id = self.by_id, self._node_id
        self._replicas = tuple(replicas)
        self.by_id = {one: known.get(one) or Follower(one) for one in replicas if one != node_id}

    def became_durable(self, host: Host) -> None:
        """Of members of the ISR what fetches showed goes on to count: their lives began before the change, and after a
        crash the controller does not trust them. Others may be in a life that began after it, or may begin one before
        they join: it is trusted, so what it has not flushed must not count."""
        for follower in self.by_id.values():
            is_of_a_known_life = follower.broker_epoch in (ANY_BROKER_EPOCH, host.broker_epoch_of(follower.broker_id))
            if follower.broker_id not in self.isr or not is_of_a_known_life:
                follower.hold_to_claims()

    def in_its_life(self, replica_id: int, broker_epoch: int, host: Host) -> Follower:
        """The follower that speaks. Raises ApiError: it is none of ours, or speaks of an earlier life."""
        follower = self.by_id.get(replica_id)
        if follower is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        registered = host.broker_epoch_of(replica_id)
        if broker_epoch >= 0 and registered is not None and registered > broker_epoch:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {replica_id} of an earlier life asks")
        if follower.broker_epoch not in (None, broker_epoch):
            follower.forget(NEVER_MS)  # another life: what it held in the one before must be shown again
        follower.broker_epoch = broker_epoch
        return follower

    # -- in-sync replicas -------------------------------------------------------------------------------------

    def commit(self, isr: tuple[int, ...]) -> None:
        """The controller says so; what was pending is decided, one way or the other."""
        self.isr = isr
        self.pending_isr = None

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        if self.pending_isr is None:
            return self.isr
        return (*self.isr, *(one for one in self.pending_isr if one not in self.isr))

    def propose(self, isr: tuple[int, ...], host: Host) -> None:
        self.pending_isr = isr
        self._joining = {one: self._epoch_of(one, host) for one in isr if one not in self.isr and one in self.by_id}

    def asked_isr(self, now_ms: int, host: Host) -> list[tuple[int, int]]:
        """What is pending as the controller shall hear of it now: each broker and its epoch.

        Who joins does so in the life that has caught up: the next one may have lost its disk. Who has disowned since
        joins no more, and still counts until the answer is there: an earlier question may have reached the controller.
        """
        members: list[tuple[int, int]] = []
        for broker_id in self.pending_isr or ():
            if broker_id not in self._joining:
                members.append((broker_id, self._epoch_of(broker_id, host)))
            elif (follower := self.by_id.get(broker_id)) is not None and not follower.is_kept_out(now_ms):
                members.append((broker_id, self._joining[broker_id]))
        return members

    def _epoch_of(self, broker_id: int, host: Host) -> int:
        epoch: int | None
        if broker_id == self._node_id:
            epoch = host.own_broker_epoch()
        else:
            follower = self.by_id.get(broker_id)
            epoch = None if follower is None else follower.broker_epoch
            if epoch is None or epoch == ANY_BROKER_EPOCH:
                epoch = host.broker_epoch_of(broker_id)
        return ANY_BROKER_EPOCH if epoch is None else epoch

    def refuse(self, now_ms: int) -> None:
        """The controller does not want what is pending: no use in asking again with the next fetch."""
        self.pending_isr = None
        self._refused_until_ms = now_ms + REFUSED_MS

    def joined_by(
        self, follower: Follower, high_watermark: int, epoch_start: int, now_ms: int, host: Host
    ) -> tuple[int, ...] | None:
        """The ISR with this follower, if it has all that is committed, now and from before this leader's time."""
        if (
            self.pending_isr is not None
            or follower.broker_id in self.isr
            or follower.end_offset < max(high_watermark, epoch_start)
            or now_ms < self._refused_until_ms
            or follower.is_kept_out(now_ms)
            or not is_eligible(follower, host.broker_epoch_of(follower.broker_id))
        ):
            return None
        return tuple(one for one in self._replicas if one in self.isr or one == follower.broker_id)

    def out_of_sync(self, leader_end: int, now_ms: int, lag_time_max_ms: int) -> list[int]:
        """Members that have not caught up for too long.

        Asked now and then, so it is also where those that have nothing to catch up with are noted: an idle
        follower's fetches do not name the partition, and its first record must not find it late.
        """
        late: list[int] = []
        for broker_id in self.isr:
            if broker_id == self._node_id:
                continue
            follower = self.by_id.get(broker_id)
            if follower is not None and follower.end_offset == leader_end:
                follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
            elif follower is None or not follower.is_caught_up(leader_end, now_ms, lag_time_max_ms):
                late.append(broker_id)
        return late

    # -- offsets ----------------------------------------------------------------------------------------------

    def high_watermark(self, own_end: int, leader_end: int, now_ms: int, host: Host) -> int:
        """Everything below is on every in-sync replica; `own_end` is what the leader itself contributes.

        Also on those that are about to be in sync: or one that is as fast as the leader could never meet the
        condition to join, as the high watermark would always be a little ahead of it.
        """
        result = own_end
        members = self.maximal_isr
        for follower in self.by_id.values():
            if follower.end_offset < result and (
                follower.broker_id in members
                or (
                    not follower.is_kept_out(now_ms)
                    and follower.is_caught_up(leader_end, now_ms, host.lag_time_max_ms)
                    and is_eligible(follower, host.broker_epoch_of(follower.broker_id))
                )
            ):
                result = follower.end_offset
        return result

    def low_watermark(self, own_start: int, host: Host) -> int:
        """No replica that lives holds anything below."""
        starts = [
            follower.log_start_offset
            for follower in self.by_id.values()
            if host.broker_epoch_of(follower.broker_id) is not None
        ]
        return min([own_start, *starts])


def is_eligible(follower: Follower, registered_epoch: int | None) -> bool:
    """Whether it may join the ISR: registered, not fenced, not shutting down, and in the life it fetches in."""
    if registered_epoch is None or follower.broker_epoch is None:
        return False
    return follower.broker_epoch in (ANY_BROKER_EPOCH, registered_epoch)


def preferred_read_replica(
    followers: Followers, offset: int, rack: str, rack_of: Callable[[int], str | None], node_id: int
) -> int | None:
    """KIP-392: an in-sync follower in the consumer's rack that has the offset; None: the leader itself."""
    if not rack or rack_of(node_id) == rack:
        return None
    best: Follower | None = None
    for follower in followers.by_id.values():
        if (
            follower.broker_id in followers.isr
            and follower.log_start_offset <= offset <= follower.end_offset
            and rack_of(follower.broker_id) == rack
            and (best is None or follower.end_offset > best.end_offset)
        ):
            best = follower
    return None if best is None else best.broker_id
