"""The work of a Spark task: it reads one split's records as Arrow batches.

It runs in Spark's Python workers, which run many tasks: connections are kept for the next one. Records that are missing
from the log are an error or a warning, by `failOnDataLoss`. Must not know: micro-batches, options as text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from penstock.model.errors import ApiError, ErrorCode
from penstock.records.batch import read_header
from penstock.spark.decode import BatchDecoder, CorruptRecordBatch
from penstock.spark.source.current_ends import PATIENCE_S
from penstock.spark.source.offsets import NO_TOPIC_ID, DataLoss
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.planning import retention_loss
from penstock.spark.source.splits import Split
from penstock.spark.worker import cluster_for, spare_the_heap
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.fetch_stream import FetchedChunk, FetchStream
from penstock.wire_client.requests.errors import LogTruncated, OffsetOutOfRange, TopicRecreated
from penstock.wire_client.requests.offsets import LATEST_MS

logger = logging.getLogger(__name__)

RecordBatch = Any

PAUSE_S = 0.2
"""Between the attempts to find a topic that is said to be gone."""


def read_split(split: Split, options: SourceOptions, schema: Any) -> Iterator[RecordBatch]:
    """`schema` is Arrow's. Raises DataLoss, CorruptRecordBatch, WireClientError."""
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
            topic_id=None if split.topic_id == NO_TOPIC_ID else split.topic_id,
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
    """Checks the position of a batch, because its checksum does not cover the base offset. With a damaged base offset
    the batch would look like one that was already read, or like one after a hole left by compaction. Raises
    CorruptRecordBatch.

    A base offset that is too large, but within the log, looks the same as a hole left by compaction.
    """
    header = read_header(chunk.records)
    if header.next_offset <= position:
        reason = f"it ends at {header.next_offset}, but is the answer for offset {position}"
        raise CorruptRecordBatch(split.topic, split.partition, header.base_offset, reason)
    if next_offset <= chunk.high_watermark:
        return
    # Kafka reads its high watermark before the records.
    log_end = cluster.list_offsets({split.topic_partition: LATEST_MS})[split.topic_partition].offset
    if next_offset > log_end:
        at = 0
        while header.next_offset < next_offset:
            position = header.next_offset
            at += header.size_bytes
            header = read_header(chunk.records, at)
        reason = f"it is beyond the end of the log ({log_end}), at the place of offset {position}"
        raise CorruptRecordBatch(split.topic, split.partition, header.base_offset, reason)


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
