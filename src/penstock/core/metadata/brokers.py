"""What the controller decides about brokers: they come, are fenced, shut down and go. Nothing here changes the image.

A fenced broker leads nothing and is in no ISR; it may still be eligible (ELR) for what it has. A registration starts a
new life with a new epoch, always fenced; what the broker held in its last life is taken from it first.
Must not know: heartbeats and sessions, which say when.
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
    """Whether this is a broker in its present life."""
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


# -- coming -----------------------------------------------------------------------------


def register(
    image: MetadataImage,
    registration: Registration,
    policies: TopicPolicies,
    *,
    is_clean: bool,
    is_alone: bool = False,
) -> list[MetadataRecord]:
    """The last record is BrokerRegistered, with the epoch to answer. The same incarnation keeps its epoch.

    After a crash what was acknowledged is still on the disk of durable topics; elsewhere the broker is not eligible any
    more. Nor where a topic became durable during its last life: it may have crashed before its first flush there. With
    another disk it is eligible nowhere. `is_alone`: no other broker could have led meanwhile, so the broker is unfenced
    at once and its partitions stay as they are.
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
        # A log from before there were registrations is that of its only broker, and on its disk.
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
    """Whether two directory ids are of one disk. An empty one was not told."""
    return not known or not told or known == told


# -- being there ------------------------------------------------------------------------


def fence(image: MetadataImage, broker_id: int, policies: TopicPolicies) -> list[MetadataRecord]:
    """It is not heard of any more: others lead, without it."""
    if find(image, broker_id).is_fenced:
        return []
    return [*_without(image, broker_id, policies), BrokerChanged(broker_id, is_fenced=True)]


def unfence(image: MetadataImage, broker_id: int, policies: TopicPolicies) -> list[MetadataRecord]:
    """It serves from now on, and leads where nobody else could."""
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


# -- going ------------------------------------------------------------------------------


def begin_controlled_shutdown(image: MetadataImage, broker_id: int, policies: TopicPolicies) -> list[MetadataRecord]:
    """It hands over wherever another replica is in sync. Where it is the last one it leads on, and a replica that
    catches up takes over (see `alter_partition`). May be asked for again and again."""
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
    """How many partitions the broker leads."""
    return sum(partition.leader == broker_id for _, partition in image.all_partitions())


def awaits_successor(image: MetadataImage, broker_id: int) -> int:
    """How many partitions it leads that another running broker could take over once it has caught up."""
    return sum(
        partition.leader == broker_id
        and any(other != broker_id and image.is_active(other) for other in partition.replicas)
        for _, partition in image.all_partitions()
    )


def unregister(image: MetadataImage, broker_id: int, policies: TopicPolicies) -> list[MetadataRecord]:
    """For good. Partitions may still name it: `replicas_on` says which, a drain beforehand leaves none."""
    find(image, broker_id)
    return [*_without(image, broker_id, policies), BrokerUnregistered(broker_id)]


def replicas_on(image: MetadataImage, broker_id: int) -> list[tuple[str, int]]:
    """Partitions that have a replica on the broker, also one that is about to leave it."""
    return [
        (topic.name, partition.index) for topic, partition in image.all_partitions() if broker_id in partition.replicas
    ]
