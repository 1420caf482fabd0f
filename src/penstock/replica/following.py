"""The fetches of a follower from one leader: the partitions, the state of each, and the fetch session (KIP-227).

Builds the next fetch request. Sends nothing and appends nothing; time is an argument. The leader remembers the session,
so a request names only changed partitions, and thousands of idle partitions cost nothing.

Each partition is in one state; `core.partition.following` has the table. The session keeps ordered views of these
states for the next request. Only `meet` and `delay` change them.

Invariants
- One fetch is under way at a time. Its answer for a partition counts only if the partition has not changed since the
  request (`FollowedPartition.is_as_asked`).
- A partition that is held or delayed is not in the session.
"""

from __future__ import annotations

from penstock.config.broker import BrokerConfig
from penstock.core.partition.following import DELAYED_STATES, QUIET, Followed, Input, State
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
LONGEST_THROTTLE_S = 1.0  # then the fetcher checks again: the rate may have changed


class FollowedPartition(Followed):
    __slots__ = ("failures", "is_in_session", "is_throttled", "lag", "last_error", "partition")

    def __init__(self, partition: Partition) -> None:
        super().__init__()
        self.partition = partition
        self.is_in_session = False  # in the leader's session, as far as the leader knows
        self.is_throttled = False  # its fetched bytes count against the quota
        self.failures = 0  # in a row
        self.last_error = ""
        self.lag = 0  # records below the leader's high watermark that are missing here, as in Kafka

    @property
    def key(self) -> tuple[bytes, int]:
        return self.partition.topic_id, self.partition.index

    @property
    def is_as_asked(self) -> bool:
        partition = self.partition
        return (
            self.counts(partition.leader_epoch, partition.log.log_end_offset)
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
        # Views of `followed`, each in insertion order.
        self._changed: dict[FollowedPartition, None] = {}  # the next request carries their fetch offsets
        self._delayed: dict[FollowedPartition, float] = {}  # the deadline in monotonic seconds
        self._matching: dict[FollowedPartition, None] = {}
        self._throttled: dict[FollowedPartition, None] = {}  # partitions in the session that are throttled
        self._forgotten: dict[tuple[bytes, int], None] = {}  # unfollowed, but still in the session

    # -- which partitions -----------------------------------------------------------------------------------------

    def follow(self, partition: Partition) -> FollowedPartition:
        """Follow the partition. One that is already followed starts from scratch in a new epoch, at once."""
        known = self.followed.get((partition.topic_id, partition.index))
        if known is not None and known.partition is partition:
            met = known.assigned(partition.leader_epoch)
            is_as_told = known.is_in_session and not known.is_throttled and known not in self._changed
            if met is Input.ASSIGNED_AGAIN and is_as_told:
                return known  # only other replicas changed: the leader needs no request for that
            known.failures = 0
            self.meet(known, met)
            return known
        followed = FollowedPartition(partition)
        if known is not None:  # the topic id and index were created again, with a new log
            self._drop(known)
            followed.is_in_session = known.is_in_session
        elif followed.key in self._forgotten:
            del self._forgotten[followed.key]
            followed.is_in_session = True
        self.followed[followed.key] = followed
        self._changed[followed] = None
        return followed

    def unfollow(self, topic_id: bytes, index: int) -> None:
        followed = self.followed.pop((topic_id, index), None)
        if followed is not None:
            self._drop(followed)
            if followed.is_in_session:
                self._forgotten[followed.key] = None

    def _drop(self, followed: FollowedPartition) -> None:
        self.meet(followed, Input.UNASSIGNED)
        self._changed.pop(followed, None)
        self._throttled.pop(followed, None)

    def meet(self, followed: FollowedPartition, met: Input) -> None:
        before = followed.state
        state = followed.meet(met)
        if state is not before:
            if state is State.MATCHING:
                self._matching[followed] = None
            elif before is State.MATCHING:
                del self._matching[followed]
            if before in DELAYED_STATES and state not in DELAYED_STATES:
                del self._delayed[followed]
        if met not in QUIET and state is not State.GONE:
            self._changed[followed] = None

    def delay(self, followed: FollowedPartition, met: Input, until_s: float) -> None:
        """`met` is the reason."""
        self.meet(followed, met)
        if followed.state is not State.GONE:
            self._delayed[followed] = until_s

    def next_wakeup_s(self) -> float | None:
        """When a delayed partition is due, in monotonic seconds."""
        return min(self._delayed.values(), default=None)

    @property
    def has_changes(self) -> bool:
        return bool(self._changed or self._forgotten)

    # -- the fetch under way --------------------------------------------------------------------------------------

    def reset(self) -> None:
        """The connection is new, or the leader has lost the session: the next fetch is a full one."""
        self._id, self._epoch = NO_SESSION, FULL_FETCH_EPOCH
        self._forgotten.clear()
        for followed in self.followed.values():
            followed.is_in_session = False
            self.meet(followed, Input.SESSION_LOST)

    def next_request(self, config: BrokerConfig, broker_epoch: int, now_s: float) -> FetchRequest | None:
        """None: there is nothing to fetch now."""
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
            if followed.is_waiting:
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
            self._id, self._epoch = NO_SESSION, FULL_FETCH_EPOCH  # an empty session needs no request
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
        followed.ask(partition.leader_epoch, owner.log_end_offset)
        self.meet(followed, Input.NAMED)
        followed.is_in_session = True
        if followed.is_throttled:
            self._throttled[followed] = None
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
                self.meet(followed, Input.DELAY_OVER)

    def _delay_throttled(self, now_s: float) -> None:
        """The throttle of a partition is checked only when its place in the session changes."""
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
                    self.delay(followed, Input.THROTTLED, until_s)

    def _max_wait_ms(self, config: BrokerConfig, now_s: float) -> int:
        """The leader parks the fetch until it has data, but not beyond the moment when there is more to request.

        It does not park the fetch at all if an acknowledgement depends on the answer.
        """
        if any(followed.partition.is_durable for followed in self._matching):
            return 0
        wakeup_s = self.next_wakeup_s()
        if wakeup_s is None:
            return config.replica_fetch_wait_max_ms
        return max(1, min(config.replica_fetch_wait_max_ms, round((wakeup_s - now_s) * 1000)))

    def answered(self, response: FetchResponse) -> None:
        """A fetch was answered without a top-level error: the session continues."""
        if response.session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, FULL_FETCH_EPOCH
        elif self._epoch == FULL_FETCH_EPOCH:
            self._id, self._epoch = response.session_id, 1
        else:
            self._epoch = 1 if self._epoch == MAX_SESSION_EPOCH else self._epoch + 1

    def take_matched(self) -> list[FollowedPartition]:
        """Call after handling an answer. Returns the partitions whose log is now known to match the leader's."""
        if not self._matching:
            return []
        # Records of the answer were appended behind the fetch offset, so it is right that the end offset has moved on.
        matched = []
        for followed in list(self._matching):
            partition = followed.partition
            if followed.asked_epoch == partition.leader_epoch and not partition.is_leader:
                self.meet(followed, Input.AGREED)
                matched.append(followed)
            else:
                self.meet(followed, Input.NOT_AGREED)
        return matched
