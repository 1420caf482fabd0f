"""The driver's requests to the cluster: partitions, and the starts and ends of logs.

Answers are current. `OffsetPlanner` caches only the topics, for `metadata_max_age_ms`. Must not know: Spark,
micro-batches, records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.spark.options.known import InvalidOption
from penstock.spark.source.offsets import NO_TOPIC_ID, DataLoss
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.positions import (
    EARLIEST,
    LATEST,
    AssignedPartitions,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    CommittedOffsets,
    Earliest,
    Latest,
    Position,
    TopicNames,
    TopicPattern,
)
from penstock.wire_client.requests.leader_epochs import EpochEnd
from penstock.wire_client.requests.metadata import TopicMetadata
from penstock.wire_client.requests.offsets import OffsetAndTimestamp

logger = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]


class OffsetCluster(Protocol):
    """The part of `wire_client.blocking.cluster.BlockingCluster` that planning needs."""

    @property
    def cluster_id(self) -> str: ...

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicMetadata]: ...

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]: ...

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]: ...

    def committed_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...


@dataclass(frozen=True, slots=True)
class FoundTopics:
    topic_ids: Mapping[str, bytes]
    partitions: tuple[TopicPartition, ...]
    missing: tuple[TopicPartition | str, ...]
    """Names of topics and partitions that do not exist."""
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A position as offsets."""

    topic_ids: Mapping[str, bytes]
    offsets: Offsets
    at_latest: frozenset[TopicPartition]
    """Partitions whose position is the end of the log: a second lookup would give another offset."""


class OffsetPlanner:
    def __init__(
        self,
        options: SourceOptions,
        cluster: OffsetCluster,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._clock = clock
        self._sleep = sleep
        self._found: FoundTopics | None = None
        self._found_at = 0.0

    # -- partitions ---------------------------------------------------------------------

    def found(self, *, fresh: bool = False) -> FoundTopics:
        age_ms = (self._clock() - self._found_at) * 1000
        if self._found is None or fresh or age_ms >= self._options.metadata_max_age_ms:
            self._found = replace(self._find(), cluster_id=self._cluster.cluster_id)
            self._found_at = self._clock()
        return self._found

    def existing(self) -> FoundTopics:
        """All named topics and partitions. Raises InvalidOption if any is missing."""
        found = self._settled(lambda found: not found.missing)
        if found.missing:
            what = ", ".join(name_of(missing) for missing in found.missing)
            raise InvalidOption(f"there is no {what}: create it first, or correct the query's options")
        return found

    def _settled(self, is_good: Callable[[FoundTopics], bool]) -> FoundTopics:
        """Asks again before it accepts a bad answer: a broker's metadata may be older than another's."""
        found = self.found(fresh=True)
        for _ in range(self._options.offset_retries):
            if is_good(found):
                break
            self._sleep(self._options.offset_retry_ms / 1000)
            found = self.found(fresh=True)
        return found

    def _find(self) -> FoundTopics:
        subscription = self._options.subscription
        if isinstance(subscription, TopicPattern):
            every = self._cluster.topics(None)
            topics = {name: info for name, info in every.items() if subscription.matches(name) and not info.is_internal}
            return FoundTopics(_ids(topics), _partitions(topics), ())
        if isinstance(subscription, TopicNames):
            topics = self._cluster.topics(subscription.names)
            missing = tuple(name for name in subscription.names if name not in topics)
            return FoundTopics(_ids(topics), _partitions(topics), missing)
        assert isinstance(subscription, AssignedPartitions)
        topics = self._cluster.topics({tp.topic for tp in subscription.partitions})
        there = set(_partitions(topics))
        return FoundTopics(
            _ids(topics),
            tuple(tp for tp in subscription.partitions if tp in there),
            tuple(tp for tp in subscription.partitions if tp not in there),
        )

    # -- offsets ------------------------------------------------------------------------

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The ends of the logs, with their leader epochs."""
        wanted = dict.fromkeys(partitions, LATEST)
        return self._cluster.list_offsets(wanted, self._options.read_committed) if wanted else {}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Offsets:
        """The ends of the records up to these leader epochs in the present logs. Unknown ends are left out."""
        try:
            found = self._cluster.epoch_ends(epochs) if epochs else {}
        except ApiError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            return {}
        return {tp: end.end_offset for tp, end in found.items() if end.end_offset >= 0}

    def offsets_at(self, partitions: Iterable[TopicPartition], timestamp: int) -> Offsets:
        """The offsets at EARLIEST, LATEST or a time in milliseconds; -1 if all records are older."""
        wanted = dict.fromkeys(partitions, timestamp)
        if not wanted:
            return {}
        answer = self._cluster.list_offsets(wanted, self._options.read_committed)
        return {tp: answer[tp].offset for tp in wanted}

    def resolve(self, position: Position, *, is_start: bool) -> Resolved:
        found = self.existing()
        offsets, at_latest = self._resolve(position, found.partitions, is_start)
        return Resolved(found.topic_ids, offsets, at_latest)

    def _resolve(
        self, position: Position, partitions: tuple[TopicPartition, ...], is_start: bool
    ) -> tuple[Offsets, frozenset[TopicPartition]]:
        if isinstance(position, Latest):
            return self.offsets_at(partitions, LATEST), frozenset(partitions)
        if isinstance(position, Earliest):
            return self.offsets_at(partitions, EARLIEST), frozenset()
        if isinstance(position, CommittedOffsets):
            return self._committed(partitions), frozenset()
        if isinstance(position, AtOffsets):
            _check_all_named(position.option, position.offsets, partitions)
            chosen = dict(position.offsets)
        elif isinstance(position, AtTimestamps):
            _check_all_named(position.option, position.timestamps_ms, partitions)
            chosen = self._at_timestamps(position.option, position.timestamps_ms, is_start)
        else:
            assert isinstance(position, AtTimestamp)
            chosen = self._at_timestamps(position.option, dict.fromkeys(partitions, position.timestamp_ms), is_start)
        at_latest = frozenset(tp for tp, offset in chosen.items() if offset == LATEST)
        chosen |= self.offsets_at(at_latest, LATEST)
        chosen |= self.offsets_at([tp for tp, offset in chosen.items() if offset == EARLIEST], EARLIEST)
        return chosen, at_latest

    def _committed(self, partitions: tuple[TopicPartition, ...]) -> Offsets:
        group = self._options.group.start_from
        assert group is not None, "checked with the options"
        committed = self._cluster.committed_offsets(group, partitions)
        return self.offsets_at([tp for tp in partitions if tp not in committed], EARLIEST) | committed

    def _at_timestamps(self, option: str, wanted_ms: Mapping[TopicPartition, int], is_start: bool) -> Offsets:
        if not wanted_ms:
            return {}
        answer = self._cluster.list_offsets(wanted_ms, self._options.read_committed)
        if is_start and not self._options.latest_when_no_match:
            for tp, timestamp_ms in wanted_ms.items():
                if answer[tp].offset < 0:
                    raise InvalidOption(
                        f"option '{option}': {name_of(tp)} has no record with a timestamp of {timestamp_ms} or later. "
                        "Set startingOffsetsByTimestampStrategy=latest to begin at its end"
                    )
        return {tp: answer[tp].offset if answer[tp].offset >= 0 else LATEST for tp in wanted_ms}

    def report(self, losses: list[str]) -> None:
        """Raises DataLoss, or logs a warning with failOnDataLoss=false."""
        if losses and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{'; '.join(losses)}. To continue without the lost records set the option failOnDataLoss=false; "
                "to start again use a new checkpointLocation"
            )
        for loss in losses:
            logger.warning("%s. Continuing, because failOnDataLoss is false", loss)


def retention_loss(tp: TopicPartition, wanted: int, available: int) -> str:
    return f"{name_of(tp)} no longer has offset {wanted}: the first available offset is {available}"


def name_of(what: TopicPartition | str) -> str:
    return f"topic '{what}'" if isinstance(what, str) else f"partition {what.partition} of '{what.topic}'"


def _ids(topics: Mapping[str, TopicMetadata]) -> dict[str, bytes]:
    return {name: info.topic_id or NO_TOPIC_ID for name, info in topics.items()}


def _partitions(topics: Mapping[str, TopicMetadata]) -> tuple[TopicPartition, ...]:
    found = (TopicPartition(name, entry.partition) for name, info in topics.items() for entry in info.partitions)
    return tuple(sorted(found))


def _check_all_named(option: str, named: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition]) -> None:
    wanted = set(partitions)
    if named.keys() == wanted:
        return
    read = {tp.topic for tp in wanted}
    others = sorted({tp.topic for tp in named} - read)
    if others:
        raise InvalidOption(
            f"option '{option}' names {', '.join(map(name_of, others))}, which is not subscribed to: the query reads "
            f"{', '.join(map(name_of, sorted(read))) or 'no topic'}"
        )
    without = ", ".join(name_of(tp) for tp in sorted(wanted - named.keys()))
    surplus = ", ".join(name_of(tp) for tp in sorted(named.keys() - wanted))
    problem = f"leaves out {without}" if without else f"names {surplus}, which the query does not read"
    raise InvalidOption(
        f"option '{option}' {problem}: name every partition that is read, with -1 for latest and -2 for earliest "
        "where it does not matter"
    )
