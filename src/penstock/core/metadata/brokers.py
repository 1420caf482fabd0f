"""Decisions of the controller about brokers: registration, fencing, shutdown, removal. The image is not changed here.

A fenced broker leads nothing and is in no ISR; it may still be in the ELR. A registration starts a new incarnation
with a new broker epoch, always fenced; the roles of the previous incarnation are removed first.
Must not know: heartbeats and sessions, which trigger these decisions.
"""

from __future__ import annotations

from penstock.core.metadata import features as feature_levels
from penstock.core.metadata.image import NO_LEADER, BrokerState, MetadataImage
from penstock.core.metadata.partition_change import Loss, Standing, change_all
from penstock.core.metadata.policies import TopicPolicies
from penstock.core.metadata.records import BrokerChanged, BrokerRegistered, BrokerUnregistered, MetadataRecord
from penstock.core.metadata.requests import Registration
from penstock.model.errors import ApiError, ErrorCode


def find(image: MetadataImage, broker_id: int) -> BrokerState:
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
    return broker


def check_epoch(image: MetadataImage, broker_id: int, epoch: int) -> None:
    """Raise an error unless `epoch` is the current epoch of the broker."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH, f"No broker registration found for broker id {broker_id}: register first."
        )
    if broker.epoch != epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"Expected broker epoch {broker.epoch} of broker {broker_id}, but got {epoch}.",
        )


# -- registration -----------------------------------------------------------------------


def register(
    image: MetadataImage,
    registration: Registration,
    policies: TopicPolicies,
    *,
    is_clean: bool,
    is_alone: bool = False,
) -> list[MetadataRecord]:
    """The last record is BrokerRegistered, with the epoch to return. The same incarnation keeps its epoch.

    After a crash, acknowledged records are still on the disk for durable topics. For other topics the broker leaves the
    ELR. It also leaves the ELR of topics that became durable during the last incarnation: it may have crashed before
    its first flush of them. A broker with another disk leaves every ELR. `is_alone`: no other broker could have led
    meanwhile, so the broker is unfenced at once and its partitions stay as they are.
    """
    broker_id, directory_id = registration.broker_id, registration.directory_id
    feature_levels.check_broker(image, registration.features)
    known = image.brokers.get(broker_id)
    is_same_life = known is not None and known.incarnation_id == registration.incarnation_id
    is_alone = is_alone and all(other == broker_id for other in image.brokers)
    records: list[MetadataRecord] = []
    if is_alone:
        leaderless = ((topic, each) for topic, each in image.all_partitions() if each.leader == NO_LEADER)
        records += change_all(leaderless, Standing(image, back=broker_id), policies)
    elif not is_same_life:
        was_clean = is_clean and known is not None and registration.previous_epoch == known.epoch
        # A log from before registrations belongs to its only broker, on the same disk.
        is_same_disk = image.next_broker_epoch == 0 if known is None else _may_be_same(known.directory_id, directory_id)

        def loss(topic: str) -> Loss:
            if not is_same_disk:
                return Loss.EVERYTHING
            was_durable = known is None or image.topics[topic].durable_from_epoch <= known.epoch
            return Loss.NOTHING if was_clean or (was_durable and policies.is_durable(topic)) else Loss.UNFLUSHED

        held = ((topic, each) for topic, each in image.all_partitions() if broker_id in each.replicas)
        records += change_all(held, Standing(image, gone=broker_id), policies, loss)
    keeps_state = known is not None and is_same_life and not is_alone
    records.append(
        BrokerRegistered(
            broker_id,
            known.epoch if known is not None and is_same_life else image.next_broker_epoch,
            registration.incarnation_id.hex(),
            dict(registration.endpoints),
            registration.rack,
            is_fenced=known.is_fenced if known is not None and keeps_state else not is_alone,
            in_controlled_shutdown=known.in_controlled_shutdown if known is not None and keeps_state else False,
            directory_id=directory_id,
            features=dict(registration.features),
        )
    )
    return records


def _may_be_same(known: str, told: str) -> bool:
    """Whether two directory ids may be of one disk. An empty id is unknown."""
    return not known or not told or known == told


# -- fencing ----------------------------------------------------------------------------


def fence(image: MetadataImage, broker_id: int, policies: TopicPolicies) -> list[MetadataRecord]:
    """The broker no longer responds: move leadership to other replicas and remove it from the ISR."""
    if find(image, broker_id).is_fenced:
        return []
    return [*_without(image, broker_id, policies), BrokerChanged(broker_id, is_fenced=True)]


def unfence(image: MetadataImage, broker_id: int, policies: TopicPolicies) -> list[MetadataRecord]:
    """The broker serves from now on, and leads partitions that no other replica could."""
    if not find(image, broker_id).is_fenced:
        return []
    waiting = (
        (topic, each)
        for topic, each in image.all_partitions()
        if each.leader == NO_LEADER and broker_id in each.replicas
    )
    elected = change_all(waiting, Standing(image, back=broker_id), policies)
    return [BrokerChanged(broker_id, is_fenced=False, in_controlled_shutdown=False), *elected]


def _without(image: MetadataImage, broker_id: int, policies: TopicPolicies) -> list[MetadataRecord]:
    held = ((topic, each) for topic, each in image.all_partitions() if broker_id in each.isr)
    return change_all(held, Standing(image, gone=broker_id), policies)


# -- shutdown and removal ---------------------------------------------------------------


def begin_controlled_shutdown(image: MetadataImage, broker_id: int, policies: TopicPolicies) -> list[MetadataRecord]:
    """Move leadership wherever another replica is in sync. Where the broker is the last one in sync, it stays leader
    until a replica catches up (see `alter_partition`). May be called repeatedly."""
    broker = find(image, broker_id)
    if broker.is_fenced:
        return []
    records: list[MetadataRecord] = []
    if not broker.in_controlled_shutdown:
        records.append(BrokerChanged(broker_id, in_controlled_shutdown=True))
    held = (
        (topic, each)
        for topic, each in image.all_partitions()
        if broker_id in each.isr and any(other != broker_id and image.is_live(other) for other in each.isr)
    )
    return records + change_all(held, Standing(image, leaving=broker_id), policies)


def leads(image: MetadataImage, broker_id: int) -> int:
    """Number of partitions the broker leads."""
    return sum(partition.leader == broker_id for _, partition in image.all_partitions())


def awaits_successor(image: MetadataImage, broker_id: int) -> int:
    """Number of partitions it leads that another running broker could take over after catching up."""
    return sum(
        partition.leader == broker_id
        and any(other != broker_id and image.is_active(other) for other in partition.replicas)
        for _, partition in image.all_partitions()
    )


def unregister(image: MetadataImage, broker_id: int, policies: TopicPolicies) -> list[MetadataRecord]:
    """Remove the broker permanently. Partitions may still list it: see `replicas_on`. Drain it first."""
    find(image, broker_id)
    return [*_without(image, broker_id, policies), BrokerUnregistered(broker_id)]


def replicas_on(image: MetadataImage, broker_id: int) -> list[tuple[str, int]]:
    """Partitions with a replica on the broker, including a replica that is being removed."""
    return [
        (topic.name, partition.index) for topic, partition in image.all_partitions() if broker_id in partition.replicas
    ]
