"""Topic descriptions for Metadata, built and encoded once for each change, not for each request.

A description is cached by topic, protocol version and whether operations were requested. It is valid until the topic or
the brokers change. The answer for all topics is cached as a whole, too. Only bytes are cached, and only a few variants:
a cluster has few kinds of clients. Potentially wide work is done in steps (`api.turns`).

When a leader fails, all clients send Metadata at the same time. The answer for all topics is built once: concurrent
requests for the same variant share its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable
from typing import Final

from penstock.core.metadata.image import NO_LEADER, MetadataImage, PartitionState, TopicState
from penstock.model.errors import ErrorCode
from penstock.wire.codec import body_steps
from penstock.wire.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from penstock.wire.primitives import Encoded

VARIANTS_KEPT: Final = 4
WHOLES_KEPT: Final = 8
WHOLE_BYTES_KEPT: Final = 64 << 20
PARTITIONS_PER_STEP: Final = 128
KNOWN_PER_STEP: Final = 2048

Versions = tuple[int, int]


class DescribedTopic(Encoded):
    """Used as a MetadataResponseTopic when a response is encoded."""

    __slots__ = ("encoded", "leaders", "topic_version")

    def __init__(self, encoded: bytes, leaders: frozenset[int], topic_version: int) -> None:
        self.encoded = encoded
        self.leaders = leaders
        self.topic_version = topic_version


class SomeTopics(MetadataResponse):
    __slots__ = ("leaders",)
    leaders: frozenset[int]


class WholeCluster(MetadataResponse, Encoded):
    """Only its bytes: its fields are empty."""

    __slots__ = ("encoded", "leaders")
    leaders: frozenset[int]


class _Shared:
    """An answer under construction, shared by all requests for it."""

    __slots__ = ("answer", "error", "steps")

    def __init__(self, steps: Generator[None, None, WholeCluster]) -> None:
        self.steps = steps
        self.answer: WholeCluster | None = None
        self.error: Exception | None = None


class MetadataAnswers:
    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._brokers_version = -1
        self._live: frozenset[int] = frozenset()
        self._topics: dict[tuple[int, int], dict[bytes, DescribedTopic]] = {}
        self._wholes: dict[Hashable, tuple[Versions, WholeCluster]] = {}
        self._under_way: dict[Hashable, tuple[Versions, _Shared]] = {}
        self.described = 0
        self.encoded_wholes = 0

    @property
    def versions(self) -> Versions:
        return self._image.partitions_version, self._image.brokers_version

    # -- topics ---------------------------------------------------------------------------

    def describe(
        self, topics: Collection[TopicState], live: frozenset[int], operations: int, version: int
    ) -> Generator[None, None, list[DescribedTopic]]:
        """In steps: known descriptions take little time."""
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
            if not len(found) % KNOWN_PER_STEP:
                yield
        if len(known) > 2 * len(self._image.topics) + 1000:
            known.clear()  # most entries are of deleted topics
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
        self._topics[key] = known  # the most recently used one is last
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
        described = MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=partitions,
            topic_authorized_operations=operations,
        )
        leaders = frozenset(partition.leader_id for partition in partitions)
        encoded = yield from body_steps(MetadataResponseTopic, described, version)
        return DescribedTopic(encoded, leaders, topic_version)

    # -- all of them ----------------------------------------------------------------------

    def whole(self, variant: Hashable) -> WholeCluster | None:
        """The answer for all topics, if it was built since the last change."""
        kept = self._wholes.get(variant)
        return kept[1] if kept is not None and kept[0] == self.versions else None

    def share(
        self, variant: Hashable, make: Callable[[], Generator[None, None, SomeTopics]], version: int
    ) -> Generator[None, None, WholeCluster]:
        """The answer for all topics, from `make`, built once for all concurrent requests."""
        versions = self.versions
        kept = self._under_way.get(variant)
        if kept is None or kept[0] != versions:
            # An outdated one is finished by its own requests, but not shared with new ones.
            shared = _Shared(self._put_together(variant, versions, make(), version))
            self._under_way = {key: one for key, one in self._under_way.items() if one[0] == versions}
            self._under_way[variant] = versions, shared
        else:
            shared = kept[1]
        while shared.answer is None:
            if shared.error is not None:
                raise shared.error
            try:
                next(shared.steps)
            except StopIteration as done:
                shared.answer = done.value
                self._no_longer_under_way(variant, shared)
            except Exception as error:  # raised above, for each request that shares it
                shared.error = error
                self._no_longer_under_way(variant, shared)
            else:
                yield
        return shared.answer

    def _no_longer_under_way(self, variant: Hashable, shared: _Shared) -> None:
        kept = self._under_way.get(variant)
        if kept is not None and kept[1] is shared:
            del self._under_way[variant]

    def _put_together(
        self, variant: Hashable, versions: Versions, steps: Generator[None, None, SomeTopics], version: int
    ) -> Generator[None, None, WholeCluster]:
        response = yield from steps
        whole = WholeCluster()
        whole.leaders = response.leaders
        whole.encoded = yield from body_steps(MetadataResponse, response, version)
        self.encoded_wholes += 1
        if versions == self.versions:
            self._keep(variant, versions, whole)
        return whole

    def _keep(self, variant: Hashable, versions: Versions, whole: WholeCluster) -> None:
        wholes = {key: kept for key, kept in self._wholes.items() if kept[0] == versions and key != variant}
        left = WHOLE_BYTES_KEPT - len(whole.encoded) - sum(len(kept[1].encoded) for kept in wholes.values())
        while wholes and (left < 0 or len(wholes) >= WHOLES_KEPT):
            oldest = next(iter(wholes))
            left += len(wholes.pop(oldest)[1].encoded)
        wholes[variant] = versions, whole
        self._wholes = wholes


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
