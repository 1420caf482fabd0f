"""Waits for records beyond given offsets, of many partitions: one open fetch at each leader.

A fetch stays open at the broker for a second at most, even while nobody waits here. Its answer only says that it is
time to look: the records in it are dropped. Must not know: who looks, and for what. Invariants:
- A wait ends in time, unless a leader has to be connected to. It may say that there is news where there is none, but
  not the opposite for longer than an open fetch lives.
- After a failure nothing is asked for `FAILED_S`, and a wait is a short pause.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.model.errors import ApiError
from penstock.model.topic_partition import TopicPartition
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchResponse, PartitionData
from penstock.wire_client.blocking.connection import BlockingConnection, thread_buffer
from penstock.wire_client.blocking.fetch_stream import readable
from penstock.wire_client.requests.errors import WireClientError, check
from penstock.wire_client.requests.fetch import FetchFrom, FetchTerms, fetch_request
from penstock.wire_client.requests.limits import REQUEST_TIMEOUT_S

if TYPE_CHECKING:
    from penstock.wire_client.blocking.cluster import BlockingCluster

OPEN_MS = 1000
FAILED_S = 1.0
PAUSE_S = 0.05
LOOK_UP_S = 0.5


class LongPoll:
    def __init__(self, cluster: BlockingCluster, *, read_committed: bool) -> None:
        self._cluster = cluster
        self._terms = FetchTerms(OPEN_MS, 1, 1, read_committed)  # one byte: the smallest answer that brokers give
        self._open: dict[int, BlockingConnection] = {}
        self._failed_at: float | None = None

    def wait(self, positions: Mapping[TopicPartition, int], timeout_s: float) -> bool:
        """Whether there is anything at or beyond one of the positions, or that cannot be known."""
        deadline = time.monotonic() + timeout_s
        if self._failed_at is not None and time.monotonic() - self._failed_at < FAILED_S:
            time.sleep(min(PAUSE_S, timeout_s))
            return True
        self._failed_at = None
        try:
            while True:
                self._ask(positions)
                ready = self._ready(max(0.0, deadline - time.monotonic()))
                if not ready:
                    return False
                has_news = [self._has_news(node_id, positions) for node_id in ready]  # takes all answers
                if any(has_news):
                    return True
        except (ApiError, WireClientError):
            self._failed_at = time.monotonic()
            self.close()
            return True

    def close(self) -> None:
        while self._open:
            self._cluster.give_back(self._open.popitem()[1])

    def _ask(self, positions: Mapping[TopicPartition, int]) -> None:
        """Opens a fetch at each leader that has none."""
        leaders = self._cluster.known_leaders(positions.keys(), LOOK_UP_S)
        by_node: dict[int, dict[TopicPartition, FetchFrom]] = {}
        for tp, leader in leaders.items():
            by_node.setdefault(leader.node_id, {})[tp] = FetchFrom(positions[tp], 1, leader.epoch)
        for node_id, asked in by_node.items():
            if node_id not in self._open:
                connection = self._open[node_id] = self._cluster.lease(node_id)
                connection.send(Api.FETCH, fetch_request(asked, self._terms))

    def _ready(self, timeout_s: float) -> list[int]:
        """The leaders that have answered. Those that no longer lead anything end with their answer."""
        poll = select.poll()
        node_of = {}
        for node_id, connection in self._open.items():
            node_of[connection.fileno()] = node_id
            poll.register(connection.fileno(), select.POLLIN)
        return [node_of[number] for number, _ in poll.poll(timeout_s * 1000)]

    def _has_news(self, node_id: int, positions: Mapping[TopicPartition, int]) -> bool:
        connection = self._open.pop(node_id)
        try:
            answer = connection.receive(FetchResponse, REQUEST_TIMEOUT_S, thread_buffer())
        finally:
            self._cluster.give_back(connection)
        check(answer.error_code)
        return any(self._is_news(tp, data, positions) for tp, data in _entries(answer))

    def _is_news(self, tp: TopicPartition, data: PartitionData, positions: Mapping[TopicPartition, int]) -> bool:
        if data.error_code:
            self._cluster.forget(tp.topic)
            self._failed_at = time.monotonic()  # the next fetch would have the same answer
            return True
        return tp in positions and readable(data, self._terms.read_committed) > positions[tp]


def _entries(answer: FetchResponse) -> Iterator[tuple[TopicPartition, PartitionData]]:
    for topic in answer.responses:
        for entry in topic.partitions:
            yield TopicPartition(topic.topic, entry.partition_index), entry
