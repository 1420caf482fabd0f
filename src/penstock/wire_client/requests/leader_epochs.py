"""Leader epochs: the newest that are known, and OffsetForLeaderEpoch, by which a reader notices truncation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.model.topic_partition import TopicPartition
from penstock.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.wire_client.requests.metadata import TopicMetadata

NO_EPOCH = -1
CONSUMER = -1


class EpochEnd(NamedTuple):
    leader_epoch: int
    """The largest epoch in the log that is not after the requested one; -1 if the leader does not know."""
    end_offset: int
    """The offset after its last record; -1 if the leader does not know."""


def epoch_ends_request(
    asked: Mapping[TopicPartition, int], current: Mapping[TopicPartition, int]
) -> OffsetForLeaderEpochRequest:
    """`asked`: the epoch of each partition; `current`: the leader epochs by the metadata. All have one leader."""
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for tp, epoch in asked.items():
        one = OffsetForLeaderPartition(
            partition=tp.partition, current_leader_epoch=current.get(tp, NO_EPOCH), leader_epoch=epoch
        )
        topics.setdefault(tp.topic, []).append(one)
    return OffsetForLeaderEpochRequest(
        replica_id=CONSUMER,
        topics=[OffsetForLeaderTopic(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
    )


def read_epoch_ends(answer: OffsetForLeaderEpochResponse) -> Iterable[tuple[TopicPartition, int, EpochEnd]]:
    """Each partition with its error code."""
    for topic in answer.topics:
        for entry in topic.partitions:
            tp = TopicPartition(topic.topic, entry.partition)
            yield tp, entry.error_code, EpochEnd(entry.leader_epoch, entry.end_offset)


class KnownEpochs:
    """The newest leader epoch of each partition that any broker has told. Epochs of a deleted topic do not count."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[bytes, dict[int, int]]] = {}

    def learn(self, info: TopicMetadata) -> None:
        topic_id, epochs = self._topics.get(info.name, (info.topic_id, {}))
        if topic_id != info.topic_id:
            epochs = {}
        for one in info.partitions:
            epochs[one.partition] = max(one.leader_epoch, epochs.get(one.partition, NO_EPOCH))
        self._topics[info.name] = info.topic_id, epochs

    def is_behind(self, tp: TopicPartition, leader_epoch: int) -> bool:
        _, epochs = self._topics.get(tp.topic, (b"", {}))
        return NO_EPOCH < leader_epoch < epochs.get(tp.partition, NO_EPOCH)
