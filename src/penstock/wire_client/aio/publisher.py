"""Publishing records: each partition has a lane with one request in flight, and waiting records form the next batch.

So a single record is sent at once, and many records share batches, without a timer. Must not know: the publisher.
Invariants: records of a lane keep their order. A record is sent again only if the broker answered that it was not
appended. The queue is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode, OutcomeUnknown
from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record, build_batch
from penstock.wire.apis import Api
from penstock.wire.messages.produce import PartitionProduceResponse, ProduceResponse
from penstock.wire.primitives import Message
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.requests.errors import BrokerUnreachable, Overloaded, WireClientError, error_code
from penstock.wire_client.requests.metadata import TopicMetadata
from penstock.wire_client.requests.partitioner import RoundRobin, partition_for_key
from penstock.wire_client.requests.produce import ACKS_ALL, produce_request
from penstock.wire_client.requests.retriable import Again, may
from penstock.wire_client.requests.sentences import no_such_partition, partition_refused

TIMEOUT_MS = 30_000
RETRY_FOR_S = 10.0
RETRY_PAUSE_S = 0.1
MAX_BATCH_BYTES = 512 << 10
MAX_BATCH_RECORDS = 10_000
MAX_QUEUED_BYTES = 64 << 20
RECORD_OVERHEAD_BYTES = 100


class Produced(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int


class _Queued(NamedTuple):
    record: Record
    size_bytes: int
    future: asyncio.Future[Produced]


class _Lane:
    __slots__ = ("partition", "queue", "task", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.queue: deque[_Queued] = deque()
        self.task: asyncio.Task[None] | None = None


class Publisher:
    def __init__(self, cluster: AsyncCluster) -> None:
        self._cluster = cluster
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._round_robin = RoundRobin()
        self._queued_bytes = 0

    async def publish(self, topic: str, record: Record, partition: int | None = None) -> Produced:
        """Returns when the record is acknowledged by all in-sync replicas.

        Raises ApiError or WireClientError; OutcomeUnknown if the record may have been appended.
        """
        return await self.enqueue(await self._cluster.topic(topic, create=True), record, partition)

    def enqueue(self, topic: TopicMetadata, record: Record, partition: int | None = None) -> asyncio.Future[Produced]:
        """Takes a record. Records keep their order within a partition."""
        count = len(topic.partitions)
        if partition is None:
            if record.key is None:
                partition = self._round_robin.choose(topic.name, count)
            else:
                partition = partition_for_key(record.key, count)
        elif not 0 <= partition < count:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, no_such_partition(topic.name, partition))
        size = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
        if self._queued_bytes + size > MAX_QUEUED_BYTES:
            raise Overloaded(f"more than {MAX_QUEUED_BYTES} bytes wait to be written; try again later")
        self._queued_bytes += size
        lane = self._lanes.get((topic.name, partition))
        if lane is None:
            lane = self._lanes[topic.name, partition] = _Lane(topic.name, partition)
        queued = _Queued(record, size, asyncio.get_running_loop().create_future())
        queued.future.add_done_callback(_seen)
        lane.queue.append(queued)
        if lane.task is None:
            lane.task = asyncio.create_task(self._drain(lane))
        return queued.future

    async def _drain(self, lane: _Lane) -> None:
        while lane.queue:
            await self._deliver(lane, self._next_batch(lane))
        lane.task = None
        del self._lanes[lane.topic, lane.partition]

    def _next_batch(self, lane: _Lane) -> list[_Queued]:
        batch: list[_Queued] = []
        size = 0
        while lane.queue and len(batch) < MAX_BATCH_RECORDS:
            if batch and size + lane.queue[0].size_bytes > MAX_BATCH_BYTES:
                break
            queued = lane.queue.popleft()
            self._queued_bytes -= queued.size_bytes
            size += queued.size_bytes
            if not queued.future.cancelled():
                batch.append(queued)
        return batch

    async def _deliver(self, lane: _Lane, batch: list[_Queued]) -> None:
        if not batch:
            return
        try:
            answer = await self._send(lane, [queued.record for queued in batch])
        except ApiError as error:
            if len(batch) > 1 and not isinstance(error, OutcomeUnknown):
                # One of the records is bad: each is sent alone, in order.
                for queued in batch:
                    await self._deliver(lane, [queued])
                return
            _fail(batch, error)
        except WireClientError as error:
            _fail(batch, error)
        else:
            for delta, queued in enumerate(batch):
                if not queued.future.done():
                    appended_ms = answer.log_append_time_ms
                    timestamp = queued.record.timestamp_ms if appended_ms < 0 else appended_ms
                    queued.future.set_result(Produced(lane.partition, answer.base_offset + delta, timestamp))

    async def _send(self, lane: _Lane, records: list[Record]) -> PartitionProduceResponse:
        tp = TopicPartition(lane.topic, lane.partition)
        request = produce_request([(tp, build_batch(records))], ACKS_ALL, TIMEOUT_MS)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_FOR_S
        while True:
            code, message = ErrorCode.NONE, None
            try:
                leader = await self._cluster.leader(lane.topic, lane.partition)
                connection = await self._cluster.produce(leader)
                answer = connection.send(Api.PRODUCE, request)
            except BrokerUnreachable:
                if loop.time() > deadline:
                    raise
            else:
                result = await self._result(answer)
                code, message = error_code(result.error_code), result.error_message
                if code is ErrorCode.NONE:
                    return result
                if code is ErrorCode.INVALID_RECORD and result.record_errors:
                    message = _why(lane, records, result)
                if not may(Again.APPEND, code) or loop.time() > deadline:
                    raise ApiError(code, message or partition_refused(code, lane.topic, lane.partition))
            self._cluster.forget(lane.topic)
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _result(self, answer: asyncio.Future[Message]) -> PartitionProduceResponse:
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000 + 5):
                response = await answer
        except TimeoutError as error:
            raise OutcomeUnknown(ErrorCode.REQUEST_TIMED_OUT, "no answer in time; it may have been written") from error
        except WireClientError as error:
            raise OutcomeUnknown(ErrorCode.NETWORK_EXCEPTION, f"{error}; it may have been written") from error
        assert isinstance(response, ProduceResponse)
        result = response.responses[0].partition_responses[0]
        if result.error_code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            raise OutcomeUnknown(error_code(result.error_code), "written, but not acknowledged by enough replicas")
        return result

    async def close(self) -> None:
        """Returns after all queued records are delivered or have failed."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)


def _why(lane: _Lane, records: Iterable[Record], answer: PartitionProduceResponse) -> str | None:
    """The reason for a refused record, which the message for the whole batch does not give."""
    if any(record.key is None for record in records):
        return f"a compacted topic needs a key, and topic '{lane.topic}' is compacted"
    return answer.record_errors[0].batch_index_error_message or answer.error_message


def _seen(future: asyncio.Future[Produced]) -> None:
    """Marks the exception as retrieved: the publisher may have been cancelled before the failure."""
    if not future.cancelled():
        future.exception()


def _fail(batch: Iterable[_Queued], error: ApiError | WireClientError) -> None:
    for queued in batch:
        if not queued.future.done():
            queued.future.set_exception(error)
