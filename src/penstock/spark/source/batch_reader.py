"""The batch source: it reads a range of offsets, resolved once when the query is planned, like a micro-batch.

Must not know: streaming, groups beyond `startingOffsets=group`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.spark.options.cores import known_cores
from penstock.spark.options.known import InvalidOption
from penstock.spark.plain_errors import plain_errors
from penstock.spark.source.columns import arrow_schema, check_schema
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planning import OffsetPlanner, Resolved, retention_loss
from penstock.spark.source.positions import EARLIEST, LATEST, AtOffsets
from penstock.spark.source.pushdown import Bounds, PushFilters
from penstock.spark.source.splits import Split, SplitGroup, cut, together

PLANNING_TIMEOUT_S = 20.0
"""A user waits at a prompt: long enough for a broker to restart, too short to wait for a wrong address."""


@plain_errors
class PenstockBatchReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.for_batch(options)
        self._schema = check_schema(schema, self._options.values)
        self._bounds = Bounds()
        self.pushFilters = PushFilters(self._bounds, is_taking=self._options.takes_filters)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        from penstock.spark.worker import cluster_for

        planner = OffsetPlanner(self._options, cluster_for(self._options.cluster, PLANNING_TIMEOUT_S))
        splits = plan(self._options, planner, self._bounds)
        return together(splits, known_cores(), self._options.min_partitions, self._options.max_records_per_partition)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from penstock.spark.source.reading import read_task

        if not isinstance(partition, Split | SplitGroup):
            # Spark's placeholder when there is nothing to read.
            return iter(())
        return read_task(partition, self._options, arrow_schema(self._schema))


def plan(options: SourceOptions, planner: OffsetPlanner, bounds: Bounds) -> list[Split]:
    start = planner.resolve(options.starting, is_start=True)
    end = planner.resolve(options.ending, is_start=False)
    _check(options, planner, start, end)
    since = {}
    if bounds.since_ms is not None:
        since = planner.offsets_at([tp for tp in end.offsets if bounds.has(tp)], bounds.since_ms)
    ranges = []
    for tp in sorted(end.offsets):
        first, last = bounds.narrowed(start.offsets[tp], end.offsets[tp])
        if tp in since:
            # -1: all records are older.
            first = max(first, since[tp]) if since[tp] >= 0 else last
        if bounds.has(tp) and first < last:
            ranges.append(Split(tp.topic, tp.partition, first, last, end.topic_ids[tp.topic]))
    return cut(ranges, options.min_partitions, options.max_records_per_partition)


def _check(options: SourceOptions, planner: OffsetPlanner, start: Resolved, end: Resolved) -> None:
    """Checks the range: offsets of the user or of a group may be outside the log."""
    if start.offsets.keys() != end.offsets.keys():
        raise InvalidOption("partitions were added or deleted while the query was planned: run it again")
    for tp, first in start.offsets.items():
        if first > end.offsets[tp]:
            raise InvalidOption(
                f"the read of partition {tp.partition} of '{tp.topic}' would begin at offset {first}, after its end at "
                f"{end.offsets[tp]}: correct startingOffsets or endingOffsets"
            )
    earliest = planner.offsets_at(start.offsets, EARLIEST)
    passed = {tp: first for tp, first in earliest.items() if first > start.offsets[tp]}
    planner.report([retention_loss(tp, start.offsets[tp], first) for tp, first in passed.items()])
    if isinstance(options.ending, AtOffsets):
        for tp, latest in planner.offsets_at(end.offsets, LATEST).items():
            if end.offsets[tp] > latest:
                raise InvalidOption(
                    f"option 'endingOffsets' gives {end.offsets[tp]} for partition {tp.partition} of '{tp.topic}', "
                    f"whose log ends at {latest}"
                )
