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

from penstock.client.blocking_cluster import BlockingCluster, shared_cluster
from penstock.client.errors import OffsetOutOfRange, TopicRecreated
from penstock.client.fetch_stream import FetchStream
from penstock.model.errors import ApiError, ErrorCode
from penstock.spark.decode import BatchDecoder
from penstock.spark.offsets import NO_TOPIC_ID, DataLoss
from penstock.spark.options import ClusterOptions, SourceOptions
from penstock.spark.planning import retention_loss
from penstock.spark.splits import Split

logger = logging.getLogger(__name__)

RecordBatch = Any


@cache
def spare_the_heap() -> None:
    """Spark's worker collects garbage after every task, which takes 50 ms over all that Arrow and Spark brought."""
    gc.collect()
    gc.freeze()


def cluster_for(options: ClusterOptions, timeout_s: float = 60.0) -> BlockingCluster:
    """This process's own, kept."""
    return shared_cluster(options.bootstrap, options.client_id, options.security, timeout_s)


def read_split(split: Split, options: SourceOptions, schema: Any) -> Iterator[RecordBatch]:
    """`schema` is Arrow's. Raises DataLoss, CorruptRecordBatch, ClientError."""
    spare_the_heap()
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
                yield from decoded
                position = max(position, decoded.next_offset)
                stream.advance(position)
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
