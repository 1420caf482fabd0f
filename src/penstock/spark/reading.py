"""What a Spark task does: one split's records as Arrow batches.

Runs in Spark's Python workers, which take task after task: connections are kept for the next one. What is missing
from the log by now is an error or a warning, by `failOnDataLoss`. Must not know: micro-batches, options as text.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from functools import cache
from typing import Any

from penstock.model.errors import ApiError, ErrorCode
from penstock.records.batch import read_header
from penstock.spark.decode import BatchDecoder, CorruptRecordBatch
from penstock.spark.offsets import NO_TOPIC_ID, DataLoss
from penstock.spark.options import ClusterOptions, SourceOptions
from penstock.spark.planning import retention_loss
from penstock.spark.splits import Split
from penstock.wire_client.blocking.cluster import BlockingCluster, shared_cluster
from penstock.wire_client.blocking.fetch_stream import FetchedChunk, FetchStream
from penstock.wire_client.requests.errors import OffsetOutOfRange, TopicRecreated
from penstock.wire_client.requests.offsets import LATEST_MS

logger = logging.getLogger(__name__)

RecordBatch = Any


@cache
def spare_the_heap(kind_of_task: str) -> None:
    """At the end of the first task of its kind, when everything is imported and compiled. Spark's worker collects
    garbage after every task, which takes 50 ms over all that Arrow, numba and Spark brought: time that the driver
    wants, too."""
    gc.collect()
    gc.freeze()


def cluster_for(options: ClusterOptions, timeout_s: float = 60.0) -> BlockingCluster:
    """This process's own, kept."""
    return shared_cluster(options.bootstrap, options.client_id, options.security, timeout_s)


def read_split(split: Split, options: SourceOptions, schema: Any) -> Iterator[RecordBatch]:
    """`schema` is Arrow's. Raises DataLoss, CorruptRecordBatch, WireClientError."""
    cluster = cluster_for(options.cluster)
    decoder = BatchDecoder(schema, split.topic, split.partition)
    position = split.start
    while position < split.end:
        stream = FetchStream(
            cluster,
            split.topic_partition,
            position,
            split.end,
            read_committed=options.read_committed,
            max_bytes=options.fetch_max_bytes,
            topic_id=None if split.topic_id == NO_TOPIC_ID else split.topic_id,
            timeout_s=options.poll_timeout_s,
        )
        try:
            for chunk in stream:
                decoded = decoder.open(chunk.records, position, split.end, chunk.aborted, options.read_committed)
                _check_place(split, position, chunk, decoded.next_offset, cluster)
                yield from decoded
                position = max(position, decoded.next_offset)
                stream.advance(position)
            spare_the_heap("read")
            return
        except OffsetOutOfRange as error:
            position = _after_loss(split, position, error, options.fail_on_data_loss)
        except TopicRecreated as error:
            _report(str(error), options.fail_on_data_loss)
            return
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            _report(str(error), options.fail_on_data_loss)
            return


def _check_place(split: Split, position: int, chunk: FetchedChunk, next_offset: int, cluster: BlockingCluster) -> None:
    """The checksum of a batch leaves out its base offset. Damaged there, it would pass for one that was read already,
    or for the far side of a hole that compaction left. Raises CorruptRecordBatch.

    Not to be told from a hole: a base offset that was raised, but not beyond the end of the log.
    """
    header = read_header(chunk.records)
    if header.next_offset <= position:
        reason = f"it ends at {header.next_offset}, and came as the answer for offset {position}"
        raise CorruptRecordBatch(split.topic, split.partition, header.base_offset, reason)
    if next_offset <= chunk.high_watermark:
        return
    # Kafka reads its high watermark first and the records then.
    log_end = cluster.list_offsets({split.topic_partition: LATEST_MS})[split.topic_partition].offset
    if next_offset > log_end:
        at = 0
        while header.next_offset < next_offset:
            position = header.next_offset
            at += header.size_bytes
            header = read_header(chunk.records, at)
        reason = f"it is beyond the end of the log, which is {log_end}, and lies where offset {position} should be"
        raise CorruptRecordBatch(split.topic, split.partition, header.base_offset, reason)


def _after_loss(split: Split, position: int, error: OffsetOutOfRange, is_fatal: bool) -> int:
    """Where to go on."""
    if error.log_start_offset > position:
        _report(retention_loss(split.topic_partition, position, error.log_start_offset), is_fatal)
        return error.log_start_offset
    # Beyond the end: what was there when the batch was planned is gone.
    _report(f"{error}: the log became shorter while it was read up to {split.end}", is_fatal)
    return split.end


def _report(loss: str, is_fatal: bool) -> None:
    if is_fatal:
        raise DataLoss(f"{loss}. To go on without what is lost set the option failOnDataLoss=false")
    logger.warning("%s. Going on, since failOnDataLoss is false", loss)
