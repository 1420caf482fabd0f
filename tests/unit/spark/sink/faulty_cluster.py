"""Brokers in memory that keep Kafka's rules for idempotent producers and lose, refuse and forget as they are told.

They stand where `BlockingCluster` stands. Fair faults: a request or its answer is lost with the connection; a batch is
refused and not stored; it is stored and refused all the same; the leader moves. Stored batches stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.records.batch import validate_produced
from penstock.records.builder import decode_uncompressed
from penstock.storage.producers.producer_state import ProducerStates
from penstock.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost
from penstock.wire_client.requests.metadata import BrokerMetadata

NOT_STORED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR)
STORED_ALL_THE_SAME = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

Verdict = Callable[[TopicPartition, bytes], ErrorCode | None]
"""Before a batch is stored: None, or the error that is answered instead of storing it."""


class Log:
    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.states = ProducerStates()

    def append(self, data: bytes) -> int:
        header = validate_produced(data)
        if header.producer_id >= 0 and (known := self.states.check(header)) is not None:
            return known
        base_offset = len(self.values)
        self.values += [record.value or b"" for record in decode_uncompressed(data)]
        if header.producer_id >= 0:
            self.states.update(header, base_offset, data)
        return base_offset


class FaultyCluster:
    def __init__(self, seed: int = 0, fault_rate: float = 0.0, verdict: Verdict | None = None) -> None:
        self.random = Random(seed)
        self.fault_rate = fault_rate
        self.verdict = verdict
        self.logs: dict[TopicPartition, Log] = {}
        self.leaders: dict[TopicPartition, int] = {}
        self.requests: list[int] = []
        """How many batches each had."""
        self.most_outstanding = 0
        self.producer_ids = 0

    def happens(self) -> bool:
        return self.random.random() < self.fault_rate

    # -- as a BlockingCluster -----------------------------------------------------------

    def init_producer_id(self) -> tuple[int, int]:
        self.producer_ids += 1
        return 1000 + self.producer_ids, 0

    def leader(self, tp: TopicPartition, timeout_s: float | None = None) -> BrokerMetadata:
        if tp not in self.leaders or self.happens():
            self.leaders[tp] = self.random.choice((1, 2))
        # Old news, sometimes.
        node_id = self.random.choice((1, 2)) if self.happens() else self.leaders[tp]
        return BrokerMetadata(node_id, "host", node_id, None)

    def forget(self, topic: str) -> None:
        pass

    def lease(self, node_id: int) -> Any:
        if self.happens():
            raise BrokerUnreachable("nobody is there")
        return FaultyConnection(self, node_id)

    def give_back(self, connection: Any) -> None:
        assert not connection.outstanding

    # -- as brokers ---------------------------------------------------------------------

    def produce(self, node_id: int, request: ProduceRequest) -> ProduceResponse:
        response = ProduceResponse()
        for topic in request.topic_data:
            entries = []
            for data in topic.partition_data:
                assert isinstance(data.records, bytes)
                entries.append(self._append(node_id, TopicPartition(topic.name, data.index), data.records))
            response.responses.append(TopicProduceResponse(name=topic.name, partition_responses=entries))
        return response

    def _append(self, node_id: int, tp: TopicPartition, data: bytes) -> PartitionProduceResponse:
        entry = PartitionProduceResponse(index=tp.partition, base_offset=-1)
        refusal = self.verdict(tp, data) if self.verdict is not None else None
        if refusal is None and self.happens():
            refusal = self.random.choice(NOT_STORED)
        if node_id != self.leaders[tp]:
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if refusal is not None:
            entry.error_code = refusal
            return entry
        try:
            entry.base_offset = self.logs.setdefault(tp, Log()).append(data)
        except ApiError as error:
            entry.error_code, entry.error_message = error.code, error.message
            return entry
        if self.happens():
            entry.error_code = self.random.choice(STORED_ALL_THE_SAME)
        return entry


class FaultyConnection:
    def __init__(self, cluster: FaultyCluster, node_id: int) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._answers: deque[ProduceResponse | None] = deque()
        self._is_lost = False

    @property
    def outstanding(self) -> int:
        return len(self._answers)

    def newest(self, key: object, cap: int | None = None) -> int:
        return 12

    def send(self, key: object, request: ProduceRequest, *, version: int) -> None:
        if self._is_lost:
            raise ConnectionLost("it was lost before")
        batches = [data for topic in request.topic_data for data in topic.partition_data]
        self._cluster.requests.append(len(batches))
        for data in batches:
            data.records = bytes(data.records)  # type: ignore[arg-type]  # as the wire would
        if self._cluster.happens():
            self._is_lost = True  # on the way there
            raise ConnectionLost("reset by peer")
        answer = self._cluster.produce(self._node_id, request)
        self._answers.append(None if self._cluster.happens() else answer)
        self._cluster.most_outstanding = max(self._cluster.most_outstanding, len(self._answers))

    def receive(self, kind: type[ProduceResponse], timeout_s: float) -> ProduceResponse:
        answer = self._answers.popleft()
        if answer is None:
            self._is_lost = True  # on the way back
            self._answers.clear()
            raise ConnectionLost("reset by peer")
        return answer

    def close(self) -> None:
        self._is_lost = True
        self._answers.clear()
