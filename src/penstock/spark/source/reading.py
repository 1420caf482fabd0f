"""The work of a Spark task: it reads the records of its splits as Arrow batches.

It runs in Spark's Python workers, which run many tasks: connections are kept for the next one. Several splits are
fetched together, as far as nothing is in the way; `read_split` reads the rest of each. Records that are missing from
the log are an error or a warning, by `failOnDataLoss`. Must not know: micro-batches, options as text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.arrow.decode import DEFAULT_MAX_ROWS, BatchDecoder
from penstock.arrow.decode.place import Answer, check_place
from penstock.model.errors import ApiError, ErrorCode
from penstock.spark.source.current_ends import PATIENCE_S
from penstock.spark.source.offsets import DataLoss
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planning import retention_loss
from penstock.spark.source.splits import Split, Task
from penstock.spark.worker import cluster_for, spare_the_heap
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.fetch_stream import FetchedChunk, FetchStream
from penstock.wire_client.blocking.joint_fetch import FetchRange, JointFetch
from penstock.wire_client.requests.errors import LogTruncated, OffsetOutOfRange, TopicRecreated
from penstock.wire_client.requests.offsets import LATEST_MS

logger = logging.getLogger(__name__)

RecordBatch = Any

SMALL_ROWS, SMALL_BYTES = 1000, 1 << 20
"""Larger batches are not worth a copy."""
JOINED_BYTES = 4 << 20
PAUSE_S = 0.2
"""Between the attempts to find a topic that is said to be gone."""


def read_task(task: Task, options: SourceOptions, schema: Any) -> Iterator[RecordBatch]:
    """`schema` is Arrow's. Raises as `read_split`, and BadValue."""
    if options.values is None:
        return _read_records(task, options, schema)
    from penstock.spark.source.typed_values import typed_rows

    typed = typed_rows(options.values, schema)
    return typed.rows(_read_records(task, options, typed.columns))


def _read_records(task: Task, options: SourceOptions, schema: Any) -> Iterator[RecordBatch]:
    if isinstance(task, Split):
        return read_split(task, options, schema)
    return joined(_read_together(task.splits, options, schema))


def _read_together(splits: Sequence[Split], options: SourceOptions, schema: Any) -> Iterator[RecordBatch]:
    cluster = cluster_for(options.cluster)
    positions = [split.start for split in splits]
    wanted = [
        FetchRange(split.topic_partition, split.start, split.end, split.known_topic_id, split.leader_epoch)
        for split in splits
    ]
    fetch = JointFetch(cluster, wanted, read_committed=options.read_committed, max_bytes=options.fetch_max_bytes)
    for index, chunk in fetch:
        split, position = splits[index], positions[index]
        most = min(split.end - position, DEFAULT_MAX_ROWS)  # most of a decoder's cost is memory for its rows
        decoder = BatchDecoder(schema, split.topic, split.partition, max_rows=most)
        decoded = decoder.open(chunk.records, position, split.end, chunk.aborted, options.read_committed)
        _check_place(split, position, chunk, decoded.next_offset, cluster)
        yield from decoded
        positions[index] = max(position, decoded.next_offset)
        fetch.advance(index, positions[index])
        del chunk, decoded  # the memory of the chunk is that of the next one
    for split, position in zip(splits, positions, strict=True):
        if position < split.end:
            yield from read_split(replace(split, start=position), options, schema)
    spare_the_heap("read")


def joined(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    """The same rows, with neighbouring small batches in one: each batch costs Spark some time, however few its rows."""
    small: list[RecordBatch] = []
    rows = size = 0
    for batch in batches:
        is_small = batch.num_rows <= SMALL_ROWS and batch.nbytes <= SMALL_BYTES
        has_room = rows + batch.num_rows <= DEFAULT_MAX_ROWS and size + batch.nbytes <= JOINED_BYTES
        if small and not (is_small and has_room):
            yield pa.concat_batches(small)
            small, rows, size = [], 0, 0
        if is_small:
            small.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
        else:
            yield batch
    if small:
        yield pa.concat_batches(small)


def read_split(split: Split, options: SourceOptions, schema: Any) -> Iterator[RecordBatch]:
    """Raises DataLoss, CorruptRecordBatch, WireClientError."""
    cluster = cluster_for(options.cluster)
    decoder = BatchDecoder(schema, split.topic, split.partition)
    position = split.start
    doubted_since: float | None = None
    while position < split.end:
        stream = FetchStream(
            cluster,
            split.topic_partition,
            position,
            split.end,
            read_committed=options.read_committed,
            max_bytes=options.fetch_max_bytes,
            topic_id=split.known_topic_id,
            leader_epoch=split.leader_epoch,
            timeout_s=options.poll_timeout_s,
        )
        try:
            for chunk in stream:
                decoded = decoder.open(chunk.records, position, split.end, chunk.aborted, options.read_committed)
                _check_place(split, position, chunk, decoded.next_offset, cluster)
                yield from decoded
                position = max(position, decoded.next_offset)
                stream.advance(position)
                doubted_since = None
                del chunk, decoded  # the memory of the chunk is that of the next one
            spare_the_heap("read")
            return
        except OffsetOutOfRange as error:
            position = _after_loss(split, position, error, options.fail_on_data_loss)
        except LogTruncated as error:
            # Other records may be there now: the next batch reads them.
            _report(str(error), options.fail_on_data_loss)
            split = replace(split, end=max(position, error.end_offset))
        except (TopicRecreated, ApiError) as error:
            if isinstance(error, ApiError) and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            # As when a batch is planned: one broker's metadata may be out of date.
            doubted_since = doubted_since or time.monotonic()
            if time.monotonic() - doubted_since >= PATIENCE_S:
                _report(str(error), options.fail_on_data_loss)
                return
            time.sleep(PAUSE_S)


def _check_place(split: Split, position: int, chunk: FetchedChunk, next_offset: int, cluster: BlockingCluster) -> None:
    """Raises CorruptRecordBatch."""
    tp = split.topic_partition
    answer = Answer(tp, position, chunk.records, next_offset, chunk.high_watermark)
    check_place(answer, lambda: cluster.list_offsets({tp: LATEST_MS})[tp].offset)


def _after_loss(split: Split, position: int, error: OffsetOutOfRange, is_fatal: bool) -> int:
    """The offset at which to resume after a loss."""
    if error.log_start_offset > position:
        _report(retention_loss(split.topic_partition, position, error.log_start_offset), is_fatal)
        return error.log_start_offset
    # Beyond the end: records that existed when the batch was planned are gone.
    _report(f"{error}: the log became shorter while it was read up to {split.end}", is_fatal)
    return split.end


def _report(loss: str, is_fatal: bool) -> None:
    if is_fatal:
        raise DataLoss(f"{loss}. To continue without the lost records set the option failOnDataLoss=false")
    logger.warning("%s. Continuing, because failOnDataLoss is false", loss)
