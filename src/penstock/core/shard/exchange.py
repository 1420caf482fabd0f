"""The outcome of a coordinator shard's operation: intentions, in the order of their durability.

An operation is `shard.<op>(request, token, now_ms) -> Outcome`. The token is the caller's name for the request; each
token is answered exactly once, perhaps by a later operation or tick.

Durability order: `replies` and `deeds` leave when `records` are committed, and so does every later reply of the shard.
Without records they leave as soon as all earlier records are committed.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from penstock.core.shard.records import CoordinatorRecord

Token: TypeAlias = int


class Producer(NamedTuple):
    """The producer in whose transaction the records of an outcome are written."""

    producer_id: int
    epoch: int
    guard: object = None
    """From the partition's `begin_verification`, before the transaction coordinator was asked."""


class Marker(NamedTuple):
    """The end of a producer's transaction in the shard's partition, written for the transaction coordinator."""

    producer_id: int
    epoch: int
    is_commit: bool
    coordinator_epoch: int
    version: int
    """Of the transaction protocol: from 2 on the epoch is higher than that of the transaction."""


class Outcome:
    """Intentions: records to append, requests to answer once those are committed, lines to log."""

    __slots__ = (
        "deeds",
        "idle_notices",
        "is_continued",
        "marker",
        "notices",
        "producer",
        "records",
        "reload_if_lost",
        "replies",
    )

    def __init__(self) -> None:
        self.records: list[CoordinatorRecord] = []
        self.producer: Producer | None = None
        """The records are part of this producer's transaction."""
        self.marker: Marker | None = None
        """To be written instead of records."""
        self.replies: list[tuple[Token, object]] = []
        self.deeds: list[object] = []
        """Actions of the host once the records are committed. A deed, unlike a reply, waits for that without a
        limit.
        """
        self.notices: list[str] = []
        self.idle_notices: list[str] = []
        """About groups that have nothing to read."""
        self.reload_if_lost = False
        """Soft state changed together with the records: if they cannot be appended, reload the shard."""
        self.is_continued = False
        """More work follows as soon as the records are replayed, before other requests: call `tick` then."""

    def reply(self, token: Token, reply: object) -> None:
        self.replies.append((token, reply))
