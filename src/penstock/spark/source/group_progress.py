"""The progress of a query as offsets of a consumer group, for lag tools.

The query never reads them back, because it resumes from its checkpoint. So a failed commit is only a warning. If the
offsets do not move, they are committed again from time to time, because brokers expire offsets without recent commits.

Invariant: offsets committed by another consumer are not overwritten. Ours have a mark in their metadata. If an offset
in the group lacks the mark, a warning is logged once, and the group is left alone.

The group's name is in the offsets of every progress report (`spark.progress`). In a pipeline it is not: its runner
commits the progress of whole flows, under their names.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from penstock.model.errors import ApiError, ErrorCode, PenstockError
from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.offsets import NO_GROUP
from penstock.spark.source.options import GroupOptions
from penstock.wire_client.requests.groups import OffsetAndMetadata

logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_S = 5.0
RETRY_S = 30.0
REPEAT_S = 3600.0
LOOK_S = 5.0
"""How long the result of a check of the group's committed offsets is valid."""
MARK = "penstock-spark"
GROUPS_BY_FLOW = "PENSTOCK_SPARK_GROUPS_BY_FLOW"
"""The variable that a pipeline sets for its Spark: queries get no groups of their own."""
TAKEN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)


class GroupCluster(Protocol):
    """The part of `wire_client.blocking.cluster.BlockingCluster` that is needed here."""

    def commits_of(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None: ...


class Progress(Protocol):
    """The place where a query reports finished offsets."""

    def report(self, group: str, positions: Mapping[TopicPartition, int], *, is_last: bool = False) -> None:
        """Everything before `positions` is finished. `is_last`: nothing follows in this run."""

    def flush(self) -> None:
        """The process ends: waits briefly until all that was reported is committed."""


def new_group(options: GroupOptions) -> str:
    if options.group_id is None and GROUPS_BY_FLOW in os.environ:
        return NO_GROUP
    return options.group_id or f"{options.prefix}-{uuid.uuid4().hex[:8]}"


class ForeignGroup(PenstockError):
    """A group with offsets that were not committed by a query."""

    def __init__(self, tp: TopicPartition, offset: int) -> None:
        super().__init__(
            f"it has offsets of another consumer ({offset} for {tp.topic}-{tp.partition}), which are left alone. "
            "Give the query another groupId, or delete the group"
        )


class GroupProgress:
    """Commits at once, which takes as long as the coordinator does."""

    def __init__(self, cluster: GroupCluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._committed: tuple[str, dict[TopicPartition, int]] | None = None
        self._committed_at = 0.0
        self._not_before = 0.0
        self._looked: tuple[str, frozenset[TopicPartition]] | None = None
        self._looked_at = 0.0
        self._warned: str | None = None

    def report(self, group: str, positions: Mapping[TopicPartition, int], *, is_last: bool = False) -> None:
        """Without a group nothing is committed. The last report is committed even if a commit has failed just now."""
        if group == NO_GROUP:
            return
        now = self._clock()
        wanted = (group, dict(positions))
        if wanted == self._committed and now - self._committed_at < REPEAT_S:
            return
        if not positions or (now < self._not_before and not is_last):
            return
        try:
            self._refuse_foreign(group, frozenset(positions), now)
            self._cluster.commit_offsets(group, positions, MARK)
        except PenstockError as error:
            self._not_before = self._clock() + RETRY_S
            self._looked = None
            self._warn(f"group '{group}' does not show the progress of the query: {_reason(error)}")
            return
        self._committed, self._committed_at = wanted, now

    def flush(self) -> None:
        """Nothing is left: every report is committed at once."""

    def _refuse_foreign(self, group: str, partitions: frozenset[TopicPartition], now: float) -> None:
        if self._looked == (group, partitions) and now - self._looked_at < LOOK_S:
            return
        for tp, found in sorted(self._cluster.commits_of(group, partitions).items()):
            if found.metadata != MARK:
                raise ForeignGroup(tp, found.offset)
        self._looked, self._looked_at = (group, partitions), now

    def _warn(self, sentence: str) -> None:
        """Logs the warning once, until the problem changes."""
        logger.log(logging.DEBUG if sentence == self._warned else logging.WARNING, "%s", sentence)
        self._warned = sentence


def _reason(error: PenstockError) -> str:
    if isinstance(error, ApiError) and error.code in TAKEN:
        return "it has members. Give the query another groupId"
    return str(error) or type(error).__name__
