"""Reading of archived files: the records of one partition in the order of their offsets.

Files of one day are consecutive. Files of two days interleave if producers' clocks differ; they are merged by offset,
from all interleaving files at a time. Must not know: Spark, manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.jobs.archives.manifest import ArchivedFile
from penstock.spark.jobs.errors import JobFailed

RecordBatch = Any
Int64s = npt.NDArray[np.int64]

BATCH_ROWS = 10_000


def read_in_order(
    directory: Path, files: Iterable[ArchivedFile], first: int, end: int, columns: Sequence[str]
) -> Iterator[RecordBatch]:
    """Rows of one partition with first <= offset < end. `columns` must have "offset". Raises JobFailed."""
    wanted = [file for file in files if file.first < end and file.last >= first]
    for cluster in interleaved(wanted):
        streams = [_rows(directory / file.path, first, end, columns) for file in cluster]
        yield from streams[0] if len(streams) == 1 else _gathered(_merged(streams))


def interleaved(files: Iterable[ArchivedFile]) -> list[list[ArchivedFile]]:
    """Groups files with overlapping ranges of offsets. The groups are consecutive."""
    groups: list[list[ArchivedFile]] = []
    last = -1
    for file in sorted(files, key=lambda file: file.first):
        if file.first > last:
            groups.append([])
        groups[-1].append(file)
        last = max(last, file.last)
    return groups


def _rows(path: Path, first: int, end: int, columns: Sequence[str]) -> Iterator[RecordBatch]:
    try:
        with pq.ParquetFile(path) as parquet:
            wanted = (number for number in range(parquet.num_row_groups) if _may_have(parquet, number, first, end))
            for number in wanted:  # one at a time: a batch never has more than a row group
                for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[number], columns=list(columns)):
                    start, stop = np.searchsorted(_offsets(batch), (first, end))
                    if start < stop:
                        yield batch.slice(start, stop - start)
    except FileNotFoundError:
        raise JobFailed(f"{path} is gone: the archive was compacted meanwhile; run this again to resume") from None
    except pa.ArrowInvalid as error:
        raise JobFailed(f"{path} is not a readable Parquet file: {error}") from None


def _may_have(parquet: Any, number: int, first: int, end: int) -> bool:
    offsets = parquet.metadata.row_group(number).column(parquet.schema_arrow.names.index("offset")).statistics
    return offsets is None or not offsets.has_min_max or (offsets.min < end and offsets.max >= first)


def _merged(streams: Sequence[Iterator[RecordBatch]]) -> Iterator[RecordBatch]:
    heads = [(_offsets(batch), batch, stream) for stream in streams if (batch := next(stream, None)) is not None]
    while heads:
        heads.sort(key=lambda head: int(head[0][0]))
        offsets, batch, stream = heads.pop(0)
        stop = len(offsets) if not heads else int(np.searchsorted(offsets, int(heads[0][0][0])))
        yield batch.slice(0, stop)
        if stop < len(offsets):
            heads.append((offsets[stop:], batch.slice(stop), stream))
        elif (following := next(stream, None)) is not None:
            heads.append((_offsets(following), following, stream))


def _gathered(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Joins small slices: where records alternate, slices have single rows."""
    waiting: list[RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= BATCH_ROWS:
            yield from _joined(waiting)
            waiting, rows = [], 0
    yield from _joined(waiting)


def _joined(batches: list[RecordBatch]) -> Iterator[RecordBatch]:
    if batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


def _offsets(batch: RecordBatch) -> Int64s:
    offsets: Int64s = batch.column("offset").to_numpy()
    return offsets
