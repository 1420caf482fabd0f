"""One other replica as its leader sees it: its fetch positions, and whether it keeps up.

Offsets and times are arguments. Must not know: the log, sockets, the controller.

Invariants
- A follower that now fetches from the log end of an earlier fetch was caught up at the time of that fetch. So a
  follower that keeps up is in sync even though the log always grows a little further.
- A follower that disowned part of its log (`Follower.disown`) neither joins the ISR nor holds the high watermark back
  until it has the part it could not store, and a pause is over. Otherwise a follower with a full disk would join and
  leave with every attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

UNKNOWN_OFFSET: Final = -1
NEVER_MS: Final = -(1 << 62)
ANY_BROKER_EPOCH: Final = -1
FIRST_PAUSE_MS: Final = 1000
LONGEST_PAUSE_MS: Final = 60_000
FORGIVEN_AFTER_MS: Final = 2 * LONGEST_PAUSE_MS


class Brokers(Protocol):
    """The brokers of a cluster as its leaders know them."""

    @property
    def lag_time_max_ms(self) -> int: ...

    @property
    def own_broker_epoch(self) -> Callable[[], int]: ...

    @property
    def broker_epoch_of(self) -> Callable[[int], int | None]:
        """The epoch of a broker that may join an ISR; None if it is unknown, fenced or shutting down."""
        ...


class Follower:
    """One other replica, by its fetches."""

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
        self.broker_epoch: int | None = None  # of its last fetch; None: no fetch yet
        self._disowned_from = self._returns_from = UNKNOWN_OFFSET
        self._disowned_ms, self._pause_ms = NEVER_MS, 0
        self.forget(caught_up_ms)

    def forget(self, caught_up_ms: int) -> None:
        """Forget the follower's offsets: they are unknown until it reports them again."""
        self.end_offset = UNKNOWN_OFFSET
        self.claimed_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.caught_up_ms = caught_up_ms
        self._previous_fetch_ms = caught_up_ms
        self._previous_leader_end = UNKNOWN_OFFSET

    def holds(self, offset: int, log_start: int, leader_end: int, now_ms: int) -> bool:
        """The follower has everything below `offset`. Returns whether the offset is new."""
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
        """The follower is alive, without a new offset: its fetch is for a durable topic, where it reports the stable
        offset separately.
        """
        self.log_start_offset = log_start
        if self.end_offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)

    def hold_to_claims(self) -> None:
        """From now on only claimed offsets count, including earlier claims: fetched records may not be stable."""
        nothing_yet = min(self.end_offset, self.log_start_offset)  # an empty log has nothing to claim
        if self.end_offset > max(self.claimed_offset, nothing_yet):
            self.end_offset = max(self.claimed_offset, nothing_yet)
            self.caught_up_ms = NEVER_MS
            self._previous_leader_end = UNKNOWN_OFFSET

    def disown(self, offset: int, leader_end: int, now_ms: int) -> None:
        """The follower reports that its log does not count from `offset` on, so the leader does not wait for it as for
        a follower that lags.

        The pause doubles if it had stored more since and fails again. A follower without progress cannot return anyway,
        and need not wait longer once it can.
        """
        if now_ms - self._disowned_ms > FORGIVEN_AFTER_MS:
            self._pause_ms = FIRST_PAUSE_MS
        elif self.end_offset > self._disowned_from:
            self._pause_ms = min(2 * self._pause_ms, LONGEST_PAUSE_MS)
        self._disowned_ms, self._disowned_from, self._returns_from = now_ms, offset, leader_end
        self.end_offset = min(self.end_offset, offset)
        self.claimed_offset = min(self.claimed_offset, offset)
        self.caught_up_ms = NEVER_MS
        self._previous_leader_end = UNKNOWN_OFFSET  # an earlier position at the end is no proof that it keeps up

    def is_kept_out(self, now_ms: int) -> bool:
        """Whether the follower has disowned part of its log and not yet stored it again, or its pause is not over."""
        return self.end_offset < self._returns_from or now_ms < self._disowned_ms + self._pause_ms

    def is_caught_up(self, leader_end: int, now_ms: int, lag_time_max_ms: int) -> bool:
        return self.end_offset == leader_end or now_ms - self.caught_up_ms <= lag_time_max_ms


def is_eligible(follower: Follower, registered_epoch: int | None) -> bool:
    """Whether it may join the ISR: registered, not fenced, not shutting down, and fetching in its current
    broker epoch.
    """
    if registered_epoch is None or follower.broker_epoch is None:
        return False
    return follower.broker_epoch in (ANY_BROKER_EPOCH, registered_epoch)
