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
    """The guard from the partition's `begin_verification`, made before the transaction coordinator was asked."""


class Marker(NamedTuple):
    """The marker that ends a producer's transaction in the shard's partition, on behalf of the transaction
    coordinator.
    """

    producer_id: int
    epoch: int
    is_commit: bool
    coordinator_epoch: int
    version: int
    """The transaction version: from 2 on the marker's epoch is higher than the epoch of the transaction."""


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
        """A marker to be written instead of records."""
        self.replies: list[tuple[Token, object]] = []
        self.deeds: list[object] = []
        """Actions of the host after the records are committed. Unlike a reply, a deed waits for the commit without a
        limit.
        """
        self.notices: list[str] = []
        self.idle_notices: list[str] = []
        """Notices about groups that have nothing to read."""
        self.reload_if_lost = False
        """Soft state changed together with the records: if they cannot be appended, reload the shard."""
        self.is_continued = False
        """More work follows as soon as the records are replayed, before other requests: call `tick` then."""

    def reply(self, token: Token, reply: object) -> None:
        self.replies.append((token, reply))
