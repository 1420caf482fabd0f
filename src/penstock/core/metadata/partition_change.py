"""One change of one partition: wanted ISR and replicas in, a record out, including any election.

Corresponds to KRaft's PartitionChangeBuilder. After every change:

- the leader is in the ISR, or there is no leader;
- a replica that leaves an ISR below the minimum stays in the ELR (KIP-966) until the ISR reaches the
  minimum again: below the minimum nothing is committed, so the ELR has all committed records;
- a reassignment ends in the change that brings the last added replica into the ISR (KIP-455).

Must not know: why the change is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from penstock.core.metadata.image import NO_LEADER, MetadataImage, PartitionState, TopicState, effective_min_isr
from penstock.core.metadata.policies import TopicPolicies
from penstock.core.metadata.records import MetadataRecord, PartitionChanged

NOBODY = -1


class Election(Enum):
    ONLINE = "from the ISR, only if the leader cannot stay"
    PREFERRED = "the first replica, if it is in sync"
    UNCLEAN = "any replica, rather than none"


class Loss(Enum):
    """Records of a topic that a leaving broker may have lost."""

    NOTHING = "it has all records it acknowledged"
    UNFLUSHED = "it crashed and acknowledges before flushing"
    EVERYTHING = "it has another disk"


@dataclass(frozen=True, slots=True)
class Standing:
    """Brokers eligible for a decision: the image, corrected for the broker whose state is about to change."""

    image: MetadataImage
    gone: int = NOBODY
    leaving: int = NOBODY
    back: int = NOBODY

    def is_active(self, broker: int) -> bool:
        """The broker may become leader."""
        if broker in (self.gone, self.leaving):
            return False
        return broker == self.back or self.image.is_active(broker)

    def is_live(self, broker: int) -> bool:
        """The broker may stay leader while no other can lead, even if it is shutting down."""
        return broker != self.gone and (broker == self.back or self.image.is_live(broker))


@dataclass(slots=True)
class Wanted:
    """The wanted state of a partition; starts as its current state."""

    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    ineligible: tuple[int, ...] = ()  # may have lost acknowledged records: must leave the ELR
    erased: tuple[int, ...] = ()  # has no data: cannot be the last known leader either

    @classmethod
    def of(cls, partition: PartitionState) -> Wanted:
        return cls(partition.isr, partition.replicas, partition.adding, partition.removing)


def change_partition(
    topic: TopicState,
    partition: PartitionState,
    wanted: Wanted,
    standing: Standing,
    min_isr: int,
    election: Election = Election.ONLINE,
) -> PartitionChanged | None:
    """Return None if nothing changes. `min_isr` is the topic's configured value."""
    _complete_reassignment(wanted)
    minimum = effective_min_isr(min_isr, wanted.replicas, wanted.adding, wanted.removing)
    elr = _eligible(partition, wanted, minimum)
    leader, is_unclean = _elect(partition, wanted, elr, standing, election)
    isr = wanted.isr
    if is_unclean:
        isr, elr = (leader,), ()
    elif leader != NO_LEADER and leader not in isr:
        isr, elr = (leader,), tuple(replica for replica in elr if replica != leader)
    if len(isr) >= minimum:
        elr = ()

    # A removed replica must stop fetching; the new epoch fences it.
    is_bumped = leader != partition.leader or any(replica not in wanted.replicas for replica in partition.replicas)
    last_known = _last_known(partition, wanted, leader)
    if (
        not is_bumped
        and (isr, elr, last_known) == (partition.isr, partition.elr, partition.last_known_elr)
        and (wanted.replicas, wanted.adding, wanted.removing)
        == (partition.replicas, partition.adding, partition.removing)
    ):
        return None
    return PartitionChanged(
        topic.topic_id.hex(),
        partition.index,
        leader=leader if is_bumped else None,
        isr=_unless_same(isr, partition.isr),
        replicas=_unless_same(wanted.replicas, partition.replicas),
        adding=_unless_same(wanted.adding, partition.adding),
        removing=_unless_same(wanted.removing, partition.removing),
        elr=_unless_same(elr, partition.elr),
        last_known_elr=_unless_same(last_known, partition.last_known_elr),
    )


def change_all(
    affected: Iterable[tuple[TopicState, PartitionState]],
    standing: Standing,
    policies: TopicPolicies,
    loss: Callable[[str], Loss] = lambda _: Loss.NOTHING,
) -> list[MetadataRecord]:
    """Change partitions after brokers changed as in `standing`, with the departing broker and its loss."""
    records: list[MetadataRecord] = []
    asked: TopicState | None = None
    minimum, election, lost = 1, Election.ONLINE, Loss.NOTHING
    for topic, partition in affected:
        if topic is not asked:  # settings are resolved once per topic
            asked, minimum, lost = topic, policies.min_isr(topic.name), loss(topic.name)
            election = Election.UNCLEAN if policies.unclean_ok(topic.name) else Election.ONLINE
        wanted = Wanted.of(partition)
        wanted.isr = tuple(replica for replica in partition.isr if replica not in (standing.gone, standing.leaving))
        if lost is Loss.UNFLUSHED:
            wanted.ineligible = (standing.gone,)
        elif lost is Loss.EVERYTHING:
            wanted.erased = (standing.gone,)
        change = change_partition(topic, partition, wanted, standing, minimum, election)
        if change is not None:
            records.append(change)
    return records


def _unless_same(new: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if new == old else new


def _complete_reassignment(wanted: Wanted) -> None:
    if not wanted.adding and not wanted.removing:
        return
    replicas = tuple(replica for replica in wanted.replicas if replica not in wanted.removing)
    isr = tuple(replica for replica in wanted.isr if replica not in wanted.removing)
    if replicas and all(replica in isr for replica in replicas):
        wanted.replicas, wanted.isr, wanted.adding, wanted.removing = replicas, isr, (), ()


def _eligible(partition: PartitionState, wanted: Wanted, minimum: int) -> tuple[int, ...]:
    if len(wanted.isr) >= minimum:
        return ()
    barred = (*wanted.isr, *wanted.ineligible, *wanted.erased)
    return tuple(
        replica
        for replica in wanted.replicas
        if replica not in barred and (replica in partition.elr or replica in partition.isr)
    )


def _elect(
    partition: PartitionState, wanted: Wanted, elr: tuple[int, ...], standing: Standing, election: Election
) -> tuple[int, bool]:
    """Return the new leader, and whether committed records may be missing on it."""
    candidates = wanted.isr or elr
    order = (partition.leader, *wanted.replicas)
    if election is Election.PREFERRED:
        order = (wanted.replicas[0], *order)
    for replica in order:
        if replica in candidates and standing.is_active(replica):
            return replica, False
    if partition.leader in wanted.isr and standing.is_live(partition.leader):
        return partition.leader, False
    if not candidates:
        # All eligible replicas have crashed since: the last leader has the most records (KIP-966).
        for replica in _last_known(partition, wanted, NO_LEADER):
            if replica in wanted.replicas and standing.is_active(replica):
                return replica, True
    if election is Election.UNCLEAN:
        for replica in wanted.replicas:
            if standing.is_active(replica):
                return replica, True
    return NO_LEADER, False


def _last_known(partition: PartitionState, wanted: Wanted, leader: int) -> tuple[int, ...]:
    if leader != NO_LEADER:
        return ()
    known = partition.last_known_elr if partition.leader == NO_LEADER else (partition.leader,)
    return tuple(replica for replica in known if replica in wanted.replicas and replica not in wanted.erased)
