"""A producer for one task: it sends closed batches in order until all are acknowledged, or raises an error.

It blocks and has one thread. Requests are pipelined, up to `max_in_flight` per broker; a request has at most one batch
of a partition. With idempotence each batch has a producer id and a sequence number, so a batch that is sent again after
a lost answer is stored once. Tasks reuse the id (`ProducerIdentity`): a broker remembers each id for a day, and a query
may run a million tasks in that time. `spark.lanes` keeps the order.

In a transaction (`WriterTransaction`) the identity is the transaction's. A lost sequence number cannot be mended by a
new epoch there: the task fails, and its transaction is aborted.

Must not know: rows, Spark, what a task may repeat (`sink.delivery`), how a transaction begins and ends.
Invariants: `unsent` of a failed lane is not touched; batches held are bounded by `memory_bytes`, plus one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.arrow.encode.closed import halves, stamp
from penstock.model.errors import ErrorCode, PenstockError
from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import NO_PRODUCER_ID, NO_SEQUENCE, add_sequence
from penstock.spark.sink.lanes import Batch, BrokerLine, Lane, PartitionWritten, ProducerIdentity
from penstock.spark.sink.options import ProducerOptions
from penstock.wire.apis import Api
from penstock.wire.messages.produce import PartitionProduceResponse, ProduceResponse
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.transactions import Transactions
from penstock.wire_client.requests.errors import error_code
from penstock.wire_client.requests.produce import LOST_PLACE, TOO_LARGE, produce_request, read_produced
from penstock.wire_client.requests.producing_transactions import OpenTransaction
from penstock.wire_client.requests.retriable import LOST, Again, may

NO_EPOCH = -1


class DeliveryFailed(PenstockError):
    """Rows could not be written. The message has the partition, the reason and what to do."""


class TaskProducer:
    def __init__(
        self,
        cluster: BlockingCluster,
        options: ProducerOptions,
        identity: ProducerIdentity | None = None,
        transaction: OpenTransaction | None = None,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._transaction = transaction
        if transaction is not None:
            identity = ProducerIdentity(transaction.producer_id, transaction.epoch)
        self.identity = identity
        """None: requested with the first batch. It may be passed on only after `flush`."""
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._brokers: dict[int, BrokerLine] = {}
        self._homeless: dict[Lane, None] = {}
        self._held_bytes = 0
        self._unsent_bytes = 0
        self.batch_size_bytes = options.batch_size_bytes
        """The batch size: smaller than configured after a topic refused a batch as too large."""

    def send(self, topic: str, partition: int, data: bytearray, record_count: int) -> None:
        """Takes a closed batch, which is sent when a request is full. Raises the errors of `flush`."""
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = self._lanes[topic, partition] = self._lane(TopicPartition(topic, partition))
        batch = Batch(data, record_count, time.monotonic() + self._options.delivery_timeout_ms / 1000)
        self._number(lane, batch)
        lane.unsent.append(batch)
        self._offer(lane)
        self._held_bytes += len(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes >= self._options.max_request_bytes:
            self._pump()
        while self._held_bytes > self._options.memory_bytes:
            self._wait()
            self._pump()

    def flush(self) -> None:
        """Waits until everything is acknowledged. Raises DeliveryFailed, ApiError or WireClientError."""
        while self._held_bytes:
            self._pump()
            self._wait()
        if self.identity is not None:
            for lane in self._lanes.values():
                self.identity.places[lane.tp] = (lane.epoch, lane.next_sequence)

    def written(self) -> Iterator[PartitionWritten]:
        for (topic, partition), lane in sorted(self._lanes.items()):
            if lane.records:
                yield PartitionWritten(topic, partition, lane.records, lane.last_offset)

    def close(self) -> None:
        """Keeps connections without open requests for the next task, and closes the others."""
        for broker in self._brokers.values():
            if broker.connection is not None:
                self._cluster.give_back(broker.connection)
        self._brokers.clear()

    # -- sequence numbers ---------------------------------------------------------------

    def _lane(self, tp: TopicPartition) -> Lane:
        if not self._options.is_idempotent:
            return Lane(tp, NO_EPOCH, NO_SEQUENCE)
        if self.identity is None:
            self.identity = ProducerIdentity(*self._cluster.init_producer_id())
        if self._transaction is not None:
            Transactions(self._cluster).add_partitions(self._transaction, [tp])
        return Lane(tp, *self.identity.places.get(tp, (self.identity.epoch, 0)))

    def _number(self, lane: Lane, batch: Batch) -> None:
        batch.sequence = lane.next_sequence
        lane.next_sequence = add_sequence(lane.next_sequence, batch.record_count)
        self._stamp(lane, batch)

    def _stamp(self, lane: Lane, batch: Batch) -> None:
        producer_id = NO_PRODUCER_ID if self.identity is None else self.identity.producer_id
        stamp(batch.data, producer_id, lane.epoch, batch.sequence, transactional=self._transaction is not None)

    def _renumber(self, lane: Lane) -> None:
        """Starts a new epoch at sequence number 0 for unacknowledged batches: the broker lost its place (KIP-360)."""
        lane.needs_new_epoch = False
        lane.epoch += 1
        lane.next_sequence = 0
        for batch in lane.unsent:
            self._number(lane, batch)

    # -- sending ------------------------------------------------------------------------

    def _offer(self, lane: Lane) -> None:
        """Queues a lane with batches to send for its broker, or for a leader."""
        if not lane.may_send:
            return
        if lane.broker is None:
            self._homeless[lane] = None
        else:
            lane.broker.ready[lane] = None

    def _pump(self) -> None:
        """Sends everything that may be sent now. Waits for answers of brokers with enough requests in flight."""
        self._unsent_bytes = 0
        for lane in [lane for lane in self._homeless if lane.pause_until <= time.monotonic()]:
            del self._homeless[lane]
            self._find_leader(lane)
        for broker in self._brokers.values():
            while broker.ready:
                if len(broker.in_flight) >= self._options.max_in_flight:
                    self._receive(broker)
                else:
                    self._request(broker)

    def _find_leader(self, lane: Lane) -> None:
        left_s = max(0.0, lane.unsent[0].deadline - time.monotonic())
        node_id = self._cluster.leader(lane.tp, left_s).node_id
        broker = self._brokers.get(node_id)
        if broker is None:
            broker = self._brokers[node_id] = BrokerLine(node_id)
        lane.broker = broker
        broker.ready[lane] = None

    def _request(self, broker: BrokerLine) -> None:
        taken = broker.take(self._options.max_request_bytes)
        broker.in_flight.append(taken)
        batches = ((lane.tp, batch.data) for lane, batch in taken)
        of = self._transaction
        transactional_id = None if of is None else of.transactional_id
        request = produce_request(batches, self._options.acks, self._options.request_timeout_ms, transactional_id)
        try:
            if broker.connection is None:
                broker.connection = self._cluster.lease(broker.node_id)
            newest = broker.connection.newest(Api.PRODUCE, None if of is None else of.newest(Api.PRODUCE))
            broker.connection.send(Api.PRODUCE, request, version=newest)
        except LOST as error:
            self._lose(broker, str(error))

    # -- answers ------------------------------------------------------------------------

    def _wait(self) -> None:
        """Waits for one answer, or, if none is due, until a lane may retry."""
        busy = next((broker for broker in self._brokers.values() if broker.in_flight), None)
        if busy is not None:
            self._receive(busy)
        elif self._homeless:
            time.sleep(max(0.0, min(lane.pause_until for lane in self._homeless) - time.monotonic()))

    def _receive(self, broker: BrokerLine) -> None:
        assert broker.connection is not None
        try:
            # The broker answers within the request's timeout; the extra time is for the network.
            answer = broker.connection.receive(ProduceResponse, self._options.request_timeout_ms / 1000 + 5)
        except LOST as error:
            self._lose(broker, str(error))
            return
        entries = read_produced(answer)
        for lane, batch in broker.in_flight.popleft():
            oldest = lane.sent.popleft()
            assert oldest is batch
            entry = entries.get(lane.tp)
            if entry is None:
                raise DeliveryFailed(f"{lane.name}: the partition is missing from the broker's answer")
            self._judge(lane, batch, entry)
            if lane.failed and not lane.sent:
                self._rewind(lane)
            else:
                self._offer(lane)

    def _lose(self, broker: BrokerLine, reason: str) -> None:
        """Handles a lost connection: unanswered batches may or may not be stored."""
        if broker.connection is not None:
            broker.connection.close()
            broker.connection = None
        lanes: dict[Lane, None] = {}
        for taken in broker.in_flight:
            for lane, batch in taken:
                lane.sent.popleft()
                lane.failed.append(batch)
                lane.failure = reason
                lanes[lane] = None
        broker.in_flight.clear()
        for lane in lanes:
            self._pause(lane)
            self._rewind(lane)

    def _judge(self, lane: Lane, batch: Batch, entry: PartitionProduceResponse) -> None:
        code = error_code(entry.error_code)
        if code is ErrorCode.NONE or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._held_bytes -= len(batch.data)
            lane.is_known = True
            lane.records += batch.record_count
            if code is ErrorCode.NONE and entry.base_offset >= 0:
                lane.last_offset = max(lane.last_offset, entry.base_offset + batch.record_count - 1)
            return
        lane.failure = entry.error_message or code.name
        if code in TOO_LARGE and batch.record_count > 1:
            self._split(lane, batch)
        elif code in LOST_PLACE and self._options.is_idempotent:
            # Expected after a failed batch. But the first batch was the next in sequence.
            lane.needs_new_epoch = lane.needs_new_epoch or not lane.failed
            if lane.needs_new_epoch and self._transaction is not None:
                raise DeliveryFailed(_refusal(lane, batch, code))
            lane.failed.append(batch)
            self._pause(lane)
        elif may(Again.DELIVER, code):
            lane.failed.append(batch)
            self._pause(lane)
        else:
            raise DeliveryFailed(_refusal(lane, batch, code))

    def _split(self, lane: Lane, batch: Batch) -> None:
        """Splits a batch. Sequence numbers count records, so the halves cover the same numbers."""
        self.batch_size_bytes = min(self.batch_size_bytes, len(batch.data) // 2)
        self._held_bytes -= len(batch.data)
        sequence = batch.sequence
        for data, record_count in halves(batch.data):
            half = Batch(data, record_count, batch.deadline)
            half.sequence = sequence
            sequence = add_sequence(sequence, record_count)
            self._stamp(lane, half)
            self._held_bytes += len(data)
            lane.failed.append(half)

    def _pause(self, lane: Lane) -> None:
        lane.pause_until = time.monotonic() + self._options.retry_backoff_ms / 1000
        self._cluster.forget(lane.tp.topic)

    def _rewind(self, lane: Lane) -> None:
        """Puts failed batches first again, once all sent batches are answered."""
        if lane.failed[0].deadline < time.monotonic():
            raise DeliveryFailed(
                f"{lane.name}: not acknowledged within kafka.delivery.timeout.ms="
                f"{self._options.delivery_timeout_ms}: {lane.failure}"
            )
        if lane.broker is not None:
            lane.broker.ready.pop(lane, None)
            lane.broker = None
        lane.unsent.extendleft(reversed(lane.failed))
        lane.failed.clear()
        lane.is_known = False
        if lane.needs_new_epoch:
            self._renumber(lane)
        self._offer(lane)


def _refusal(lane: Lane, batch: Batch, code: ErrorCode) -> str:
    what = f"a batch of {len(batch.data)} bytes ({batch.record_count} records)"
    if code in TOO_LARGE:
        return (
            f"{lane.name}: a record makes {what}, too large for topic '{lane.tp.topic}': {lane.failure}; raise its "
            "max.message.bytes, or write smaller values"
        )
    if code is ErrorCode.INVALID_TIMESTAMP:
        return f"{lane.name}: {what} is refused: {lane.failure}; check the column timestamp"
    if code is ErrorCode.INVALID_RECORD:
        return f"{lane.name}: {what} is refused: {lane.failure}; a compacted topic needs a key in every row"
    return f"{lane.name}: {what} is refused with {code.name}: {lane.failure}"
