"""What all partitions of one broker share: who it is, whom it may count on, and whether it may still lead.

Filled in by whoever composes the broker. Alone, a broker counts on nobody and leads for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.ports.clock import Clock

if TYPE_CHECKING:
    from penstock.replica.partition import Partition


def _nobody(broker_id: int) -> int | None:
    return None


def _unheard(partition: Partition) -> None:
    """Without a controller the in-sync replicas, and leaders, stay as they are."""


class Host:
    __slots__ = (
        "_clock",
        "broker_epoch_of",
        "is_disk_hung",
        "isr_expands",
        "isr_shrinks",
        "lag_time_max_ms",
        "lease",
        "node_id",
        "on_append_failed",
        "on_log_start",
        "on_offline",
        "on_told",
        "own_broker_epoch",
        "propose_isr",
    )

    def __init__(self, node_id: int, clock: Clock) -> None:
        self.node_id = node_id
        self._clock = clock
        self.lag_time_max_ms = 30_000
        self.isr_shrinks = self.isr_expands = 0
        self.is_disk_hung = False
        """Flushes do not end: what is taken in here cannot be counted on (`replica.disk_watch`)."""
        self.lease: Callable[[], bool] | None = None
        """Whether this broker may still lead; None: always. To be set before the first partition leads."""
        self.own_broker_epoch: Callable[[], int] = lambda: -1
        self.broker_epoch_of: Callable[[int], int | None] = _nobody
        """The epoch of a broker that may join an ISR; None if it is unknown, fenced or shutting down."""
        self.propose_isr: Callable[[Partition], None] = _unheard
        """Told of a partition with a pending change of its in-sync replicas."""
        self.on_offline: Callable[[Partition], None] = _unheard
        """Told, repeatedly, of a partition whose log is offline or whose disk hangs."""
        self.on_told: Callable[[Partition], None] = _unheard
        """Told of a partition that hears late, after a cut of its log, what the metadata says of it."""
        self.on_log_start: Callable[[Partition], None] = _unheard
        """Told of a follower whose log start has moved as its leader's did."""
        self.on_append_failed: Callable[[Partition], None] = _unheard
        """Told, repeatedly, of a partition that leads here and could not store what it was sent: a full disk, say."""

    def count_isr_change(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Of a partition that leads here."""
        self.isr_shrinks += any(one not in after for one in before)
        self.isr_expands += any(one not in before for one in after)

    def now_ms(self) -> int:
        """For lags, which must not jump when somebody sets the wall clock."""
        return int(self._clock.monotonic() * 1000)
