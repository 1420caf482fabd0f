"""The splits of a batch, and its tasks: a pure function of the offset range, two options and a number of tasks.

A batch that is repeated after a crash must be divided exactly as before, because sinks recognise written rows by task
number. So nothing here depends on leaders, the present cores or the clock: the number of tasks is in the batch's end.
The rules for splits are those of Spark's Kafka source: first `maxRecordsPerPartition`, then `minPartitions` for the
large ranges. Then small splits are put together, because a task costs as much time as thousands of records.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.offsets import NO_TOPIC_ID, SourceOffset
from penstock.wire_client.requests.leader_epochs import NO_EPOCH

TASK_RECORDS = 10_000
"""Reading them takes about as long as starting a task."""


@dataclass(frozen=True)
class Split(InputPartition):
    """The records of a partition with start <= offset < end."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes = NO_TOPIC_ID
    leader_epoch: int = NO_EPOCH
    """No record of the split has a later epoch, unless the log was truncated since the batch was planned."""

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def known_topic_id(self) -> bytes | None:
        return None if self.topic_id == NO_TOPIC_ID else self.topic_id

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end})"


@dataclass(frozen=True)
class SplitGroup(InputPartition):
    """Splits of several partitions for one task."""

    splits: tuple[Split, ...]

    @property
    def size(self) -> int:
        return sum(split.size for split in self.splits)

    def __repr__(self) -> str:
        return " ".join(map(repr, self.splits))


Task = Split | SplitGroup


def ranges_between(start: SourceOffset, end: SourceOffset) -> list[Split]:
    """A split for each partition that moved.

    It begins where `end.begin` says, else at the position in `start`. A partition in neither is read from 0: only the
    batches of earlier versions and of Spark's Kafka source have those. The first batch of a query is read from its
    planned start, wherever the query would begin now.
    """
    if start == end:
        return []
    begin = end.begin or {}
    is_planned = start.is_initial and end.begin is not None
    found = []
    for tp in sorted(end.positions):
        before = 0 if is_planned or end.is_recreated_since(start, tp.topic) else start.positions.get(tp, 0)
        first = begin.get(tp, before)
        if first < end.positions[tp]:
            topic_id = end.topic_ids.get(tp.topic, NO_TOPIC_ID)
            epoch = end.epochs.get(tp, NO_EPOCH)
            found.append(Split(tp.topic, tp.partition, first, end.positions[tp], topic_id, epoch))
    return found


def cut(ranges: Sequence[Split], min_partitions: int | None, max_records: int | None) -> list[Split]:
    ranges = [split for split in ranges if split.size > 0]
    if max_records is not None:
        ranges = [part for split in ranges for part in _divide(split, math.ceil(split.size / max_records))]
    if min_partitions is None or min_partitions <= len(ranges):
        return list(ranges)
    total = sum(split.size for split in ranges)
    # Splits that stay whole do not count for the proportions of the others.
    whole = {split.topic_partition for split in ranges if _parts(split.size, total, min_partitions) == 1}
    unsplit = [split for split in ranges if _parts(split.size, total, min_partitions) == 1]
    large = total - sum(split.size for split in unsplit)
    wanted = max(min_partitions - len(unsplit), 1)
    found: list[Split] = []
    for split in ranges:
        parts = 1 if split.topic_partition in whole else _parts(split.size, large, wanted)
        found.extend(_divide(split, parts))
    return found


def together(
    splits: Sequence[Split], tasks: int | None, min_partitions: int | None = None, max_records: int | None = None
) -> list[Task]:
    """Puts splits together for `tasks` tasks, or more if they are large. Tasks have about the same size.

    `max_records` holds for a task, too. If `min_partitions` asks for more tasks than there are partitions, or `tasks`
    is None, each split is a task.
    """
    partitions = {split.topic_partition for split in splits}
    if tasks is None or (min_partitions is not None and min_partitions > len(partitions)):
        return list(splits)
    total = sum(split.size for split in splits)
    wanted = max(tasks, min_partitions or 1, math.ceil(total / TASK_RECORDS))
    if wanted >= len(splits):
        return list(splits)
    groups: list[list[Split]] = [[] for _ in range(wanted)]
    sizes = [(0, index) for index in range(wanted)]
    for split in sorted(splits, key=lambda split: -split.size):
        size, index = sizes[0]
        if max_records is not None and size > 0 and size + split.size > max_records:
            index = len(groups)
            groups.append([split])
            heapq.heappush(sizes, (split.size, index))
            continue
        groups[index].append(split)
        heapq.heapreplace(sizes, (size + split.size, index))
    return [group[0] if len(group) == 1 else SplitGroup(tuple(sorted(group, key=_place))) for group in groups]


def _place(split: Split) -> tuple[str, int, int]:
    return split.topic, split.partition, split.start


def _parts(size: int, total: int, wanted: int) -> int:
    return max(math.floor(size / total * wanted + 0.5), 1)


def _divide(split: Split, parts: int) -> Iterator[Split]:
    """Divides a split. The last part has the remainder."""
    start = split.start
    for part in range(parts):
        end = start + (split.end - start) // (parts - part)
        if end > start:
            yield replace(split, start=start, end=end)
        start = end
