"""Reassignments (KIP-455): add replicas, wait until they are in sync, remove old ones. The image is not changed here.

During a reassignment `replicas` holds the target replicas, then those to be removed; `adding` and `removing` tell
them apart. It ends in `change_partition` as soon as all target replicas are in the ISR; only then does a leader that
is removed give up leadership. A new target replaces the current one; cancelling restores the replicas from before the
first. `plans` decides what moves where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.core.metadata.decisions import check_replicas
from penstock.core.metadata.image import NO_LEADER, MetadataImage, PartitionState
from penstock.core.metadata.partition_change import Election, Standing, Wanted, change_partition
from penstock.core.metadata.partitions import find
from penstock.core.metadata.policies import TopicPolicies
from penstock.core.metadata.records import MetadataRecord
from penstock.core.metadata.requests import OngoingReassignment
from penstock.model.errors import ApiError, ErrorCode


def begin(
    image: MetadataImage,
    topic: str,
    index: int,
    replicas: Sequence[int],
    policies: TopicPolicies,
    *,
    allow_replication_factor_change: bool = True,
) -> list[MetadataRecord]:
    """If nothing moves, or all targets are in sync already, the reassignment ends at once."""
    found, partition = find(image, topic, index)
    check_replicas(replicas, list(image.brokers))
    now = len(partition.target_replicas)
    if not allow_replication_factor_change and len(replicas) != now:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {now} to {len(replicas)}",
        )
    change = change_partition(
        found, partition, _towards(partition, tuple(replicas)), Standing(image), policies.min_isr(topic)
    )
    return [] if change is None else [change]


def _towards(partition: PartitionState, target: tuple[int, ...]) -> Wanted:
    original = tuple(replica for replica in partition.replicas if replica not in partition.adding)
    # Replicas added for an earlier target no longer need to catch up, unless no other replica is in sync.
    dropped = tuple(replica for replica in partition.adding if replica not in target)
    if all(replica in dropped for replica in partition.isr):
        holders = (*partition.isr, *partition.elr, *partition.last_known_elr)
        dropped = tuple(replica for replica in dropped if replica not in holders)
    staying = tuple(replica for replica in partition.replicas if replica not in target and replica not in dropped)
    return Wanted(
        isr=tuple(replica for replica in partition.isr if replica not in dropped),
        replicas=target + staying,
        adding=tuple(replica for replica in target + staying if replica not in original),
        removing=staying,
    )


def cancel(
    image: MetadataImage,
    topic: str,
    index: int,
    policies: TopicPolicies,
) -> list[MetadataRecord]:
    found, partition = find(image, topic, index)
    if not partition.is_reassigning:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    adding = partition.adding
    wanted = Wanted(
        isr=tuple(replica for replica in partition.isr if replica not in adding),
        replicas=tuple(replica for replica in partition.replicas if replica not in adding),
        adding=(),
        removing=(),
    )
    election = Election.UNCLEAN if policies.unclean_ok(topic) else Election.ONLINE
    change = change_partition(found, partition, wanted, Standing(image), policies.min_isr(topic), election)
    holders = (*partition.isr, *partition.elr)
    is_forgetting = bool(holders) and all(replica in adding for replica in holders)
    is_stopping = change is not None and change.leader == NO_LEADER != partition.leader
    if (is_forgetting or is_stopping) and election is not Election.UNCLEAN:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert partition assignment for {topic}:{index} because it would require an unclean leader "
            "election.",
        )
    return [] if change is None else [change]


def ongoing(image: MetadataImage, topics: Mapping[str, Sequence[int]] | None = None) -> list[OngoingReassignment]:
    """Reassignments in progress, of these partitions or of all. Unknown partitions are skipped, as in Kafka."""
    if topics is None:
        asked = [(topic.name, partition) for topic, partition in image.all_partitions()]
    else:
        asked = [
            (name, image.topics[name].partitions[index])
            for name, indexes in topics.items()
            if name in image.topics
            for index in indexes
            if 0 <= index < len(image.topics[name].partitions)
        ]
    return [
        OngoingReassignment(name, each.index, each.replicas, each.adding, each.removing)
        for name, each in asked
        if each.is_reassigning
    ]
