"""The sink: `write.format("penstock")` and `writeStream.format("penstock")` write Spark's rows to topics.

A writer is created on the driver, where options and columns are checked, and pickled to the workers, where `write` runs
once for each task. A task returns `TaskWritten`. Must not know: how rows are delivered (`sink.delivery`), what a driver
decides (`sink.deciding`).

At least once, `commit` and `abort` on the driver only log: rows are in the log when their task ends, and stay there.
But the `commit` of a batch write raises the tasks' errors about bad rows, so that Spark does not repeat the tasks.
Exactly once, `commit` decides. Spark creates a new writer for each commit, in any process, and also calls `abort` after
`commit` raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.arrow.encode.closed import ClosedBatch
from penstock.spark.options.known import InvalidOption
from penstock.spark.plain_errors import plain_errors
from penstock.spark.sink.delivery import AtLeastOnce, Slice, SliceWriter, describe
from penstock.spark.sink.lanes import PartitionWritten
from penstock.spark.sink.options import EXACTLY_ONCE, SinkOptions, check_columns
from penstock.spark.worker import spare_the_heap
from penstock.wire_client.requests.producing_transactions import OpenTransaction

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.sink.deciding import Decider

logger = logging.getLogger(__name__)

RecordBatch = Any  # pyarrow has no types

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
JOB_GROUP = "spark.jobGroup.id"
"""The run's id: Spark gives each run of a streaming query a job group of its own."""


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """The result of a task: the records that it has in the log."""

    partitions: tuple[PartitionWritten, ...]
    is_repeat: bool = False
    """Nothing was written, because an earlier attempt had written the rows."""
    query_id: str | None = None
    transaction: OpenTransaction | None = None
    """Exactly once: the transaction with the rows. It is open until the driver ends it."""

    @property
    def records(self) -> int:
        return sum(entry.records for entry in self.partitions)


@dataclass(frozen=True)
class TaskRefused(WriterCommitMessage):
    """A task with rows that can never be written. If the task raised the error, Spark would repeat it in vain."""

    sentence: str


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Raises InvalidOption, UnsupportedClientSetting."""
    if overwrite:
        raise InvalidOption('mode "overwrite": a topic is only ever appended to; write with .mode("append")')
    checked = _checked(options, schema)
    if checked.delivery == EXACTLY_ONCE:
        raise InvalidOption(
            f"option 'deliveryGuarantee' is '{EXACTLY_ONCE}', which is for streaming queries: use writeStream, with "
            ".trigger(availableNow=True) to write what is there, or leave the option out"
        )
    return _BatchWriter(checked)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """`overwrite` means output mode complete: each result is appended as a whole, as by Spark's Kafka sink."""
    checked = _checked(options, schema)
    return _ExactlyOnceWriter(checked) if checked.delivery == EXACTLY_ONCE else _StreamWriter(checked)


def _checked(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    parsed = SinkOptions.parse(options)
    check_columns(schema, parsed)
    return parsed


@plain_errors
class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> TaskWritten | TaskRefused:
        from penstock.arrow.encode.columns import UnsuitableRows

        try:
            return write_slice(AtLeastOnce(self._options), self._options, current_slice(), iterator)
        except UnsuitableRows as error:
            for _ in iterator:
                pass  # Spark requires that all rows are consumed
            return TaskRefused(str(error))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Raises UnsuitableRows if tasks had bad rows: then Spark calls `abort`, and the write has failed."""
        refused = [message.sentence for message in messages if isinstance(message, TaskRefused)]
        if refused:
            from penstock.arrow.encode.columns import UnsuitableRows

            more = f" (and similar errors in {len(refused) - 1} more tasks)" if len(refused) > 1 else ""
            raise UnsuitableRows(f"{refused[0]}{more}")
        logger.info("written: %s", describe(totals(messages)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _warn_of_rest("the write", messages)


@plain_errors
class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> TaskWritten:
        return write_slice(AtLeastOnce(self._options), self._options, current_slice(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        logger.info("batch %d written: %s", batchId, describe(totals(messages)))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _warn_of_rest(f"batch {batchId}", messages)


@plain_errors
class _ExactlyOnceWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[RecordBatch]) -> TaskWritten:
        from penstock.spark.sink.exactly_once import ExactlyOnce

        return write_slice(ExactlyOnce(self._options), self._options, current_slice(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Raises NotOpen, DecidedButAborted, ApiError, WireClientError: then Spark calls `abort`."""
        written = [message for message in messages if isinstance(message, TaskWritten)]
        transactions = [message.transaction for message in written if message.transaction is not None]
        # A batch without rows has no transactions, and needs no decision.
        if transactions or any(message.is_repeat for message in written):
            self._decider(written).commit(batchId, transactions)
        logger.info("batch %d committed: %s", batchId, describe(totals(messages)))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Raises ApiError, WireClientError."""
        written = [message for message in messages if isinstance(message, TaskWritten)]
        if written:
            transactions = [message.transaction for message in written if message.transaction is not None]
            self._decider(written).abort(batchId, transactions)

    def _decider(self, written: Sequence[TaskWritten]) -> Decider:
        from penstock.spark.sink.deciding import decider_for

        query_id = written[0].query_id
        assert query_id is not None, "tasks outside of a streaming query have failed"
        return decider_for(self._options.cluster, query_id)


def _warn_of_rest(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Warns of rows that tasks wrote before another task failed: they stay, and a repetition writes them again."""
    written = totals(messages)
    if written:
        logger.warning(
            "%s failed; these records stay in the topics, and the next attempt writes them again: %s",
            what,
            describe(written),
        )


def totals(messages: Iterable[WriterCommitMessage | None]) -> list[PartitionWritten]:
    """The totals of all tasks, by partition. A failed task sends None."""
    sums: dict[tuple[str, int], PartitionWritten] = {}
    for message in messages:
        if not isinstance(message, TaskWritten):
            continue
        for entry in message.partitions:
            known = sums.get(entry[:2])
            if known is not None:
                last_offset = max(entry.last_offset, known.last_offset)
                entry = entry._replace(records=entry.records + known.records, last_offset=last_offset)
            sums[entry[:2]] = entry
    return [sums[key] for key in sorted(sums)]


# -- in a task ---------------------------------------------------------------------------------------------------------


def current_slice() -> Slice:
    context: Any = TaskContext.get()
    if context is None:
        return Slice(None, None, 0)
    batch_id = context.getLocalProperty(BATCH_ID)
    return Slice(
        context.getLocalProperty(QUERY_ID),
        None if batch_id is None else int(batch_id),
        context.partitionId(),
        context.getLocalProperty(JOB_GROUP),
    )


def write_slice(
    writer: SliceWriter, options: SinkOptions, slice_: Slice, batches: Iterable[RecordBatch]
) -> TaskWritten:
    """Writes all rows of a slice. Raises UnsuitableRows, DeliveryFailed, ApiError, WireClientError."""
    try:
        if not writer.begin(slice_):
            for _ in batches:
                pass  # Spark requires that all rows are consumed
            return TaskWritten((), is_repeat=True, query_id=slice_.query_id)
        _encode(writer, options, slice_, batches)
        done = writer.finish()
        spare_the_heap("write")
        return TaskWritten(done.partitions, done.is_repeat, slice_.query_id, done.transaction)
    except BaseException:
        writer.abandon()
        raise


def _encode(writer: SliceWriter, options: SinkOptions, slice_: Slice, batches: Iterable[RecordBatch]) -> None:
    # Compiled code is loaded only in workers: the driver creates a writer for every commit.
    from penstock.arrow.encode.batches import PartitionEncoder
    from penstock.arrow.encode.columns import record_columns
    from penstock.arrow.encode.routing import Router

    producer = options.producer
    # Half of the memory is for open batches, half (in the producer) for batches in flight.
    encoder = PartitionEncoder(
        producer.batch_size_bytes, producer.memory_bytes // 2, producer.compression, producer.compression_level
    )
    router = Router(options.topic, writer.partition_count, slice_.partition_id, producer.batch_size_bytes)

    def hand_over(closed: Iterable[ClosedBatch]) -> None:
        for slot, data, record_count in closed:
            writer.write(*router.targets[slot], data, record_count)
            encoder.batch_size_bytes = writer.batch_size_bytes

    for batch in batches:
        if batch.num_rows:
            columns = record_columns(batch, time.time_ns() // 1_000_000)
            slots = router.route(batch, columns)
            hand_over(encoder.resize(len(router.targets)))
            hand_over(encoder.add(columns, slots))
    hand_over(encoder.close_all())
