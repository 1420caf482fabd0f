"""The lag of a flow: the ends of its partitions, asked from the brokers, minus its positions.

Offsets are invalid in a topic that was deleted and created again, and in a log that became shorter. Then the lag is
unknown and the flow is not caught up, so that a run is made and reports the loss. The topic ids in checkpoints
distinguish topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.spark.options.cluster import cluster_options
from penstock.spark.source.offsets import SourceOffset
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.errors import (
    BrokerUnreachable,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    WireClientError,
)

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


class LagMeter:
    """`client_options`: the options of a source, such as `kafka.bootstrap.servers`."""

    def __init__(self, client_options: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> None:
        options = cluster_options(client_options)
        self._cluster = BlockingCluster(options.bootstrap, options.client_id, options.security, timeout_s)
        look_timeout_s = min(timeout_s, LOOK_TIMEOUT_S)
        self._looking = BlockingCluster(options.bootstrap, options.client_id, options.security, look_timeout_s)

    def is_answered(self) -> bool:
        """False if no broker answers now but one may later. Permanent errors count as an answer: a run reports them."""
        try:
            self._looking.topics()
        except (BrokerUnreachable, ConnectionLost, RequestTimedOut) as error:
            return isinstance(error, NotKafka)
        except (WireClientError, ApiError):
            return True
        return True

    def missing_topics(self, names: Iterable[str]) -> list[str]:
        """Raises WireClientError if no broker answers, ApiError for an invalid name."""
        wanted = list(dict.fromkeys(names))
        found = self._cluster.topics(wanted)
        return [name for name in wanted if name not in found]

    def lags(self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes]) -> list[PositionLag]:
        """`topic_ids`: the known ids of the topics that were read. Raises WireClientError if no broker answers."""
        there = self._cluster.topics({tp.topic for tp in positions})
        counts = {name: len(info.partitions) for name, info in there.items()}
        asked = {tp: LATEST for tp in positions if tp.partition < counts.get(tp.topic, 0)}
        try:
            ends = self._cluster.list_offsets(asked) if asked else {}
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            ends = {}  # deleted between the two requests
        was = SourceOffset("", topic_ids, {})
        now = SourceOffset("", {name: info.topic_id for name, info in there.items()}, {})
        return [
            PositionLag(
                tp.topic,
                tp.partition,
                position,
                ends[tp].offset if tp in ends else None,
                now.is_recreated_since(was, tp.topic),
            )
            for tp, position in sorted(positions.items())
        ]

    def is_caught_up(self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes]) -> bool:
        """Whether these positions are at the ends of the logs. False if no broker answers."""
        try:
            there = self._cluster.topics({tp.topic for tp in positions})
            every = {TopicPartition(name, part.partition) for name, info in there.items() for part in info.partitions}
            return every == positions.keys() and all(one.lag == 0 for one in self.lags(positions, topic_ids))
        except (WireClientError, ApiError):
            return False

    def total(self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes]) -> int | None:
        """The total lag. None if it is unknown: no topics, or no broker answers."""
        if not positions:
            return None
        try:
            lags = self.lags(positions, topic_ids)
        except (WireClientError, ApiError):
            return None
        known = [one.lag for one in lags if one.lag is not None]
        return sum(known) if known else None

    def close(self) -> None:
        self._cluster.close()
        self._looking.close()

    def __enter__(self) -> LagMeter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
