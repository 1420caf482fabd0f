"""Decisions of the controller about single partitions: their ISR and leader. The image is not changed here.

Raises ApiError with Kafka's code.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.core.metadata import brokers
from penstock.core.metadata.image import NO_LEADER, MetadataImage, PartitionState, TopicState
from penstock.core.metadata.partition_change import Election, Standing, Wanted, change_all, change_partition
from penstock.core.metadata.policies import TopicPolicies
from penstock.core.metadata.records import MetadataRecord
from penstock.core.metadata.requests import NO_BROKER_EPOCH, ElectionKind, IsrChange
from penstock.model.errors import ApiError, ErrorCode


def find(image: MetadataImage, topic: str, index: int) -> tuple[TopicState, PartitionState]:
    found = image.topics.get(topic)
    if found is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
    if not 0 <= index < len(found.partitions):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}")
    return found, found.partitions[index]


# -- ISR changes by the leader ----------------------------------------------------------


def alter_partition(
    image: MetadataImage, broker_id: int, broker_epoch: int, change: IsrChange, policies: TopicPolicies
) -> list[MetadataRecord]:
    """NO_BROKER_EPOCH in the requested ISR matches any epoch of that broker. `altered` then gives the answer."""
    brokers.check_epoch(image, broker_id, broker_epoch)
    topic, partition = _find_by_id(image, change.topic_id, change.index)
    _check_alteration(topic, partition, broker_id, change)
    _check_eligible(image, partition, change.new_isr)
    wanted = Wanted.of(partition)
    wanted.isr = tuple(broker for broker, _ in change.new_isr)
    if not image.is_active(broker_id) and len(wanted.isr) > 1:
        # The leader is shutting down and stayed only because no other replica was in sync.
        wanted.isr = tuple(broker for broker in wanted.isr if broker != broker_id)
    election = Election.UNCLEAN if policies.unclean_ok(topic.name) else Election.ONLINE
    record = change_partition(topic, partition, wanted, Standing(image), policies.min_isr(topic.name), election)
    return [] if record is None else [record]


def altered(image: MetadataImage, topic_id: bytes, index: int, broker_id: int) -> PartitionState:
    """The answer to a leader whose change is in the image. Raises NEW_LEADER_ELECTED if it no longer leads."""
    _, partition = _find_by_id(image, topic_id, index)
    if partition.leader != broker_id:
        raise ApiError(ErrorCode.NEW_LEADER_ELECTED, f"The ISR was changed. Broker {partition.leader} leads now.")
    return partition


def _find_by_id(image: MetadataImage, topic_id: bytes, index: int) -> tuple[TopicState, PartitionState]:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with id {topic_id.hex()}.")
    return find(image, topic.name, index)


def _check_alteration(topic: TopicState, partition: PartitionState, broker_id: int, change: IsrChange) -> None:
    leader_epoch, partition_epoch = change.leader_epoch, change.partition_epoch
    new_isr = [broker for broker, _ in change.new_isr]
    name = f"{topic.name}-{partition.index}"
    if leader_epoch > partition.leader_epoch or partition_epoch > partition.partition_epoch:
        raise ApiError(
            ErrorCode.NOT_CONTROLLER,
            f"{name} is newer than the metadata of this controller: send the request to another one.",
        )
    if leader_epoch < partition.leader_epoch:
        raise ApiError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"The leader epoch of {name} is {partition.leader_epoch}, not {leader_epoch}.",
        )
    if broker_id != partition.leader:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"The leader of {name} is {partition.leader}, not {broker_id}.")
    if partition_epoch < partition.partition_epoch:
        raise ApiError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The partition epoch of {name} is {partition.partition_epoch}, not {partition_epoch}.",
        )
    if not new_isr:  # without the leader: a leader with a damaged log resigns
        raise ApiError(ErrorCode.INVALID_REQUEST, f"The ISR of {name} must not be empty.")
    if len(dict.fromkeys(new_isr)) != len(new_isr) or any(broker not in partition.replicas for broker in new_isr):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"The ISR {new_isr} of {name} contains brokers that are not among its replicas {list(partition.replicas)}.",
        )


def _check_eligible(image: MetadataImage, partition: PartitionState, new_isr: Sequence[tuple[int, int]]) -> None:
    for broker_id, epoch in new_isr:
        broker = image.brokers.get(broker_id)
        if broker is None:
            reason = "not registered"
        elif broker.in_controlled_shutdown and broker_id != partition.leader:
            reason = "shutting down"
        elif broker.is_fenced:
            reason = "fenced"
        elif epoch not in (NO_BROKER_EPOCH, broker.epoch):
            reason = f"broker epoch mismatch: requested={epoch} VS expected={broker.epoch}"
        else:
            continue
        raise ApiError(ErrorCode.INELIGIBLE_REPLICA, f"Broker {broker_id} must not be in the ISR: {reason}.")


# -- elections --------------------------------------------------------------------------


def elect(
    image: MetadataImage, topic: str, index: int, kind: ElectionKind, policies: TopicPolicies
) -> list[MetadataRecord]:
    """Elect on request. An unclean election is allowed whatever the topic's configuration is."""
    found, partition = find(image, topic, index)
    if kind is ElectionKind.PREFERRED:
        is_needed = partition.leader != partition.replicas[0]
        election, refusal = Election.PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        reason = f"The preferred leader {partition.replicas[0]} of {topic}-{index} is not in sync or not active."
    else:
        is_needed = partition.leader == NO_LEADER
        election, refusal = Election.UNCLEAN, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        reason = f"None of the replicas {list(partition.replicas)} of {topic}-{index} is available now."
    if not is_needed:
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, f"Leader election not needed for {topic}-{index}.")
    change = change_partition(
        found, partition, Wanted.of(partition), Standing(image), policies.min_isr(topic), election
    )
    if change is None or change.leader is None:
        raise ApiError(refusal, reason)
    return [change]


def preferred_imbalance(image: MetadataImage, policies: TopicPolicies, limit: int = 1000) -> list[MetadataRecord]:
    """Move leadership back to the first replicas where they are in sync; at most `limit` at once."""
    records: list[MetadataRecord] = []
    for topic, partition in image.all_partitions():
        preferred = partition.replicas[0]
        if partition.leader == preferred or preferred not in partition.isr or not image.is_active(preferred):
            continue
        change = change_partition(
            topic, partition, Wanted.of(partition), Standing(image), policies.min_isr(topic.name), Election.PREFERRED
        )
        if change is not None:
            records.append(change)
            if len(records) >= limit:
                break
    return records


def elect_leaderless(image: MetadataImage, policies: TopicPolicies) -> list[MetadataRecord]:
    """Elect leaders where an election is possible now: unclean elections may have been allowed since."""
    leaderless = ((topic, each) for topic, each in image.all_partitions() if each.leader == NO_LEADER)
    return change_all(leaderless, Standing(image), policies)


def settings_changed(
    image: MetadataImage,
    topics: Collection[str],
    policies: TopicPolicies,
    now_durable: Collection[str] = (),
) -> list[MetadataRecord]:
    """Called after the entry that changes `min.insync.replicas` or `flush.messages` of these topics; `policies` has
    the new minimum.

    A lower minimum lets an ISR commit that could not before, so the ELR is cleared. If a topic becomes durable only
    now, an absent broker may have crashed before, which its registration will not show; so it leaves the ELR. Raises
    INVALID_CONFIG if no eligible replica would remain.
    """
    records: list[MetadataRecord] = []
    for topic, partition in image.all_partitions():
        if not partition.elr or topic.name not in topics:
            continue
        wanted = Wanted.of(partition)
        if topic.name in now_durable:
            wanted.ineligible = tuple(replica for replica in partition.elr if not image.is_live(replica))
            if partition.leader == NO_LEADER and wanted.ineligible == partition.elr:
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    f"{topic.name}-{partition.index} has no leader, and after this change it would be unknown "
                    f"whether its eligible replicas on {list(partition.elr)} still have all acknowledged records: "
                    "start at least one of these brokers again first",
                )
        election = Election.UNCLEAN if policies.unclean_ok(topic.name) else Election.ONLINE
        change = change_partition(topic, partition, wanted, Standing(image), policies.min_isr(topic.name), election)
        if change is not None:
            records.append(change)
    return records
