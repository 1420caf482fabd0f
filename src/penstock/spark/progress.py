"""The progress of a query as offsets of a consumer group, for lag tools.

The query never reads them back: its checkpoint says where it goes on. So a commit that fails is a warning. A group
whose offsets do not move is committed again now and then, since brokers forget what nobody has committed for long.

The group's name stands in the offsets of every progress report: `group_of`.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from penstock.client.fetching import TopicPartition
from penstock.model.errors import ApiError, ErrorCode, PenstockError
from penstock.spark.options import GroupOptions

logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_S = 5.0
RETRY_S = 30.0
REPEAT_S = 3600.0
TAKEN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)

Commit = Callable[[str, Mapping[TopicPartition, int]], None]


def new_group(options: GroupOptions) -> str:
    return options.group_id or f"{options.prefix}-{uuid.uuid4().hex[:8]}"


def group_of(query: Any) -> str | None:
    """The consumer group that shows the lag of a streaming query. None before its first batch, and when no source of
    it is a penstock source. Of several sources the first.
    """
    progress = query.lastProgress
    for source in progress["sources"] if progress is not None else ():
        found = parse_offset(source["endOffset"])
        if found is not None:
            return str(found["group"])
    return None


def parse_offset(reported: Any) -> dict[str, Any] | None:
    """An offset of a progress report, if it is one of a penstock source."""
    try:
        found = json.loads(reported) if isinstance(reported, str) else reported
    except ValueError:
        return None
    is_ours = isinstance(found, dict) and isinstance(found.get("group"), str) and "topics" in found
    return found if is_ours else None


class GroupProgress:
    def __init__(self, commit: Commit, clock: Callable[[], float] = time.monotonic) -> None:
        self._commit = commit
        self._clock = clock
        self._committed: tuple[str, dict[TopicPartition, int]] | None = None
        self._committed_at = 0.0
        self._not_before = 0.0

    def report(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        """Everything before `positions` is finished."""
        now = self._clock()
        wanted = (group, dict(positions))
        if wanted == self._committed and now - self._committed_at < REPEAT_S:
            return
        if not positions or now < self._not_before:
            return
        try:
            self._commit(group, positions)
        except PenstockError as error:
            self._not_before = self._clock() + RETRY_S
            logger.warning("the progress of the query is not shown by group '%s': %s", group, _reason(error))
            return
        self._committed, self._committed_at = wanted, now


def _reason(error: PenstockError) -> str:
    if isinstance(error, ApiError) and error.code in TAKEN:
        return "it has members of its own. Give the query another groupId"
    return str(error) or type(error).__name__
