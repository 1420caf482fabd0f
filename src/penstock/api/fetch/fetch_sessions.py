"""Incremental fetch sessions (KIP-227): the broker remembers the partitions of a consumer or a follower.

A session holds its partitions in order; a follow-up request names only changes and is answered only with changes.
Bounded: if the cache is full, a new session replaces only one that was idle for two minutes, else the client is served
without a session. Followers always get one: there are only as many as brokers, and their sessions end with their
connections. Must not know: logs, the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.model.errors import ApiError, ErrorCode

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EVICT_AFTER_S = 120.0
MAX_SESSION_PARTITIONS = 100_000  # of one session
MAX_PARTITIONS = 1_000_000  # of all consumers' sessions; beyond that clients are served without one


@dataclass(slots=True, eq=False)
class SessionPartition:
    """The request for one partition, and the values last sent for it."""

    topic: str
    topic_id: bytes
    index: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int = -1  # the follower's own log start
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1
    had_error: bool = False


class FetchSession:
    __slots__ = ("epoch", "id", "is_of_follower", "last_used", "manner", "partitions", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool, now: float, *, is_of_follower: bool = False) -> None:
        self.id = session_id
        self.is_of_follower = is_of_follower
        self.epoch = 1
        self.manner: tuple[int, int] | None = None  # isolation level and version of the last fetch
        self.uses_topic_ids = uses_topic_ids
        self.partitions: dict[tuple[str | bytes, int], SessionPartition] = {}
        self.last_used = now

    def put(self, asked: SessionPartition) -> SessionPartition:
        """Return the session's entry for the partition."""
        key = self.key(asked.topic, asked.topic_id, asked.index)
        known = self.partitions.get(key)
        if known is None:
            self.partitions[key] = asked
            return asked
        known.fetch_offset = asked.fetch_offset
        known.max_bytes = asked.max_bytes
        known.current_leader_epoch = asked.current_leader_epoch
        known.last_fetched_epoch = asked.last_fetched_epoch
        known.log_start_offset = asked.log_start_offset
        return known

    def forget(self, topic: str, topic_id: bytes, index: int) -> SessionPartition | None:
        return self.partitions.pop(self.key(topic, topic_id, index), None)

    def move_to_end(self, partition: SessionPartition) -> None:
        """Partitions that got data go last, so that a busy one does not starve the others."""
        key = self.key(partition.topic, partition.topic_id, partition.index)
        if key in self.partitions:
            self.partitions[key] = self.partitions.pop(key)

    def key(self, topic: str, topic_id: bytes, index: int) -> tuple[str | bytes, int]:
        return (topic_id if self.uses_topic_ids else topic), index


class FetchSessions:
    def __init__(self, slots: int, random_id: Callable[[], int]) -> None:
        self._slots = slots
        self._random_id = random_id
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.evicted = 0
        self.when_evicted: Callable[[int], None] = lambda session_id: None

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, *, uses_topic_ids: bool, now: float, is_of_follower: bool = False) -> FetchSession | None:
        """A new session, or None if the cache is full of busy ones."""
        is_full = len(self._sessions) >= self._slots or self._partitions() >= MAX_PARTITIONS
        if is_full and not is_of_follower and not self._evict(now):
            return None
        session_id = self._random_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._random_id()
        session = self._sessions[session_id] = FetchSession(
            session_id, uses_topic_ids, now, is_of_follower=is_of_follower
        )
        return session

    def _partitions(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def _evict(self, now: float) -> bool:
        oldest = next((session for session in self._sessions.values() if not session.is_of_follower), None)
        if oldest is None or now - oldest.last_used < EVICT_AFTER_S:
            return False
        del self._sessions[oldest.id]
        self.when_evicted(oldest.id)
        self.evicted += 1
        return True

    def use(self, session_id: int, epoch: int, *, uses_topic_ids: bool, now: float) -> FetchSession:
        """The session of an incremental request. Raises ApiError."""
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == 0x7FFFFFFF else epoch + 1
        session.last_used = now
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)
