"""ListOffsets: the first and last offset of a partition, and the offset at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.model.topic_partition import TopicPartition
from penstock.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

EARLIEST_MS = -2
LATEST_MS = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class OffsetAndTimestamp(NamedTuple):
    offset: int
    """-1 if all records are older."""
    timestamp_ms: int
    leader_epoch: int = -1
    """At LATEST_MS the epoch of the leader, and no record up to there has a later one. -1: the broker does not say."""


def list_offsets_request(
    wanted: Mapping[TopicPartition, int],
    timeout_ms: int,
    *,
    read_committed: bool,
    epochs: Mapping[TopicPartition, int] | None = None,
) -> ListOffsetsRequest:
    """`wanted`: a time in ms for each partition, EARLIEST_MS or LATEST_MS. All partitions must have one leader.

    `epochs`: the leader epochs by the metadata. A broker with an older or newer one refuses to answer.
    """
    epochs = epochs or {}
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for tp, timestamp_ms in wanted.items():
        asked = ListOffsetsPartition(
            partition_index=tp[1], current_leader_epoch=epochs.get(tp, -1), timestamp=timestamp_ms
        )
        topics.setdefault(tp[0], []).append(asked)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=READ_COMMITTED if read_committed else READ_UNCOMMITTED,
        topics=[ListOffsetsTopic(name=topic, partitions=asked) for topic, asked in topics.items()],
        timeout_ms=timeout_ms,
    )
