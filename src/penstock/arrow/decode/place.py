"""Whether fetched batches are those that were asked for.

The checksum of a batch does not cover its base offset. With a damaged one a batch looks like one that was already read,
or like one after a hole left by compaction. A base offset that is too large, but within the log, is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.arrow.decode.errors import CorruptRecordBatch
from penstock.model.topic_partition import TopicPartition
from penstock.ports.disk import Buffer
from penstock.records.batch import read_header


class Answer(NamedTuple):
    """The answer for an offset."""

    tp: TopicPartition
    position: int
    """That offset."""
    records: Buffer
    next_offset: int
    """The offset after the last whole batch."""
    high_watermark: int


def check_place(answer: Answer, log_end: Callable[[], int]) -> None:
    """`log_end` asks the leader. Raises CorruptRecordBatch."""
    topic, partition = answer.tp
    position = answer.position
    header = read_header(answer.records)
    if header.next_offset <= position:
        reason = f"it ends at {header.next_offset}, but is the answer for offset {position}"
        raise CorruptRecordBatch(topic, partition, header.base_offset, reason)
    if answer.next_offset <= answer.high_watermark:
        return
    end = log_end()  # Kafka reads its high watermark before the records
    if answer.next_offset > end:
        at = 0
        while header.next_offset < answer.next_offset:
            position = header.next_offset
            at += header.size_bytes
            header = read_header(answer.records, at)
        reason = f"it is beyond the end of the log ({end}), at the place of offset {position}"
        raise CorruptRecordBatch(topic, partition, header.base_offset, reason)
