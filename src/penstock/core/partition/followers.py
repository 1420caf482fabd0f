"""A leader's view of its followers in one leader epoch: their offsets, which may join the ISR, and which have fallen
behind.

Pure: offsets, times and the ISR are arguments, and nothing here acts. Must not know: logs, sockets, the controller.
`high_watermark` has the consequences for the high watermark.

An ISR change is pending from the request to the controller until its answer or the metadata shows the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.core.metadata.image import PartitionState
from penstock.core.partition.follower import ANY_BROKER_EPOCH, NEVER_MS, Brokers, Follower, is_eligible
from penstock.model.errors import ApiError, ErrorCode

REFUSED_MS: Final = 1000
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Followers:
    """All other replicas of one partition in one leader epoch, and the pending ISR change."""

    __slots__ = ("_joining", "_node_id", "_refused_until_ms", "by_id", "pending_isr")

    def __init__(self, node_id: int, metadata: PartitionState, now_ms: int) -> None:
        self._node_id = node_id
        self.by_id = {one: Follower(one, now_ms) for one in metadata.isr}  # others start as unknown
        self.pending_isr: tuple[int, ...] | None = None
        self._joining: dict[int, int] = {}  # members to add, with the broker epoch in which each caught up
        self._refused_until_ms = NEVER_MS
        self.assign(metadata.replicas)

    def assign(self, replicas: Sequence[int]) -> None:
        known, node_id = self.by_id, self._node_id
        self.by_id = {one: known.get(one) or Follower(one) for one in replicas if one != node_id}

    def became_durable(self, isr: Sequence[int], brokers: Brokers) -> None:
        """For ISR members the fetched offsets still count: their incarnations began before the change, and after a
        crash the controller does not trust them. Other followers may be in an incarnation that began after it, or may
        begin one before they join. That one is trusted, so records it has not flushed must not count.
        """
        for follower in self.by_id.values():
            is_of_a_known_life = follower.broker_epoch in (
                ANY_BROKER_EPOCH,
                brokers.broker_epoch_of(follower.broker_id),
            )
            if follower.broker_id not in isr or not is_of_a_known_life:
                follower.hold_to_claims()

    def in_its_life(self, replica_id: int, broker_epoch: int, brokers: Brokers) -> Follower:
        """The follower that sent a request. Raises ApiError if it is not a replica, or of an earlier broker epoch."""
        follower = self.by_id.get(replica_id)
        if follower is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        registered = brokers.broker_epoch_of(replica_id)
        if broker_epoch >= 0 and registered is not None and registered > broker_epoch:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the request has an old broker epoch of broker {replica_id}"
            )
        if follower.broker_epoch not in (None, broker_epoch):
            follower.forget(NEVER_MS)  # a new incarnation must report its offsets again
        follower.broker_epoch = broker_epoch
        return follower

    # -- in-sync replicas -------------------------------------------------------------------------------------

    def decided(self) -> None:
        """The pending change is decided: the metadata has it, or another ISR."""
        self.pending_isr = None

    def propose(self, isr: tuple[int, ...], known_isr: Sequence[int], brokers: Brokers) -> None:
        self.pending_isr = isr
        joining = [one for one in isr if one not in known_isr and one in self.by_id]
        self._joining = {one: self._epoch_of(one, brokers) for one in joining}

    def asked_isr(self, now_ms: int, brokers: Brokers) -> list[tuple[int, int]]:
        """The pending ISR as it is requested now: each broker and its epoch.

        A joining broker has the epoch in which it has caught up: the next incarnation may have lost its disk. A broker
        that has disowned since no longer joins. It still counts until the answer: an earlier request may have arrived.
        """
        members: list[tuple[int, int]] = []
        for broker_id in self.pending_isr or ():
            if broker_id not in self._joining:
                members.append((broker_id, self._epoch_of(broker_id, brokers)))
            elif (follower := self.by_id.get(broker_id)) is not None and not follower.is_kept_out(now_ms):
                members.append((broker_id, self._joining[broker_id]))
        return members

    def _epoch_of(self, broker_id: int, brokers: Brokers) -> int:
        epoch: int | None
        if broker_id == self._node_id:
            epoch = brokers.own_broker_epoch()
        else:
            follower = self.by_id.get(broker_id)
            epoch = None if follower is None else follower.broker_epoch
            if epoch is None or epoch == ANY_BROKER_EPOCH:
                epoch = brokers.broker_epoch_of(broker_id)
        return ANY_BROKER_EPOCH if epoch is None else epoch

    def refuse(self, now_ms: int) -> None:
        """The controller refuses the pending change: do not repeat it with the next fetch."""
        self.pending_isr = None
        self._refused_until_ms = now_ms + REFUSED_MS

    def joined_by(
        self, follower: Follower, metadata: PartitionState, needed_offset: int, now_ms: int, brokers: Brokers
    ) -> tuple[int, ...] | None:
        """The ISR with this follower, if it may join and has everything below `needed_offset`."""
        if (
            self.pending_isr is not None
            or follower.broker_id in metadata.isr
            or follower.end_offset < needed_offset
            or now_ms < self._refused_until_ms
            or follower.is_kept_out(now_ms)
            or not is_eligible(follower, brokers.broker_epoch_of(follower.broker_id))
        ):
            return None
        return tuple(one for one in metadata.replicas if one in metadata.isr or one == follower.broker_id)

    def out_of_sync(self, isr: Sequence[int], leader_end: int, now_ms: int, lag_time_max_ms: int) -> list[int]:
        """Members that have not caught up for too long.

        Called at intervals, so it also updates followers that have nothing to fetch: an idle follower's fetches do not
        name the partition, and its first record must not make it late.
        """
        late: list[int] = []
        for broker_id in isr:
            if broker_id == self._node_id:
                continue
            follower = self.by_id.get(broker_id)
            if follower is not None and follower.end_offset == leader_end:
                follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
            elif follower is None or not follower.is_caught_up(leader_end, now_ms, lag_time_max_ms):
                late.append(broker_id)
        return late

    # -- offsets ----------------------------------------------------------------------------------------------

    def low_watermark(self, own_start: int, brokers: Brokers) -> int:
        """The smallest log start offset of the live replicas."""
        starts = [
            follower.log_start_offset
            for follower in self.by_id.values()
            if brokers.broker_epoch_of(follower.broker_id) is not None
        ]
        return min([own_start, *starts])


def preferred_read_replica(
    followers: Followers,
    isr: Sequence[int],
    offset: int,
    rack: str,
    rack_of: Callable[[int], str | None],
    node_id: int,
) -> int | None:
    """KIP-392: an in-sync follower in the consumer's rack that has the offset; None: the leader itself."""
    if not rack or rack_of(node_id) == rack:
        return None
    best: Follower | None = None
    for follower in followers.by_id.values():
        if (
            follower.broker_id in isr
            and follower.log_start_offset <= offset <= follower.end_offset
            and rack_of(follower.broker_id) == rack
            and (best is None or follower.end_offset > best.end_offset)
        ):
            best = follower
    return None if best is None else best.broker_id
