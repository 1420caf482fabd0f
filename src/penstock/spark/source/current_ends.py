"""The present ends of the logs, compared with a query's offsets: the only place where the driver notices data loss.

A partition may be gone, its topic may have been created again, its log may have been truncated. Such an answer counts
only after all brokers that were asked have given it for `PATIENCE_S`: a broker that has just returned may know old
metadata, or an old high watermark. Until then the query waits, and its positions stay. So a position never goes back
because of a single wrong answer, which would read records twice with failOnDataLoss=false.

Leader epochs show truncation even if the log has grown again. When the epoch of a partition's leader is not that in the
query's offset, the leader is asked where the records of the old epoch end. If that is before the query's position, the
log was truncated there. The ends then have this offset in `begin`, because other records are there now. Without epochs
only a log that is still shorter is noticed. Must not know: Spark, limits of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.offsets import SourceOffset, topic_id_text
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planning import FoundTopics, OffsetPlanner, Offsets, name_of
from penstock.spark.source.positions import AssignedPartitions, TopicNames, TopicPattern

PATIENCE_S = 10.0
"""How long the brokers must agree on a loss."""
LAST_PAUSE_S = 0.5


class _History(NamedTuple):
    """A position and the epoch that the query knows, in the log of a later leader."""

    tp: TopicPartition
    topic_id: bytes
    position: int
    epoch: int
    leader_epoch: int


class Loss(NamedTuple):
    what: TopicPartition | str
    sentence: str
    is_certain: bool = False
    """The query's options are the reason, which no other broker would deny."""


class _Truncation(NamedTuple):
    history: _History
    offset: int

    @property
    def tp(self) -> TopicPartition:
        return self.history.tp

    @property
    def sentence(self) -> str:
        return (
            f"{name_of(self.tp)} was truncated to offset {self.offset}, and the query is at offset "
            f"{self.history.position}: the leader of epoch {self.history.leader_epoch} does not have the last records "
            f"of epoch {self.history.epoch}"
        )


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
        self._sound: set[_History] = set()
        """Positions that are valid in the log of a later leader."""
        self._accepted: tuple[SourceOffset, set[TopicPartition | str]] | None = None
        """The last start with a loss, and what has been reported of it."""

    def since(self, start: SourceOffset, group: str) -> SourceOffset:
        """The ends of all partitions. Data loss since `start` is an error or a warning, when it is beyond doubt.

        With `begin` where a log was truncated.
        """
        accepted = self._accepted[1] if self._accepted is not None and self._accepted[0] == start else set()
        ends, losses = self._compare(start, group, accepted, fresh=False)
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
            ends, losses = self._compare(start, group, accepted, fresh=True)
        self._planner.report([loss.sentence for loss in losses])
        if losses:
            self._accepted = start, accepted | {loss.what for loss in losses}
        return ends

    def _compare(
        self, start: SourceOffset, group: str, accepted: set[TopicPartition | str], *, fresh: bool
    ) -> tuple[SourceOffset, list[Loss]]:
        found = self._planner.found(fresh=fresh)
        try:
            latest = self._planner.ends(found.partitions)
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            found = self._planner.found(fresh=True)
            latest = self._planner.ends(found.partitions)
        positions = {tp: end.offset for tp, end in latest.items()}
        epochs = {tp: end.leader_epoch for tp, end in latest.items() if end.leader_epoch >= 0}
        ends = SourceOffset(
            group,
            _ids_of(found),
            positions,
            epochs=epochs,
            cluster=found.cluster_id,
            read_committed=self._options.read_committed,
        )
        truncated = self._truncated(start, ends)
        begin = {loss.tp: loss.offset for loss in truncated}
        losses = [*self._gone(start, positions), *_recreated(start, ends), *_set_back(start, ends)]
        losses += [Loss(loss.tp, loss.sentence) for loss in truncated]
        losses += [loss for loss in _shorter(start, ends) if loss.what not in begin]
        return replace(ends, begin=begin or None), [loss for loss in losses if loss.what not in accepted]

    def _truncated(self, start: SourceOffset, ends: SourceOffset) -> list[_Truncation]:
        histories = {
            _History(tp, ends.topic_ids[tp.topic], start.positions[tp], epoch, ends.epochs.get(tp, -1))
            for tp, epoch in start.epochs.items()
            if tp in start.positions and tp in ends.positions and not ends.is_recreated_since(start, tp.topic)
        }
        histories = {one for one in histories if one.epoch < one.leader_epoch}
        self._sound &= histories
        doubtful = sorted(histories - self._sound)
        end_offsets = self._planner.epoch_ends({one.tp: one.epoch for one in doubtful})
        found = [_Truncation(one, end_offsets.get(one.tp, one.position)) for one in doubtful]
        self._sound |= {loss.history for loss in found if loss.offset >= loss.history.position}
        return [loss for loss in found if loss.offset < loss.history.position]

    def _gone(self, start: SourceOffset, latest: Offsets) -> Iterator[Loss]:
        for tp in sorted(start.positions):
            if tp not in latest:
                yield Loss(tp, f"{name_of(tp)} is gone or no longer subscribed to", not self._is_subscribed(tp))

    def _is_subscribed(self, tp: TopicPartition) -> bool:
        subscription = self._options.subscription
        if isinstance(subscription, TopicPattern):
            return subscription.matches(tp.topic)
        if isinstance(subscription, TopicNames):
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


def _set_back(start: SourceOffset, ends: SourceOffset) -> Iterator[Loss]:
    for tp, epoch in sorted(start.epochs.items()):
        if ends.epochs.get(tp, epoch) < epoch and not ends.is_recreated_since(start, tp.topic):
            yield Loss(
                tp,
                f"the leader epoch of {name_of(tp)} is {ends.epochs[tp]}, and the query has read records of epoch "
                f"{epoch}: the cluster was set back to an earlier state",
            )


def _shorter(start: SourceOffset, ends: SourceOffset) -> Iterator[Loss]:
    for tp, first in sorted(start.positions.items()):
        end = ends.positions.get(tp, first)
        if end < first and not ends.is_recreated_since(start, tp.topic):
            yield Loss(tp, f"{name_of(tp)} became shorter: the query is at offset {first}, and the log ends at {end}")
