"""The work of a Spark task of an archive: it stages its rows as Parquet files, one for each partition and day.

Rows arrive in the order of their offsets, as the source reads them, and keep that order. Records that are already
archived are left out. Row groups have a size that suits scans. Memory is bounded, whatever the number of days.
Must not know: Spark, manifests except their ends.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.model.topic_partition import TopicPartition
from penstock.spark.jobs.archives.manifest import STAGED_SUFFIX, ArchivedFile, StagedFile
from penstock.spark.jobs.errors import JobFailed

# pyarrow comes without types.
RecordBatch = Any
Int64s = npt.NDArray[np.int64]

ROW_GROUP_BYTES = 16 << 20
BUFFERED_BYTES = 64 << 20
MAX_OPEN = 64
"""The number of days with open files. With more, the oldest file is closed; its day may get another file later."""
DAY_US = 86_400_000_000
EPOCH = date(1970, 1, 1)
FIRST_DAY, LAST_DAY = ((edge - EPOCH).days for edge in (date.min, date.max))
"""Timestamps may be any numbers: one outside the range, as in microseconds, is filed under the nearest day."""

FILE_SCHEMA: Any = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


def open_parquet(path: Path) -> Any:
    """Keys and values hardly repeat, so they get no dictionary. Offsets and timestamps grow slowly."""
    return pq.ParquetWriter(
        path,
        FILE_SCHEMA,
        compression="zstd",
        use_dictionary=["partition", "timestampType", "headers.list.element.key"],
        column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
        write_statistics=["partition", "offset", "timestamp"],
    )


class StagedWriter:
    """An unfinished file. All its rows have the same `topic_partition` and `date`."""

    def __init__(self, staging: Path, topic_partition: TopicPartition, day: str) -> None:
        self._name = f"{uuid.uuid4().hex}{STAGED_SUFFIX}"
        self._path = staging / self._name
        self._writer: Any = open_parquet(self._path)
        self._topic_partition = topic_partition
        self._day = day
        self._waiting: list[RecordBatch] = []
        self._first = self._last = -1
        self._rows = 0
        self._min_us, self._max_us = 2**63 - 1, -(2**63)
        self.waiting_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The bytes on disk so far."""
        return self._path.stat().st_size

    def add(self, rows: RecordBatch) -> None:
        offsets: Int64s = rows.column("offset").to_numpy()
        if (self._rows and offsets[0] <= self._last) or (np.diff(offsets) <= 0).any():
            raise JobFailed(
                f"rows of {self._topic_partition.topic}-{self._topic_partition.partition} are not in the order of "
                f"their offsets near {int(offsets[0])}"
            )
        if not self._rows:
            self._first = int(offsets[0])
        self._last = int(offsets[-1])
        self._rows += rows.num_rows
        times = microseconds(rows)
        self._min_us = min(self._min_us, int(times.min()))
        self._max_us = max(self._max_us, int(times.max()))
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        if self.waiting_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the waiting rows as a row group."""
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._waiting, self.waiting_bytes = [], 0

    def close(self) -> StagedFile:
        """Finishes the file and flushes it to disk."""
        self.flush()
        self._writer.close()
        handle = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        topic, partition = self._topic_partition
        file = ArchivedFile(
            topic=topic,
            date=self._day,
            partition=partition,
            first=self._first,
            last=self._last,
            rows=self._rows,
            size_bytes=self.size_bytes,
            min_ms=self._min_us // 1000,
            max_ms=self._max_us // 1000,
        )
        return StagedFile(self._name, file)

    def discard(self) -> None:
        self._writer.close()
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class WritePlan:
    staging: Path
    max_file_bytes: int
    date_column: str = "timestamp"
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The end offsets of the archive; earlier records are archived."""


class _Slice:
    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._open: dict[tuple[TopicPartition, int], StagedWriter] = {}
        self.closed: list[StagedFile] = []

    def add(self, topic_partition: TopicPartition, day: int, rows: RecordBatch) -> None:
        place = (topic_partition, day)
        writer = self._open.get(place)
        if writer is None:
            if len(self._open) >= MAX_OPEN:
                self._close(next(iter(self._open)))
            text = (EPOCH + timedelta(days=day)).isoformat()
            writer = self._open[place] = StagedWriter(self._plan.staging, topic_partition, text)
        writer.add(rows)
        if sum(each.waiting_bytes for each in self._open.values()) > BUFFERED_BYTES:
            for each in self._open.values():
                each.flush()
        if not writer.waiting_bytes and writer.size_bytes >= self._plan.max_file_bytes:
            self._close(place)

    def _close(self, place: tuple[TopicPartition, int]) -> None:
        self.closed.append(self._open.pop(place).close())

    def finish(self) -> list[StagedFile]:
        for place in list(self._open):
            self._close(place)
        return self.closed

    def discard(self) -> None:
        for writer in self._open.values():
            writer.discard()
        for staged in self.closed:
            (self._plan.staging / staged.name).unlink(missing_ok=True)


def stage(batches: Iterable[RecordBatch], plan: WritePlan) -> list[StagedFile]:
    """Stages all rows in complete files. Raises JobFailed, and then leaves nothing in staging."""
    slice_ = _Slice(plan)
    try:
        for batch in batches:
            for topic_partition, day, rows in _by_place(batch, plan):
                slice_.add(topic_partition, day, rows)
        return slice_.finish()
    except BaseException:
        slice_.discard()
        raise


def _by_place(batch: RecordBatch, plan: WritePlan) -> Iterator[tuple[TopicPartition, int, RecordBatch]]:
    """Splits rows by partition and day; almost always there is only one of each."""
    if not batch.num_rows:
        return
    topics = batch.column("topic").dictionary_encode()
    rows = pa.RecordBatch.from_arrays(
        [batch.column(name).cast(FILE_SCHEMA.field(name).type) for name in FILE_SCHEMA.names], schema=FILE_SCHEMA
    )
    if plan.date_column == "timestamp":
        days = np.clip(microseconds(rows) // DAY_US, FIRST_DAY, LAST_DAY)
    else:
        days = np.full(batch.num_rows, (datetime.fromtimestamp(time.time(), UTC).date() - EPOCH).days, np.int64)
    numbers = topics.indices.to_numpy().astype(np.int64)
    places = np.stack([numbers, rows.column("partition").to_numpy().astype(np.int64), days])
    if (places == places[:, :1]).all():
        found, which = places[:, :1], np.zeros(batch.num_rows, np.int64)
    else:
        found, which = np.unique(places, axis=1, return_inverse=True)
    offsets: Int64s = rows.column("offset").to_numpy()
    for number, (topic, partition, day) in enumerate(found.T):
        topic_partition = TopicPartition(topics.dictionary[int(topic)].as_py(), int(partition))
        mine = (which.reshape(-1) == number) & (offsets >= plan.ends.get(topic_partition, 0))
        if mine.all():
            yield topic_partition, int(day), rows
        elif mine.any():
            yield topic_partition, int(day), rows.take(pa.array(np.flatnonzero(mine)))


def microseconds(rows: RecordBatch) -> Int64s:
    times: Int64s = rows.column("timestamp").cast(pa.int64()).to_numpy()
    return times
