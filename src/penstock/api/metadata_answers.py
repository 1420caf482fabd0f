"""What Metadata says of topics, described and encoded once for each change and not once for each request.

A description is kept by topic, protocol version and whether operations were asked for; it counts as long as the topic
and the brokers are as they were. The answer for all topics is kept as a whole, too. Bounded: both keep a few variants,
because a cluster has few kinds of clients. Everything that may be wide is done in steps (`api.turns`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable
from typing import Final

from penstock.core.metadata.image import NO_LEADER, MetadataImage, PartitionState, TopicState
from penstock.model.errors import ErrorCode
from penstock.wire.codec import body_steps
from penstock.wire.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from penstock.wire.primitives import Encoded

VARIANTS_KEPT: Final = 8
PARTITIONS_PER_STEP: Final = 128

Versions = tuple[int, int]


class DescribedTopic(MetadataResponseTopic, Encoded):
    __slots__ = ("encoded", "leaders", "topic_version")
    leaders: frozenset[int]
    topic_version: int


class WholeCluster(MetadataResponse, Encoded):
    __slots__ = ("encoded",)


class MetadataAnswers:
    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._brokers_version = -1
        self._live: frozenset[int] = frozenset()
        self._topics: dict[tuple[int, int], dict[bytes, DescribedTopic]] = {}
        self._wholes: dict[Hashable, tuple[Versions, WholeCluster]] = {}
        self.described = 0
        self.encoded_wholes = 0

    @property
    def versions(self) -> Versions:
        return self._image.partitions_version, self._image.brokers_version

    # -- topics ---------------------------------------------------------------------------

    def describe(
        self, topics: Collection[TopicState], live: frozenset[int], operations: int, version: int
    ) -> Generator[None, None, list[DescribedTopic]]:
        """In steps: only what is not known yet takes time."""
        known = self._variant(version, operations, live)
        found: list[DescribedTopic] = []
        work = 0
        for topic in topics:
            described = known.get(topic.topic_id)
            if described is None or described.topic_version != topic.version:
                described = yield from self._describe(topic, live, operations, version)
                known[topic.topic_id] = described
                work += 1 + len(topic.partitions) % PARTITIONS_PER_STEP
                if work >= PARTITIONS_PER_STEP:
                    work = 0
                    yield
            found.append(described)
        if len(known) > 2 * len(self._image.topics) + 1000:
            known.clear()  # most of it is about topics that are gone
        return found

    def _variant(self, version: int, operations: int, live: frozenset[int]) -> dict[bytes, DescribedTopic]:
        if self._brokers_version != self._image.brokers_version or self._live != live:
            self._brokers_version, self._live = self._image.brokers_version, live
            self._topics.clear()
        key = version, operations
        known = self._topics.pop(key, None)
        if known is None:
            known = {}
            if len(self._topics) >= VARIANTS_KEPT:
                del self._topics[next(iter(self._topics))]
        self._topics[key] = known  # the most recent one is last
        return known

    def _describe(
        self, topic: TopicState, live: frozenset[int], operations: int, version: int
    ) -> Generator[None, None, DescribedTopic]:
        self.described += 1
        topic_version = topic.version
        partitions: list[MetadataResponsePartition] = []
        for at, partition in enumerate(list(topic.partitions), 1):
            partitions.append(
                _describe_for_v0(partition, live) if version == 0 else _describe_partition(partition, live)
            )
            if not at % PARTITIONS_PER_STEP:
                yield
        described = DescribedTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=partitions,
            topic_authorized_operations=operations,
        )
        described.leaders = frozenset(partition.leader_id for partition in partitions)
        described.topic_version = topic_version
        described.encoded = yield from body_steps(MetadataResponseTopic, described, version)
        return described

    # -- all of them ----------------------------------------------------------------------

    def whole(self, variant: Hashable) -> WholeCluster | None:
        """The answer for all topics, if it was put together since the last change."""
        kept = self._wholes.get(variant)
        return kept[1] if kept is not None and kept[0] == self.versions else None

    def keep_whole(
        self, variant: Hashable, versions: Versions, answer: WholeCluster, version: int
    ) -> Generator[None, None, WholeCluster]:
        answer.encoded = yield from body_steps(MetadataResponse, answer, version)
        self.encoded_wholes += 1
        self._wholes.pop(variant, None)
        if len(self._wholes) >= VARIANTS_KEPT:
            del self._wholes[next(iter(self._wholes))]
        self._wholes[variant] = versions, answer
        return answer


def _describe_partition(partition: PartitionState, live: Collection[int]) -> MetadataResponsePartition:
    has_leader = partition.leader in live
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=partition.index,
        leader_id=partition.leader if has_leader else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[replica for replica in partition.replicas if replica not in live],
    )


def _describe_for_v0(partition: PartitionState, live: Collection[int]) -> MetadataResponsePartition:
    described = _describe_partition(partition, live)
    described.replica_nodes = [replica for replica in partition.replicas if replica in live]
    described.isr_nodes = [replica for replica in partition.isr if replica in live]
    is_whole = len(described.replica_nodes) == len(partition.replicas)
    if described.error_code == ErrorCode.NONE and not is_whole:
        described.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
    return described
