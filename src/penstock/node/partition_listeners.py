"""Passes partition events on to all listeners in this process; the partitions know only this one.

It also takes events of the whole broker that affect its partitions: a disk that hangs, a lease that ends.
"""

from __future__ import annotations

from penstock.node.coordinators import Coordinators
from penstock.replica.fetchers import ReplicaFetchers
from penstock.replica.hosting import HostedPartitions
from penstock.replica.isr import IsrKeeper
from penstock.replica.partition import Partition
from penstock.replica.revival import Revivals


class PartitionListeners:
    """Implements `replica.host.PartitionEvents`."""

    def __init__(
        self,
        partitions: HostedPartitions,
        fetchers: ReplicaFetchers,
        revivals: Revivals,
        isr: IsrKeeper,
        coordinators: Coordinators,
    ) -> None:
        self._partitions = partitions
        self._fetchers = fetchers
        self._revivals = revivals
        self._isr = isr
        self._coordinators = coordinators

    def role_changed(self, partition: Partition) -> None:
        self._fetchers.role_changed(partition)
        self._coordinators.role_changed(partition)

    def isr_proposed(self, partition: Partition) -> None:
        self._isr.ask_for(partition)

    def log_unusable(self, partition: Partition) -> None:
        self._fetchers.withdrawals.look_at(partition)
        self._revivals.look_at(partition)

    def append_failed(self, partition: Partition) -> None:
        self._fetchers.withdrawals.cannot_append(partition)

    def damage_found(self, partition: Partition, path: str | None) -> None:
        self._fetchers.repairs.found(partition, path)

    # # -- of the whole broker --------------------------------------------------------------

    def disk_hung(self, is_hung: bool) -> None:
        self._partitions.host.is_disk_hung = is_hung
        if is_hung:
            self._partitions.disk_hung()
        for partition in self._partitions:
            self._fetchers.withdrawals.look_at(partition)

    def lease_over(self) -> None:
        for partition in self._partitions:
            partition.lease_over()
