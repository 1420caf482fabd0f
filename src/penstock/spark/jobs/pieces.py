"""The size of the pieces in which rows go from Spark to a Python sink.

Spark computes the bytes of a piece after every row. With a column of lists, such as headers, that walks all vectors and
takes more time than everything else together. So pieces are limited by rows instead, and the number of rows depends on
the size of records. Records that suddenly become a thousand times larger may then need more memory than there is; the
next run measures their size again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.model.errors import ApiError
from penstock.model.topic_partition import TopicPartition
from penstock.spark.source.record_sizes import LOOK_TIMEOUT_S, SAMPLE_BYTES, bytes_per_offset
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.fetch_stream import FetchStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_BYTES = 8 << 20
"""Bytes as in the log: compressed, so it may be several times that in memory."""
MIN_ROWS, MAX_ROWS = 16, 2000
LOOKED_AT = 8
"""The number of partitions to measure: partitions are alike."""
ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
NOT_ASKED_FOR = str(2**31 - 1)
EARLIEST, LATEST = -2, -1


def rows_for(record_bytes: float) -> int:
    return max(MIN_ROWS, min(MAX_ROWS, int(PIECE_BYTES / max(record_bytes, 1.0))))


def record_bytes(cluster: BlockingCluster, topics: Iterable[str]) -> float:
    """The size of the oldest or the youngest records, whichever is larger. Raises WireClientError."""
    counts = {name: len(info.partitions) for name, info in cluster.topics(topics).items()}
    partitions = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
    asked = partitions[:LOOKED_AT]
    starts, ends = (cluster.list_offsets(dict.fromkeys(asked, edge)) for edge in (EARLIEST, LATEST))
    sizes = [0.0]
    for tp in asked:
        first, end = starts[tp].offset, ends[tp].offset
        for position in {first, end - 1} if first < end else ():
            sizes.append(_look(cluster, tp, position))
    return max(sizes)


def _look(cluster: BlockingCluster, tp: TopicPartition, position: int) -> float:
    stream = FetchStream(
        cluster, tp, position, position + 1, read_committed=False, max_bytes=SAMPLE_BYTES, timeout_s=LOOK_TIMEOUT_S
    )
    try:
        records = next((bytes(chunk.records) for chunk in stream), b"")
    except ApiError:
        return 0.0  # deleted meanwhile; the source reports the problem
    base = int.from_bytes(records[:8], "big") if records else position  # the batch may begin before
    return bytes_per_offset(records, base) or 0.0


@contextmanager
def in_pieces_of(spark: SparkSession, rows: int) -> Iterator[None]:
    """Applies to queries that are started within it, and to batch writes."""
    before = {name: spark.conf.get(name) for name in (ROWS_SETTING, BYTES_SETTING)}
    spark.conf.set(ROWS_SETTING, str(rows))
    spark.conf.set(BYTES_SETTING, NOT_ASKED_FOR)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                spark.conf.set(name, value)
