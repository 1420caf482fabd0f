"""The present ends of the logs, compared with a query's offsets: the only place where the driver notices data loss.

A partition may be gone, its topic may have been created again, its log may have become shorter. Such an answer counts
only after all brokers that were asked have given it for `PATIENCE_S`: a broker that has just returned may know old
metadata, or an old high watermark. Until then the query waits, and its positions stay. So a position never goes back
because of a single wrong answer, which would read records twice with failOnDataLoss=false. Must not know: Spark,
limits of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.offsets import SourceOffset, topic_id_text
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planning import FoundTopics, OffsetPlanner, Offsets, name_of
from penstock.spark.source.positions import LATEST, AssignedPartitions, TopicPattern, Topics

PATIENCE_S = 10.0
"""How long the brokers must agree on a loss."""
LAST_PAUSE_S = 0.5


class Loss(NamedTuple):
    what: TopicPartition | str
    sentence: str
    is_certain: bool = False
    """The query's options are the reason, which no other broker would deny."""


class CurrentEnds:
    def __init__(
        self,
        options: SourceOptions,
        planner: OffsetPlanner,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._planner = planner
        self._clock = clock
        self._sleep = sleep

    def since(self, start: SourceOffset, group: str) -> SourceOffset:
        """The ends of all partitions. Data loss since `start` is an error or a warning, when it is beyond doubt."""
        ends, losses = self._compare(start, group, fresh=False)
        first_seen: dict[TopicPartition | str, float] = {}
        pause_s = self._options.offset_retry_ms / 1000
        attempt = 0
        while losses:
            now = self._clock()
            first_seen = {loss.what: first_seen.get(loss.what, now) for loss in losses}
            is_settled = all(loss.is_certain or now - first_seen[loss.what] >= PATIENCE_S for loss in losses)
            if is_settled and attempt >= self._options.offset_retries:
                break
            attempt += 1
            self._sleep(pause_s)
            pause_s = min(max(2 * pause_s, 0.01), LAST_PAUSE_S)
            ends, losses = self._compare(start, group, fresh=True)
        self._planner.report([loss.sentence for loss in losses])
        return ends

    def _compare(self, start: SourceOffset, group: str, *, fresh: bool) -> tuple[SourceOffset, list[Loss]]:
        found = self._planner.found(fresh=fresh)
        try:
            latest = self._planner.offsets_at(found.partitions, LATEST)
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            found = self._planner.found(fresh=True)
            latest = self._planner.offsets_at(found.partitions, LATEST)
        ends = SourceOffset(group, _ids_of(found), latest)
        return ends, [*self._gone(start, latest), *_recreated(start, ends), *_shorter(start, ends)]

    def _gone(self, start: SourceOffset, latest: Offsets) -> Iterator[Loss]:
        for tp in sorted(start.positions):
            if tp not in latest:
                yield Loss(tp, f"{name_of(tp)} is gone or no longer subscribed to", not self._is_subscribed(tp))

    def _is_subscribed(self, tp: TopicPartition) -> bool:
        subscription = self._options.subscription
        if isinstance(subscription, TopicPattern):
            return subscription.matches(tp.topic)
        if isinstance(subscription, Topics):
            return tp.topic in subscription.names
        assert isinstance(subscription, AssignedPartitions)
        return tp in subscription.partitions


def _ids_of(found: FoundTopics) -> dict[str, bytes]:
    return {tp.topic: found.topic_ids[tp.topic] for tp in found.partitions}


def _recreated(start: SourceOffset, ends: SourceOffset) -> Iterator[Loss]:
    known = {tp.topic for tp in start.positions} & {tp.topic for tp in ends.positions}
    for topic in sorted(known):
        if ends.is_recreated_since(start, topic):
            yield Loss(
                topic,
                f"topic '{topic}' was deleted and created again: the query reads the topic with id "
                f"{topic_id_text(start.topic_ids[topic])}, and the cluster now has one with id "
                f"{topic_id_text(ends.topic_ids[topic])}, so the old offsets are invalid",
            )


def _shorter(start: SourceOffset, ends: SourceOffset) -> Iterator[Loss]:
    for tp, first in sorted(start.positions.items()):
        end = ends.positions.get(tp, first)
        if end < first and not ends.is_recreated_since(start, tp.topic):
            yield Loss(tp, f"{name_of(tp)} became shorter: the query is at offset {first}, and the log ends at {end}")
