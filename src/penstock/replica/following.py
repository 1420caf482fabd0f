"""What a follower asks of one leader: the partitions, where each stands, and the fetch session (KIP-227).

Decides what the next fetch says; sends nothing, appends nothing, and is told what time it is. A session remembers at
the leader what was asked, so a request names only what changed, and thousands of idle partitions cost nothing.

Invariants
- One fetch is under way at a time; what its answer says of a partition counts only if the partition still is as it
  was when asked (`FollowedPartition.is_as_asked`).
- A partition that waits (an error, its throttle, a truncation) is not in the session: the leader would answer for it
  at once, again and again.
- A partition is `is_matched` once a fetch of this leader epoch over this connection was answered without divergence:
  before that, nothing of it may be acknowledged, as its end may be another leader's.
"""

from __future__ import annotations

from penstock.config.broker import BrokerConfig
from penstock.replica.partition import Partition
from penstock.replica.throttle import ReplicationQuota, is_throttled
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)

NO_SESSION = 0
FULL_FETCH_EPOCH = 0
MAX_SESSION_EPOCH = 0x7FFFFFFF
LONGEST_THROTTLE_S = 1.0  # then it looks again: the rate may have changed


class FollowedPartition:
    __slots__ = (
        "acknowledged_offset",
        "asked_epoch",
        "asked_offset",
        "failures",
        "is_being_fitted",
        "is_damaged",
        "is_in_session",
        "is_matched",
        "is_throttled",
        "is_withdrawn",
        "lag",
        "last_error",
        "partition",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.asked_offset = -1
        self.asked_epoch = -1
        self.is_in_session = False
        self.is_matched = False
        self.is_being_fitted = False  # truncated, or the leader's bounds are being asked for
        self.is_damaged = False  # not asked for before `replica.repair` is done with it
        self.is_withdrawn = False  # nor while its log cannot be used (`replica.withdrawal`)
        self.is_throttled = False
        self.acknowledged_offset = -1
        self.failures = 0  # in a row
        self.last_error = ""
        self.lag = 0  # records of the leader's high watermark that are not here, as in Kafka

    @property
    def key(self) -> tuple[bytes, int]:
        return self.partition.topic_id, self.partition.index

    @property
    def is_busy(self) -> bool:
        return self.is_being_fitted or self.is_damaged or self.is_withdrawn

    @property
    def is_as_asked(self) -> bool:
        partition = self.partition
        return (
            not self.is_busy
            and self.asked_epoch == partition.leader_epoch
            and self.asked_offset == partition.log.log_end_offset
            and not partition.is_leader
            and not partition.is_deleted
        )


class FollowerSession:
    def __init__(self, node_id: int, quota: ReplicationQuota) -> None:
        self._node_id = node_id
        self._quota = quota
        self.followed: dict[tuple[bytes, int], FollowedPartition] = {}
        self._id = NO_SESSION
        self._epoch = FULL_FETCH_EPOCH
        self._changed: dict[FollowedPartition, None] = {}
        self._delayed: dict[FollowedPartition, float] = {}  # until when, monotonic seconds
        self._throttled: dict[FollowedPartition, None] = {}  # of those in the session
        self._forgotten: dict[tuple[bytes, int], None] = {}
        self._to_match: dict[FollowedPartition, None] = {}  # in the fetch under way

    # -- which partitions -----------------------------------------------------------------------------------------

    def follow(self, partition: Partition) -> FollowedPartition:
        """Also for a partition that is followed already: in a new epoch it starts from scratch, at once."""
        known = self.followed.get((partition.topic_id, partition.index))
        if known is not None and known.partition is partition:
            is_same_epoch = known.asked_epoch == partition.leader_epoch
            if is_same_epoch and known.is_in_session and not known.is_throttled and known not in self._changed:
                return known  # other replicas have come or gone, which is nothing to tell the leader
            known.failures = 0
            known.is_matched = known.is_matched and is_same_epoch
            self._delayed.pop(known, None)
            self._changed[known] = None
            return known
        followed = FollowedPartition(partition)
        if known is not None:  # of a topic id and index made anew: a log of its own
            self._drop(known)
            followed.is_in_session = known.is_in_session
        self.followed[followed.key] = followed
        self._changed[followed] = None
        self._forgotten.pop(followed.key, None)
        return followed

    def unfollow(self, topic_id: bytes, index: int) -> None:
        followed = self.followed.pop((topic_id, index), None)
        if followed is not None:
            self._drop(followed)
            if followed.is_in_session:
                self._forgotten[followed.key] = None

    def _drop(self, followed: FollowedPartition) -> None:
        for group in (self._changed, self._delayed, self._throttled, self._to_match):
            group.pop(followed, None)

    def changed(self, followed: FollowedPartition) -> None:
        """The next request says where it stands now."""
        if self.followed.get(followed.key) is followed:  # not of one whose place another has taken
            self._changed[followed] = None

    def delay(self, followed: FollowedPartition, until_s: float) -> None:
        self._to_match.pop(followed, None)
        if self.followed.get(followed.key) is followed:
            self._delayed[followed] = until_s
            self._changed[followed] = None

    def hold(self, followed: FollowedPartition, *, is_damaged: bool = False, is_withdrawn: bool = False) -> None:
        """Ask nothing for it until `release` for the same reason."""
        if is_damaged:
            followed.is_damaged = True
        elif is_withdrawn:
            followed.is_withdrawn = True
        else:
            followed.is_being_fitted = True
        followed.is_matched = False
        self._to_match.pop(followed, None)
        self.changed(followed)

    def release(self, followed: FollowedPartition, *, is_damaged: bool = False, is_withdrawn: bool = False) -> None:
        if is_damaged:
            followed.is_damaged = False
        elif is_withdrawn:
            followed.is_withdrawn = False
        else:
            followed.is_being_fitted = False
        self.changed(followed)

    def next_wakeup_s(self) -> float | None:
        """When a partition that waits is due, in monotonic seconds."""
        return min(self._delayed.values(), default=None)

    @property
    def has_changes(self) -> bool:
        return bool(self._changed or self._forgotten)

    # -- the fetch under way --------------------------------------------------------------------------------------

    def reset(self) -> None:
        """The connection is new, or the leader has forgotten the session: everything is said again."""
        self._id, self._epoch = NO_SESSION, FULL_FETCH_EPOCH
        self._forgotten.clear()
        self._to_match.clear()
        for followed in self.followed.values():
            followed.is_in_session = followed.is_matched = False
            self._changed[followed] = None

    def next_request(self, config: BrokerConfig, broker_epoch: int, now_s: float) -> FetchRequest | None:
        """None: nothing to ask for now."""
        self._delay_throttled(now_s)
        self._admit_due(now_s)
        topics: dict[bytes, FetchTopic] = {}
        forgotten: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in self._forgotten:
            forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
        is_full = self._epoch == FULL_FETCH_EPOCH
        for followed in self.followed.values() if is_full else self._changed:
            partition = followed.partition
            topic_id = partition.topic_id
            if followed.is_busy or followed in self._delayed:
                if followed.is_in_session:
                    followed.is_in_session = False
                    self._throttled.pop(followed, None)
                    forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(partition.index)
                continue
            asked = self._ask(followed, config.replica_fetch_max_bytes)
            topics.setdefault(topic_id, FetchTopic(topic_id=topic_id)).partitions.append(asked)
        if is_full and not topics:
            return None
        self._changed.clear()
        self._forgotten.clear()
        if not is_full and not topics and not any(followed.is_in_session for followed in self.followed.values()):
            self._id, self._epoch = NO_SESSION, FULL_FETCH_EPOCH  # an empty session is not worth asking for
            return None
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=broker_epoch),
            max_wait_ms=self._max_wait_ms(config, now_s),
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=list(topics.values()),
            forgotten_topics_data=[] if is_full else list(forgotten.values()),
        )

    def _ask(self, followed: FollowedPartition, max_bytes: int) -> FetchPartition:
        partition = followed.partition
        owner = partition.log
        followed.asked_offset = owner.log_end_offset
        followed.asked_epoch = partition.leader_epoch
        followed.is_in_session = True
        if followed.is_throttled:
            self._throttled[followed] = None
        if not followed.is_matched:
            self._to_match[followed] = None
        return FetchPartition(
            partition=partition.index,
            current_leader_epoch=partition.leader_epoch,
            fetch_offset=owner.log_end_offset,
            last_fetched_epoch=owner.epochs.latest,
            log_start_offset=owner.log_start_offset,
            partition_max_bytes=max_bytes,
        )

    def _admit_due(self, now_s: float) -> None:
        if self._delayed:
            for followed in [followed for followed, until_s in self._delayed.items() if until_s <= now_s]:
                del self._delayed[followed]
                self._changed[followed] = None

    def _delay_throttled(self, now_s: float) -> None:
        """Whoever may be throttled is asked about when its place in the session is looked at anyway."""
        for followed in self._changed:
            partition = followed.partition
            followed.is_throttled = self._node_id not in partition.isr and is_throttled(
                partition.config, partition.index, self._node_id
            )
            if not followed.is_throttled:
                self._throttled.pop(followed, None)
        wait_s = self._quota.wait_s(now_s)
        if wait_s > 0:
            until_s = now_s + min(wait_s, LONGEST_THROTTLE_S)
            for followed in [*self._throttled, *(changed for changed in self._changed if changed.is_throttled)]:
                if followed not in self._delayed:
                    self.delay(followed, until_s)

    def _max_wait_ms(self, config: BrokerConfig, now_s: float) -> int:
        """The leader holds the fetch until there is news, but not beyond the moment when there is more to ask.

        Nor at all where the answer is what allows an acknowledgement.
        """
        if any(followed.partition.is_durable for followed in self._to_match):
            return 0
        wakeup_s = self.next_wakeup_s()
        if wakeup_s is None:
            return config.replica_fetch_wait_max_ms
        return max(1, min(config.replica_fetch_wait_max_ms, round((wakeup_s - now_s) * 1000)))

    def answered(self, response: FetchResponse) -> None:
        """A fetch was answered, without an error of the whole: the session goes on."""
        if response.session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, FULL_FETCH_EPOCH
        elif self._epoch == FULL_FETCH_EPOCH:
            self._id, self._epoch = response.session_id, 1
        else:
            self._epoch = 1 if self._epoch == MAX_SESSION_EPOCH else self._epoch + 1

    def take_matched(self) -> list[FollowedPartition]:
        """After the answer was looked at: those whose log is now known to be the leader's, as far as it goes."""
        if not self._to_match:
            return []
        # What came with the answer was appended behind what was asked from, so the offset has moved on rightly.
        matched = [
            followed
            for followed in self._to_match
            if not followed.is_busy
            and followed.asked_epoch == followed.partition.leader_epoch
            and not followed.partition.is_leader
        ]
        self._to_match.clear()
        for followed in matched:
            followed.is_matched = True
        return matched
