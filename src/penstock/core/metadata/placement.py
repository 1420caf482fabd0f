"""Replica placement: balances leaders and replicas, and spreads over as many racks as possible.

Every choice takes the least loaded broker, counted first within the topic, then over the whole image, then by id. So
placement depends on the image alone, and moves from topic to topic as the counts do. Kafka's rules apply: the leader
is a live broker; the followers are live brokers first, and fenced ones only if there are too few; a broker that is
shutting down gets nothing. Must not know: why replicas are placed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from penstock.core.metadata.image import MetadataImage, PartitionState, TopicState
from penstock.model.errors import ApiError, ErrorCode


@dataclass(frozen=True, slots=True)
class Candidate:
    broker_id: int
    rack: str | None = None
    is_live: bool = True


def candidates(image: MetadataImage, unregistered: Sequence[int] = ()) -> list[Candidate]:
    """Brokers that may get replicas, by id. `unregistered`: the brokers of a cluster without registrations."""
    if not image.brokers:
        return [Candidate(broker_id) for broker_id in sorted(unregistered)]
    return [
        Candidate(broker.broker_id, broker.rack, not broker.is_fenced)
        for _, broker in sorted(image.brokers.items())
        if not broker.in_controlled_shutdown
    ]


def check_replication_factor(replication_factor: int, brokers: Sequence[Candidate]) -> None:
    if replication_factor < 1:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    prefix = f"Unable to replicate the partition {replication_factor} time(s): "
    if brokers and not any(broker.is_live for broker in brokers):
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, prefix + "All brokers are currently fenced.")
    if replication_factor > len(brokers):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{prefix}The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(brokers)} broker(s) are registered.",
        )


@dataclass(slots=True)
class Counts:
    """Number of partitions each broker leads (as first replica) and carries."""

    leaders: Counter[int] = field(default_factory=Counter)
    replicas: Counter[int] = field(default_factory=Counter)
    seconds: Counter[tuple[int, int]] = field(default_factory=Counter)  # (first, second) -> the broker that takes over

    @classmethod
    def of(cls, partitions: Iterable[PartitionState]) -> Counts:
        counts = cls()
        # Thousands of partitions share few distinct assignments.
        assignments = Counter(each.target_replicas if each.removing else each.replicas for each in partitions)
        for replicas, number in assignments.items():
            counts.add(replicas, number)
        return counts

    def add(self, replicas: Sequence[int], by: int = 1) -> None:
        self.leaders[replicas[0]] += by
        for replica in replicas:
            self.replicas[replica] += by
        for second in replicas[1:2]:
            self.seconds[replicas[0], second] += by


class Placer:
    def __init__(self, brokers: Sequence[Candidate], image: MetadataImage) -> None:
        self.brokers = list(brokers)
        self._racks = {broker.broker_id: broker.rack for broker in image.brokers.values()}
        # With one broker there is no choice, so thousands of topics need no count.
        self.total = Counts.of(each for _, each in image.all_partitions()) if len(brokers) > 1 else Counts()

    def place(self, count: int, replication_factor: int, topic: TopicState | None = None) -> list[tuple[int, ...]]:
        """Place `count` more partitions of the topic, which may be new. The factor was checked."""
        own = Counts.of(topic.partitions if topic is not None else ())
        placed = []
        for _ in range(count):
            replicas = [self.leader(own)]
            while len(replicas) < replication_factor:
                replicas.append(self.follower(own, replicas))
            self._count(own, replicas)
            placed.append(tuple(replicas))
        self._even_out(own, placed)
        return placed

    def _count(self, own: Counts, replicas: Sequence[int], by: int = 1) -> None:
        own.add(replicas, by)
        self.total.add(replicas, by)

    def _even_out(self, own: Counts, placed: list[tuple[int, ...]]) -> None:
        """The last partition may need one broker as leader and follower: then swap with an earlier partition."""
        live = [broker.broker_id for broker in self.brokers if broker.is_live]
        while True:
            most = max(live, key=lambda broker: own.replicas[broker])
            least = min(live, key=lambda broker: own.replicas[broker])
            if own.replicas[most] - own.replicas[least] < 2:
                return
            number = next((n for n in reversed(range(len(placed))) if self._may_give(placed[n], most, least)), None)
            if number is None:
                return
            self._count(own, placed[number], -1)
            placed[number] = tuple(least if replica == most else replica for replica in placed[number])
            self._count(own, placed[number])

    def _may_give(self, replicas: tuple[int, ...], giver: int, taker: int) -> bool:
        if giver not in replicas[1:] or taker in replicas:
            return False
        others = [replica for replica in replicas if replica != giver]
        return self.rack_uses(taker, others) <= self.rack_uses(giver, others)

    def leader(self, own: Counts) -> int:
        return min(
            (broker.broker_id for broker in self.brokers if broker.is_live),
            key=lambda broker: (
                own.leaders[broker],
                own.replicas[broker],
                self.total.leaders[broker],
                self.total.replicas[broker],
                broker,
            ),
        )

    def follower(self, own: Counts, chosen: Sequence[int]) -> int:
        """Choose one more replica beside `chosen`; the first of them leads."""
        used = Counter(self._racks.get(replica) for replica in chosen)
        found = min(
            (each for each in self.brokers if each.broker_id not in chosen),
            key=lambda each: (
                not each.is_live,
                used[each.rack],
                own.replicas[each.broker_id],
                own.seconds[chosen[0], each.broker_id],
                self.total.replicas[each.broker_id],
                self.total.seconds[chosen[0], each.broker_id],
                each.broker_id,
            ),
        )
        return found.broker_id

    def rack_uses(self, broker: int, others: Sequence[int]) -> int:
        """Number of the others in the broker's rack."""
        rack = self._racks.get(broker)
        return sum(self._racks.get(other) == rack for other in others)
