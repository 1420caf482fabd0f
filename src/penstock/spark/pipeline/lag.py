"""The lag of a flow: the ends of its partitions, asked from the brokers, minus its positions.

Offsets are invalid in a topic that was deleted and created again, and in a log that became shorter. Then the lag is
unknown and the flow is not caught up, so that a run is made and reports the loss. The topic ids in checkpoints
distinguish topics. Offsets also name their cluster and the isolation level: a query that reads committed records has no
lag beyond the last stable offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.spark.options.cluster import ClusterOptions, cluster_options
from penstock.spark.source.offsets import SourceOffset
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.errors import WireClientError
from penstock.wire_client.requests.retriable import may_pass

LATEST = -1
TIMEOUT_S = 5.0
LOOK_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class PositionLag:
    topic: str
    partition: int
    position: int
    end: int | None
    """None if the partition does not exist (any more)."""
    is_recreated: bool = False
    """The topic is another one with the same name."""
    is_elsewhere: bool = False
    """It is in a cluster whose address is unknown."""

    @property
    def lag(self) -> int | None:
        return None if self.end is None or self.loss else self.end - self.position

    @property
    def loss(self) -> str:
        """The reason why the flow's positions are invalid in this log, or an empty string."""
        if self.is_recreated:
            return f"topic {self.topic} was deleted and created again since it was read"
        if self.end is not None and self.end < self.position:
            return f"partition {self.partition} of topic {self.topic} became shorter since it was read"
        return ""


def _connect(options: ClusterOptions, timeout_s: float) -> BlockingCluster:
    return BlockingCluster(options.bootstrap, options.client_id, options.security, timeout_s)


class LagMeter:
    """`client_options`: the options of a source, such as `kafka.bootstrap.servers`.

    The offsets of a query name its cluster. The first cluster is also that of offsets that name none.
    """

    def __init__(self, client_options: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> None:
        options = cluster_options(client_options)
        self._timeout_s = timeout_s
        self._clusters = {options: _connect(options, timeout_s)}
        self._cluster = self._clusters[options]
        self._looking = _connect(options, min(timeout_s, LOOK_TIMEOUT_S))

    def use(self, client_options: Mapping[str, str]) -> None:
        """Replaces the first cluster's options, for example after a change of the password."""
        options = cluster_options(client_options)
        if options not in self._clusters:
            self.close()
            self._clusters = {options: _connect(options, self._timeout_s)}
            self._looking = _connect(options, min(self._timeout_s, LOOK_TIMEOUT_S))
        self._cluster = self._clusters[options]

    def know(self, client_options: Mapping[str, str]) -> None:
        """Makes another cluster known."""
        options = cluster_options(client_options)
        if options not in self._clusters:
            self._clusters[options] = _connect(options, self._timeout_s)

    def is_answered(self) -> bool:
        """False if no broker answers now but one may later. Permanent errors count as an answer: a run reports them."""
        try:
            self._looking.topics()
        except WireClientError as error:
            return not may_pass(error)
        except ApiError:
            return True
        return True

    def missing_topics(self, names: Iterable[str]) -> list[str]:
        """Raises WireClientError if no broker answers, ApiError for an invalid name."""
        wanted = list(dict.fromkeys(names))
        found = self._cluster.topics(wanted)
        return [name for name in wanted if name not in found]

    def lags(self, offsets: Iterable[SourceOffset]) -> list[PositionLag]:
        """The lag of a query, by the offsets of its sources. If two read a partition, the one further behind counts.

        Raises WireClientError if no broker answers.
        """
        merged: dict[tuple[str, TopicPartition], PositionLag] = {}
        for offset in offsets:
            for lag in self._lags_of(offset):
                key = offset.cluster, TopicPartition(lag.topic, lag.partition)
                if key not in merged or lag.position < merged[key].position:
                    merged[key] = lag
        return [merged[key] for key in sorted(merged, key=lambda key: (key[1], key[0]))]

    def _lags_of(self, offset: SourceOffset) -> list[PositionLag]:
        positions = offset.positions
        cluster = self.cluster_of(offset)
        if cluster is None:
            return [PositionLag(*tp, at, None, is_elsewhere=True) for tp, at in positions.items()]
        there = cluster.topics({tp.topic for tp in positions})
        counts = {name: len(info.partitions) for name, info in there.items()}
        asked = {tp: LATEST for tp in positions if tp.partition < counts.get(tp.topic, 0)}
        try:
            ends = cluster.list_offsets(asked, offset.read_committed) if asked else {}
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            ends = {}  # deleted between the two requests
        now = SourceOffset("", {name: info.topic_id for name, info in there.items()}, {})
        return [
            PositionLag(
                tp.topic,
                tp.partition,
                position,
                ends[tp].offset if tp in ends else None,
                now.is_recreated_since(offset, tp.topic),
            )
            for tp, position in positions.items()
        ]

    def cluster_of(self, offset: SourceOffset) -> BlockingCluster | None:
        """None if its address is unknown. Raises WireClientError."""
        if not offset.cluster:
            return self._cluster
        for cluster in self._clusters.values():
            if not cluster.cluster_id:
                cluster.brokers()
            if cluster.cluster_id in (offset.cluster, ""):
                return cluster
        return None

    def is_caught_up(self, offsets: Iterable[SourceOffset]) -> bool:
        """Whether these offsets are at the ends of the logs. False if that is unknown, as if no broker answers."""
        try:
            return all(self._is_at_end(offset) for offset in offsets)
        except (WireClientError, ApiError):
            return False

    def _is_at_end(self, offset: SourceOffset) -> bool:
        cluster = self.cluster_of(offset)
        if cluster is None:
            return False
        there = cluster.topics({tp.topic for tp in offset.positions})
        every = {TopicPartition(name, part.partition) for name, info in there.items() for part in info.partitions}
        return every == offset.positions.keys() and all(one.lag == 0 for one in self._lags_of(offset))

    def total(self, offsets: Iterable[SourceOffset]) -> int | None:
        """The total lag. None if it is unknown: no topics, or no broker answers."""
        try:
            lags = self.lags(offsets)
        except (WireClientError, ApiError):
            return None
        known = [one.lag for one in lags if one.lag is not None]
        return sum(known) if known else None

    def close(self) -> None:
        for cluster in (*self._clusters.values(), self._looking):
            cluster.close()

    def __enter__(self) -> LagMeter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
