"""A cluster in memory, for what the driver of a query asks: topics, offsets, committed offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire_client.requests.groups import OffsetAndMetadata
from penstock.wire_client.requests.leader_epochs import EpochEnd
from penstock.wire_client.requests.metadata import PartitionMetadata, TopicMetadata
from penstock.wire_client.requests.offsets import OffsetAndTimestamp


@dataclass
class Log:
    first: int = 0
    end: int = 0
    timestamps_ms: list[int] = field(default_factory=list)
    """Of the records from `first` on."""
    epoch: int = -1
    """That of the leader."""
    epoch_ends: dict[int, int] = field(default_factory=dict)
    """Where the records of earlier leaders end."""


class FakeCluster:
    def __init__(self) -> None:
        self.cluster_id = ""
        self.logs: dict[TopicPartition, Log] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.committed: dict[str, dict[TopicPartition, int]] = {}
        self.marks: dict[tuple[str, TopicPartition], str] = {}
        self.looks = 0
        self.asked_topics = 0
        self.asked_offsets = 0
        self.asked_epochs = 0
        self.commits: list[tuple[str, dict[TopicPartition, int]]] = []
        self.refusal: Exception | None = None
        self.before_commit: Callable[[], None] = lambda: None
        self.before_offsets: Callable[[int], None] = lambda timestamp: None

    def create(self, topic: str, *ends: int, topic_id: int = 1) -> None:
        self.topic_ids[topic] = bytes([topic_id]) * 16
        for partition, end in enumerate(ends):
            self.logs[TopicPartition(topic, partition)] = Log(end=end)

    def delete(self, topic: str) -> None:
        del self.topic_ids[topic]
        for tp in [tp for tp in self.logs if tp.topic == topic]:
            del self.logs[tp]

    def log(self, topic: str, partition: int) -> Log:
        return self.logs[TopicPartition(topic, partition)]

    # -- as BlockingCluster -------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        self.asked_topics += 1
        wanted = self.topic_ids if names is None else [name for name in names if name in self.topic_ids]
        return {name: self._info(name) for name in wanted}

    def _info(self, name: str) -> TopicMetadata:
        indexes = sorted(tp.partition for tp in self.logs if tp.topic == name)
        partitions = tuple(PartitionMetadata(index, 1, (1,), (1,)) for index in indexes)
        return TopicMetadata(name, self.topic_ids[name], name.startswith("__"), partitions)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        self.asked_offsets += 1
        for timestamp in set(wanted.values()):
            self.before_offsets(timestamp)
        return {tp: self._offset(tp, timestamp) for tp, timestamp in wanted.items()}

    def _offset(self, tp: TopicPartition, timestamp: int) -> OffsetAndTimestamp:
        log = self.logs.get(tp)
        if log is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{tp.topic}' has no partition {tp.partition}")
        if timestamp < 0:
            return OffsetAndTimestamp(log.first if timestamp == -2 else log.end, -1, log.epoch)
        for index, found in enumerate(log.timestamps_ms):
            if found >= timestamp:
                return OffsetAndTimestamp(log.first + index, found)
        return OffsetAndTimestamp(-1, -1)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        self.asked_epochs += 1
        return {tp: EpochEnd(epoch, self.logs[tp].epoch_ends.get(epoch, -1)) for tp, epoch in epochs.items()}

    def committed_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        known = self.committed.get(group, {})
        return {tp: known[tp] for tp in partitions if tp in known}

    def commits_of(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        self.looks += 1
        found = self.committed_offsets(group, partitions)
        return {tp: OffsetAndMetadata(offset, self.marks.get((group, tp), "")) for tp, offset in found.items()}

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        if self.refusal is not None:
            raise self.refusal
        self.before_commit()
        self.commits.append((group, dict(offsets)))
        self.committed.setdefault(group, {}).update(offsets)
        self.marks |= {(group, tp): metadata for tp in offsets}


class FakeTime:
    """Moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []
        self._plans: list[tuple[float, Callable[[], object]]] = []

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Something that happens this long after now."""
        self._plans.append((self.now_s + seconds, action))

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds
        due = [action for when, action in self._plans if when <= self.now_s]
        self._plans = [plan for plan in self._plans if plan[0] > self.now_s]
        for action in due:
            action()
