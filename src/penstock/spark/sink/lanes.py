"""The queues of a task's batches: a lane for each partition, and a line of requests for each broker.

A lane holds the unacknowledged batches of a partition in sequence order:

    unsent --> sent --> acknowledged
       ^         |
       +- failed-+     temporarily refused, or the connection was lost

After a failure nothing more is sent until all sent batches are answered. Then failed batches go back to the front of
the unsent ones, and are sent to the partition's present leader. So the order holds, whatever the broker did with the
rest: a batch after a failed one is refused as out of order and sent again, or stored if the failed one was stored, too.

This relies on the broker's memory of the producer. A broker without it accepts any sequence number: if the first batch
is refused and the second was sent right after it, the second is stored first. So a lane first sends a single batch, and
more only when that is acknowledged; the same after a failure.

Must not know: connections, the meaning of answers.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import NO_SEQUENCE
from penstock.wire_client.blocking.connection import BlockingConnection

NO_OFFSET = -1


class PartitionWritten(NamedTuple):
    topic: str
    partition: int
    records: int
    last_offset: int
    """-1 if unknown: the broker only confirmed that it has the records."""


class ProducerIdentity:
    """A producer id, and for each partition its epoch and next sequence number.

    The next user of the id continues the sequence, so it is passed on only when everything is acknowledged.
    """

    __slots__ = ("epoch", "places", "producer_id")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.places: dict[TopicPartition, tuple[int, int]] = {}


class Batch:
    __slots__ = ("data", "deadline", "record_count", "sequence")

    def __init__(self, data: bytearray, record_count: int, deadline: float) -> None:
        self.data = data
        self.record_count = record_count
        self.deadline = deadline
        self.sequence = NO_SEQUENCE


class Lane:
    """The queue of one partition."""

    def __init__(self, tp: TopicPartition, epoch: int, next_sequence: int) -> None:
        self.tp = tp
        self.epoch = epoch
        self.next_sequence = next_sequence
        self.unsent: deque[Batch] = deque()
        self.sent: deque[Batch] = deque()
        self.failed: deque[Batch] = deque()
        self.failure = ""
        self.needs_new_epoch = False
        self.is_known = False
        """The leader has a batch of this producer, and so knows the next sequence number."""
        self.pause_until = 0.0
        self.broker: BrokerLine | None = None
        self.records = 0
        self.last_offset = NO_OFFSET

    @property
    def name(self) -> str:
        return f"{self.tp.topic}-{self.tp.partition}"

    @property
    def may_send(self) -> bool:
        return bool(self.unsent) and not self.failed and (self.is_known or not self.sent)


class BrokerLine:
    """Lanes with batches for a broker, and requests that it has not answered."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.connection: BlockingConnection | None = None
        self.ready: dict[Lane, None] = {}
        self.in_flight: deque[list[tuple[Lane, Batch]]] = deque()

    def take(self, max_bytes: int) -> list[tuple[Lane, Batch]]:
        """The batches of one request: one from each ready lane, as many as fit, but at least one."""
        taken: list[tuple[Lane, Batch]] = []
        size = 0
        for lane in list(self.ready):
            size += len(lane.unsent[0].data)
            if taken and size > max_bytes:
                break
            batch = lane.unsent.popleft()
            lane.sent.append(batch)
            taken.append((lane, batch))
            del self.ready[lane]
            if lane.may_send:
                self.ready[lane] = None  # to the end of the line
        return taken
