"""The broker as its partitions see it: its identity, its lease, the other brokers' epochs, and the listener.

While logs are being opened, partitions send no events. The later listener (`HostedPartitions.follow`) visits each of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.ports.clock import Clock

if TYPE_CHECKING:
    from penstock.replica.partition import Partition


class PartitionEvents(Protocol):
    """Events that partitions report to the broker that hosts them."""

    def role_changed(self, partition: Partition) -> None:
        """The partition was added, deleted (`is_deleted`), updated by metadata, or has a usable log again."""
        ...

    def isr_proposed(self, partition: Partition) -> None:
        """The partition leads here and has a pending ISR change."""
        ...

    def log_unusable(self, partition: Partition) -> None:
        """Its log is offline or its disk hangs. Reported repeatedly."""
        ...

    def append_failed(self, partition: Partition) -> None:
        """The partition leads here and could not store a batch, because of a full disk for example. Reported
        repeatedly.
        """
        ...

    def damage_found(self, partition: Partition, path: str | None) -> None:
        """In the segment at `path`; None: the segment is unknown. Reported repeatedly."""
        ...


class Unheard:
    """`PartitionEvents` that are ignored: the ISR and leaders stay as they are."""

    def role_changed(self, partition: Partition) -> None: ...

    def isr_proposed(self, partition: Partition) -> None: ...

    def log_unusable(self, partition: Partition) -> None: ...

    def append_failed(self, partition: Partition) -> None: ...

    def damage_found(self, partition: Partition, path: str | None) -> None: ...


class BrokerStanding(NamedTuple):
    """This broker's standing in its cluster."""

    broker_epoch: Callable[[], int]
    lease: Callable[[], bool] | None
    """Whether this broker may still lead; None: always."""


class Host:
    __slots__ = (
        "_clock",
        "broker_epoch_of",
        "events",
        "is_disk_hung",
        "isr_expands",
        "isr_shrinks",
        "lag_time_max_ms",
        "lease",
        "log_start_moved",
        "node_id",
        "own_broker_epoch",
    )

    def __init__(
        self,
        node_id: int,
        clock: Clock,
        standing: BrokerStanding,
        broker_epoch_of: Callable[[int], int | None],
        lag_time_max_ms: int,
        log_start_moved: Callable[[Partition], None],
    ) -> None:
        """`broker_epoch_of`: the epoch of a broker that may join an ISR; None if it is unknown, fenced or shutting
        down. `log_start_moved`: called for a follower whose log start has moved with its leader's.
        """
        self.node_id = node_id
        self._clock = clock
        self.own_broker_epoch, self.lease = standing
        self.broker_epoch_of = broker_epoch_of
        self.lag_time_max_ms = lag_time_max_ms
        self.log_start_moved = log_start_moved
        self.events: PartitionEvents = Unheard()
        self.isr_shrinks = self.isr_expands = 0
        self.is_disk_hung = False
        """Flushes do not end: new appends here cannot be counted on (`replica.disk_watch`)."""

    def count_isr_change(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """For a partition that leads here."""
        self.isr_shrinks += any(one not in after for one in before)
        self.isr_expands += any(one not in before for one in after)

    def now_ms(self) -> int:
        """For lags, which must not jump when the wall clock is set."""
        return int(self._clock.monotonic() * 1000)
