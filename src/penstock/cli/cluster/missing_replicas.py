"""Which partitions are under-replicated: the same answer for all commands that count or name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from penstock.wire_client.requests.partitions import PartitionReplicas
    from penstock.wire_client.requests.replicas import ReplicaMove

Replicas: TypeAlias = "dict[tuple[str, int], PartitionReplicas]"


def under_replicated(partitions: Iterable[PartitionReplicas], moves: Iterable[ReplicaMove]) -> Replicas:
    """Replicas that a reassignment is adding do not count as missing: they were never in sync."""
    adding = {(one.topic, one.partition): one.adding for one in moves}
    found: Replicas = {}
    for one in partitions:
        key = (one.topic, one.partition)
        needed = tuple(replica for replica in one.replicas if replica not in adding.get(key, ()))
        if any(replica not in one.isr for replica in needed):
            found[key] = one._replace(replicas=needed)
    return found
