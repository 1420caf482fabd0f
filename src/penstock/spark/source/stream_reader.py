"""The streaming source: the end and the splits of each micro-batch.

`StreamDriver` is the state of a running query. It lives in a process beside Spark's driver while the query runs, and
Spark asks it for offsets again and again. `PenstockStreamReader` is Spark's interface to it; the workers get a
copy of the reader without the driver.

It relies on these guarantees of Spark (MicroBatchExecution):
- `latestOffset(start)` is called only when every batch up to `start` is written and in the commit log. After a crash an
  unfinished batch is repeated first, from the offset log alone. So `start` may be committed to the group.
- With Trigger.AvailableNow it is called once more after the last batch. With Trigger.Once it is not: that batch is
  committed to the group by `query_watch`, in sessions that have it, or at the next run.
- `stop()` is called only if Spark is gone. Otherwise the process gets a signal (`termination`).
- The checkpoint has only the ends of batches. When batch 0 is repeated, `initialOffset` is called again, and retention
  or new records may have moved the earliest or latest offset. So the end of batch 0 also has its start, and so has the
  end of each batch that does not begin where the last one ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.model.topic_partition import TopicPartition
from penstock.spark.options.cores import known_cores
from penstock.spark.plain_errors import plain_errors
from penstock.spark.source.admission import TriggerGate, backlog, limit_bytes, limit_offsets
from penstock.spark.source.background_progress import BackgroundProgress
from penstock.spark.source.batch_starts import BatchStarts
from penstock.spark.source.columns import arrow_schema, check_schema
from penstock.spark.source.current_ends import CurrentEnds
from penstock.spark.source.group_progress import COMMIT_TIMEOUT_S, GroupProgress, Progress, new_group
from penstock.spark.source.latest_ends import LatestEnds
from penstock.spark.source.offsets import NO_GROUP, SourceOffset
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planning import OffsetPlanner
from penstock.spark.source.record_sizes import LOOK_TIMEOUT_S, SAMPLE_BYTES, RecordSizes
from penstock.spark.source.splits import Split, SplitGroup, cut, ranges_between, together
from penstock.spark.source.termination import before_termination, is_sparks
from penstock.spark.source.transport import hint_at_sockets


class StreamDriver:
    def __init__(
        self,
        options: SourceOptions,
        planner: OffsetPlanner,
        progress: Progress,
        sizes: RecordSizes,
        latest: LatestEnds,
        clock: Callable[[], float] = time.monotonic,
        tasks: int | None = None,
    ) -> None:
        """`tasks`: how many tasks Spark runs at the same time."""
        self._options = options
        self._tasks = tasks
        self._planner = planner
        self._progress = progress
        self._sizes = sizes
        self._clock = clock
        limits = options.limits
        self._gate = TriggerGate(limits.min_offsets, limits.max_delay_ms) if limits.min_offsets is not None else None
        self._initial: SourceOffset | None = None
        self._taken_over: str | None = None
        self._latest = latest
        self._starts = BatchStarts(planner, clock)
        self._is_available_now = False

    def initial(self) -> SourceOffset:
        if self._initial is None:
            resolved = self._planner.resolve(self._options.starting, is_start=True)
            group = new_group(self._options.group)
            self._initial = SourceOffset(group, resolved.topic_ids, resolved.offsets, is_initial=True)
        return self._initial

    def prepare_available_now(self) -> None:
        self._is_available_now = True

    def ends(self) -> SourceOffset | None:
        """The ends of the logs at the last look."""
        return self._latest.known

    def next_end(self, start: SourceOffset, is_limited: bool) -> SourceOffset:
        """The end of the next batch. If it equals `start`, there is none yet."""
        group = self._options.group.group_id or start.group or self._group_of_taken_over()
        end = self._end_of_batch(start, group, is_limited)
        self._latest.answered(with_batch=end is not None)
        if end is not None:
            return end
        waiting = replace(start, group=group, is_initial=False)
        return replace(waiting, begin=start.positions) if start.is_initial else waiting

    def _end_of_batch(self, start: SourceOffset, group: str, is_limited: bool) -> SourceOffset | None:
        # With Trigger.AvailableNow later records are for the next run.
        known = self._latest.known if self._is_available_now else None
        ends = known or self._latest.find(start, group)
        kept = {tp: at for tp, at in start.positions.items() if not ends.is_recreated_since(start, tp.topic)}
        finished = {tp: at for tp, at in kept.items() if tp in ends.positions}
        self._progress.report(group, finished)
        moved = self._starts.after(start, ends)
        begin = kept | moved
        # Retention may have passed the ends since they were looked up.
        latest = {tp: max(end, moved.get(tp, end)) for tp, end in ends.positions.items()}
        positions = self._admit(begin, latest) if is_limited else latest
        self._latest.known = replace(ends, positions=latest, begin=ends.begin if positions is None else None)
        if positions is None:
            return None
        end = replace(ends, positions=positions, tasks=self._tasks)
        if start.is_initial:
            return replace(end, begin=begin)
        is_same = (group, end.topic_ids, positions) == (start.group, start.topic_ids, start.positions)
        if not is_same or moved:
            return replace(end, begin=moved or None)
        if self._is_available_now:
            self._progress.report(group, finished, is_last=True)
        return None

    def close(self) -> None:
        """The process ends."""
        self._progress.flush()

    def committed(self, end: SourceOffset) -> None:
        group = self._options.group.group_id or end.group
        if group != NO_GROUP:
            self._progress.report(group, end.positions)

    def _group_of_taken_over(self) -> str:
        """The group of a query that takes over another source's checkpoint, until its own checkpoint has it."""
        self._taken_over = self._taken_over or new_group(self._options.group)
        return self._taken_over

    def _admit(
        self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int] | None:
        """The end of the batch, or None if it has to wait."""
        limits = self._options.limits
        waiting = backlog(begin, ends)
        if self._gate is not None and not self._is_available_now and waiting:
            is_open = self._gate.is_open(sum(waiting.values()), self._clock() * 1000)
            if not is_open:
                return None
        positions = dict(ends)
        if limits.max_offsets is not None:
            positions = limit_offsets(begin, positions, limits.max_offsets)
        if limits.max_bytes is not None:
            sizes = self._sizes.estimate({tp: begin[tp] for tp in waiting})
            positions = limit_bytes(begin, positions, limits.max_bytes, sizes)
        return positions


@plain_errors
class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.for_stream(options)
        self._schema = check_schema(schema, self._options.values)
        self._driver: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_driver": None}

    def _running(self) -> StreamDriver:
        if self._driver is None:
            self._driver = connected_driver(self._options)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._running().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark returns this limit unless the trigger reads everything. Any limit will do: the options apply."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable() if limits.min_offsets is None else ReadMinRows(limits.min_offsets)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        is_limited = not isinstance(limit, ReadAllAvailable)
        return self._running().next_end(SourceOffset.from_json(start), is_limited).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._running().prepare_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        ends = self._running().ends()
        return None if ends is None else ends.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = SourceOffset.from_json(end)
        least, most = self._options.min_partitions, self._options.max_records_per_partition
        splits = cut(ranges_between(SourceOffset.from_json(start), planned), least, most)
        return together(splits, planned.tasks, least, most)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from penstock.spark.source.reading import read_task

        assert isinstance(partition, Split | SplitGroup)
        return read_task(partition, self._options, arrow_schema(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        self._running().committed(SourceOffset.from_json(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()


def connected_driver(options: SourceOptions) -> StreamDriver:
    from penstock.wire_client.blocking.cluster import BlockingCluster
    from penstock.wire_client.blocking.long_poll import LongPoll

    where = options.cluster
    cluster = BlockingCluster(where.bootstrap, where.client_id, where.security)

    # Separate clients: neither samples nor a silent coordinator may delay the query for long.
    looking = BlockingCluster(where.bootstrap, where.client_id, where.security, LOOK_TIMEOUT_S)
    sizes = RecordSizes(lambda positions: looking.first_batches(positions, SAMPLE_BYTES))
    committing = BlockingCluster(where.bootstrap, where.client_id, where.security, COMMIT_TIMEOUT_S)
    planner, progress = OffsetPlanner(options, cluster), BackgroundProgress(GroupProgress(committing))
    news = LongPoll(cluster, read_committed=options.read_committed)
    latest = LatestEnds(CurrentEnds(options, planner), news)
    driver = StreamDriver(options, planner, progress, sizes, latest, tasks=known_cores())
    if is_sparks():
        before_termination(driver.close)
        hint_at_sockets()
    return driver
