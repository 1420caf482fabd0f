"""Archives in Spark: `format("penstock-archive")` with the option `path`, for the jobs that register it.

Writing is a streaming sink: tasks stage files, and the commit of a micro-batch adds all of them to the manifest at
once. A repeated batch or task finds its records archived and stages nothing. Reading follows the manifest, so it is
always exact: one task reads the rows of a partition in the order of their offsets.

A micro-batch is added only if its records are from the archive's topics. This is checked with the offsets that Spark
logged when it planned the batch, and with the cluster's topics after the batch was read.

Options: path; for writing maxFileBytes, dateColumn, checkpoint (the directory of Spark's offset log) and the options of
the cluster; for reading topic, and startOffsets and endOffsets as JSON by partition (partitions that are not named are
not read).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)

from penstock.spark.jobs.archives.manifest import Archive, ArchivedFile, StagedFile
from penstock.spark.options.cluster import cluster_options
from penstock.spark.source.columns import COLUMNS, arrow_schema, source_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

FORMAT = "penstock-archive"
FAN_IN = 8
"""The number of small files in a merge while records arrive."""


class ArchiveDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return source_schema(include_headers=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        return ArchiveReader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return ArchiveWriter(self.options)


# -- writing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    files: tuple[StagedFile, ...]


class ArchiveWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._directory = Path(options["path"])
        self._max_file_bytes = int(options["maxFileBytes"])
        self._date_column = options.get("dateColumn", "timestamp")
        self._checkpoint = Path(options["checkpoint"])
        self._cluster = cluster_options(options)

    def write(self, iterator: Iterator[Any]) -> Staged:
        from penstock.spark.jobs.archives.writing import WritePlan, stage
        from penstock.spark.worker import spare_the_heap

        archive = Archive(self._directory)
        plan = WritePlan(archive.staging, self._max_file_bytes, self._date_column, archive.load().ends)
        staged = Staged(tuple(stage(iterator, plan)))
        spare_the_heap("write archive")
        return staged

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        from penstock.spark.jobs.archives.compaction import compact
        from penstock.spark.jobs.archives.origins import planned_origin, present_origin
        from penstock.spark.worker import cluster_for

        archive = Archive(self._directory)
        planned = planned_origin(self._checkpoint, batchId)
        # Asked after the batch was read, so that records of a topic that was created again are refused.
        present = present_origin(cluster_for(self._cluster), planned.topic_ids)
        files = _staged(messages)
        archive.add(files, [planned, present])
        if files:
            compact(archive, self._max_file_bytes, FAN_IN)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Also called after `commit` raised: files that it put in place are no longer in staging."""
        archive = Archive(self._directory)
        for staged in _staged(messages):
            archive.staged_path(staged.name).unlink(missing_ok=True)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    return [file for message in messages if isinstance(message, Staged) for file in message.files]


# -- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArchivedRange(InputPartition):
    topic: str
    partition: int
    start: int
    end: int
    files: tuple[ArchivedFile, ...]


class ArchiveReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._directory = Path(options["path"])
        self._topic = options["topic"]
        self._starts = _by_partition(options["startOffsets"])
        self._ends = _by_partition(options["endOffsets"])
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        files = Archive(self._directory).load().files_of(self._topic)
        ranges = []
        for partition, end in sorted(self._ends.items()):
            start = self._starts[partition]
            mine = (file for file in files if file.partition == partition and file.first < end and file.last >= start)
            if start < end:
                ranges.append(ArchivedRange(self._topic, partition, start, end, tuple(mine)))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, ArchivedRange):
            return  # Spark's placeholder when there is nothing to read
        import pyarrow as pa

        from penstock.spark.jobs.archives.reading import read_in_order
        from penstock.spark.worker import spare_the_heap

        wanted = arrow_schema(self._schema)
        columns = [name for name in COLUMNS if name != "topic"]
        for batch in read_in_order(self._directory, partition.files, partition.start, partition.end, columns):
            topics = pa.repeat(pa.scalar(self._topic), batch.num_rows)
            arrays = [
                topics if field.name == "topic" else batch.column(field.name).cast(field.type) for field in wanted
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)
        spare_the_heap("read archive")


def _by_partition(text: str) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}
