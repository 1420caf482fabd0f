"""Where batches of a task wait: a lane for each partition, a line of requests for each broker.

A lane holds the unacknowledged batches of a partition in sequence order:

    unsent --> sent --> acknowledged
       ^         |
       +- failed-+     refused for now, or the connection was lost

Once one failed, nothing more is sent until all that was sent is answered; then what failed goes back in front of what
is unsent, and is sent to whoever leads the partition by then. So order holds whatever the broker made of the rest: a
batch behind a failed one is refused as out of order and sent again, or stored if the failed one is stored, too.

That rests on the broker's memory of this producer. One that has none takes any sequence number: if the first batch is
refused and the second was sent behind it, the second is stored first. So a lane sends one batch alone, and more only
when that is acknowledged; and begins so again after a failure.

Must not know: connections, what answers mean.
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
    """-1: not known, the broker only said that it has them."""


class ProducerIdentity:
    """A producer id, and for each partition its epoch and next sequence number there.

    Whoever uses it next goes on counting; so it is passed on only when all that was sent is acknowledged.
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
    """One partition."""

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
        """The leader has a batch of ours, and so knows which one comes next."""
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
    """Lanes that have something to send to it, and requests that it has not answered."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.connection: BlockingConnection | None = None
        self.ready: dict[Lane, None] = {}
        self.in_flight: deque[list[tuple[Lane, Batch]]] = deque()

    def take(self, max_bytes: int) -> list[tuple[Lane, Batch]]:
        """For one request: a batch of each ready lane, as far as they go in; always one."""
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
                self.ready[lane] = None  # behind the others
        return taken
