"""The start of the next batch in partitions where that is not the query's position.

- A partition that the query has not read before begins at the start of its log, as of the time it was first seen.
- If retention has passed the query's position, the batch begins at the new start of the log. That is a loss.
- If the log was truncated, the batch begins there: `current_ends` has found out where, and reported the loss.

The start of the log is looked up for new partitions at once, and for partitions with a backlog at most once a second:
retention is rarely faster than a query, and a task that meets a deleted record reports it, too. Must not know:
limits of a batch, Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.offsets import NO_TOPIC_ID, SourceOffset
from penstock.spark.source.planning import Offsets, retention_loss
from penstock.spark.source.positions import EARLIEST

MAX_AGE_S = 1.0


class LogStarts(Protocol):
    """The part of `planning.OffsetPlanner` that is needed here."""

    def offsets_at(self, partitions: list[TopicPartition], timestamp: int) -> Offsets: ...

    def report(self, losses: list[str]) -> None: ...


class BatchStarts:
    def __init__(self, planner: LogStarts, clock: Callable[[], float] = time.monotonic) -> None:
        self._planner = planner
        self._clock = clock
        self._known: dict[tuple[bytes, TopicPartition], int] = {}
        self._looked_at: float | None = None

    def after(self, start: SourceOffset, ends: SourceOffset) -> Offsets:
        """The starts that are not those in `start`. Raises DataLoss if retention has passed one, or logs a warning."""
        kept = {tp: at for tp, at in start.positions.items() if not ends.is_recreated_since(start, tp.topic)}
        present = kept | dict(ends.begin or {})
        keys = {tp: (ends.topic_ids.get(tp.topic, NO_TOPIC_ID), tp) for tp in ends.positions}
        # What is in the checkpoint need not be remembered.
        self._known = {
            key: at for key, at in self._known.items() if keys.get(key[1]) == key and at > present.get(key[1], -1)
        }
        begins = {tp: max(present.get(tp, -1), self._known.get(key, -1)) for tp, key in keys.items()}
        for tp, first in self._log_starts(begins, ends.positions).items():
            if begins[tp] >= 0 and first > begins[tp]:
                self._planner.report([retention_loss(tp, begins[tp], first)])
            if first > begins[tp]:
                begins[tp] = self._known[keys[tp]] = first
        return {tp: at for tp, at in begins.items() if at != kept.get(tp)}

    def _log_starts(self, begins: Offsets, ends: Mapping[TopicPartition, int]) -> Offsets:
        now = self._clock()
        is_due = self._looked_at is None or now - self._looked_at >= MAX_AGE_S
        asked = [tp for tp, at in begins.items() if at < 0 or (is_due and at < ends[tp])]
        try:
            found = self._planner.offsets_at(asked, EARLIEST)
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return {tp: 0 for tp in asked if begins[tp] < 0}  # deleted just now: the next look at the topics shows it
        if is_due:
            self._looked_at = now
        return found
