"""How far a flow is behind its topics: the ends of the partitions, asked by wire, less the offsets it has read to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType

from penstock.client.blocking_cluster import BlockingCluster
from penstock.client.errors import ClientError
from penstock.client.fetching import TopicPartition
from penstock.model.errors import ApiError, ErrorCode
from penstock.spark.options import cluster_options

LATEST = -1
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class PartitionLag:
    topic: str
    partition: int
    position: int
    end: int | None
    """None: the partition is not there (any more)."""

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.position)


class LagMeter:
    """`client_options`: those of a source, `kafka.bootstrap.servers` and its kin."""

    def __init__(self, client_options: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> None:
        options = cluster_options(client_options)
        self._cluster = BlockingCluster(options.bootstrap, options.client_id, options.security, timeout_s)

    def missing_topics(self, names: Iterable[str]) -> list[str]:
        """Raises ClientError when no broker answers, ApiError for a name that no topic can have."""
        wanted = list(dict.fromkeys(names))
        found = self._cluster.topics(wanted)
        return [name for name in wanted if name not in found]

    def lags(self, positions: Mapping[TopicPartition, int]) -> list[PartitionLag]:
        """Raises ClientError when no broker answers."""
        there = self._cluster.topics({tp.topic for tp in positions})
        counts = {name: len(info.partitions) for name, info in there.items()}
        asked = {tp: LATEST for tp in positions if tp.partition < counts.get(tp.topic, 0)}
        try:
            ends = self._cluster.list_offsets(asked) if asked else {}
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            ends = {}  # deleted between the two questions
        return [
            PartitionLag(tp.topic, tp.partition, position, ends[tp].offset if tp in ends else None)
            for tp, position in sorted(positions.items())
        ]

    def is_caught_up(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Nothing is to be read after these, in these topics. False also when nobody answers."""
        try:
            there = self._cluster.topics({tp.topic for tp in positions})
            every = {TopicPartition(name, part.partition) for name, info in there.items() for part in info.partitions}
            return every == positions.keys() and not any(one.lag for one in self.lags(positions))
        except (ClientError, ApiError):
            return False

    def total(self, positions: Mapping[TopicPartition, int]) -> int | None:
        """None when it is not known: no topics, or nobody answers."""
        if not positions:
            return None
        try:
            lags = self.lags(positions)
        except (ClientError, ApiError):
            return None
        known = [one.lag for one in lags if one.lag is not None]
        return sum(known) if known else None

    def close(self) -> None:
        self._cluster.close()

    def __enter__(self) -> LagMeter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
