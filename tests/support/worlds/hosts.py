"""The hosts of partitions in tests without a broker: shared settings, and reports."""

from __future__ import annotations

from collections.abc import Callable

from penstock.ports.clock import Clock
from penstock.replica.host import BrokerStanding, Host, Unheard
from penstock.replica.partition import Partition

ALONE = BrokerStanding(lambda: -1, None)
"""A broker that leads for ever."""


def lone_host(
    node_id: int,
    clock: Clock,
    standing: BrokerStanding = ALONE,
    broker_epoch_of: Callable[[int], int | None] = lambda _: None,
) -> Host:
    """That counts on nobody unless said otherwise. Nobody hears of its partitions."""
    return Host(node_id, clock, standing, broker_epoch_of, 30_000, lambda _: None)


class Listening(Unheard):
    """`PartitionEvents`, of which a test wants some."""

    def __init__(
        self,
        *,
        role_changed: Callable[[Partition], None] | None = None,
        isr_proposed: Callable[[Partition], None] | None = None,
        log_unusable: Callable[[Partition], None] | None = None,
        damage_found: Callable[[Partition, str | None], None] | None = None,
    ) -> None:
        self._role_changed = role_changed
        self._isr_proposed = isr_proposed
        self._log_unusable = log_unusable
        self._damage_found = damage_found

    def role_changed(self, partition: Partition) -> None:
        if self._role_changed is not None:
            self._role_changed(partition)

    def isr_proposed(self, partition: Partition) -> None:
        if self._isr_proposed is not None:
            self._isr_proposed(partition)

    def log_unusable(self, partition: Partition) -> None:
        if self._log_unusable is not None:
            self._log_unusable(partition)

    def damage_found(self, partition: Partition, path: str | None) -> None:
        if self._damage_found is not None:
            self._damage_found(partition, path)
