"""Requests about many partitions, to all their leaders at once: every request is sent before an answer is awaited.

Must not know: how long to retry. Invariant: a connection is left without open requests, because others share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from penstock.model.errors import ApiError
from penstock.model.topic_partition import TopicPartition
from penstock.ports.disk import Buffer
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchResponse
from penstock.wire.messages.list_offsets import ListOffsetsResponse
from penstock.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochResponse
from penstock.wire.primitives import Message
from penstock.wire_client.blocking.connection import BlockingConnection
from penstock.wire_client.requests.errors import WireClientError, error_code
from penstock.wire_client.requests.fetch import FetchFrom, FetchTerms, fetch_request
from penstock.wire_client.requests.leader_epochs import EpochEnd, epoch_ends_request, read_epoch_ends
from penstock.wire_client.requests.limits import REQUEST_TIMEOUT_S
from penstock.wire_client.requests.offsets import OffsetAndTimestamp, list_offsets_request
from penstock.wire_client.requests.retriable import LOST, Again, may
from penstock.wire_client.requests.sentences import offsets_refused

if TYPE_CHECKING:
    from penstock.wire_client.blocking.cluster import BlockingCluster

SAMPLES_BYTES = 4 << 20
"""Of all partitions in one sample of a leader."""

A = TypeVar("A")
R = TypeVar("R", bound=Message)
T = TypeVar("T")


class Leader(NamedTuple):
    """The leader of a partition, as far as the metadata knows."""

    node_id: int
    epoch: int
    """-1 if it is not known."""


@dataclass(frozen=True, slots=True)
class LeaderQuestion(Generic[A, R, T]):
    """What is asked of each leader, about all its partitions at once."""

    key: Api
    kind: type[R]
    request: Callable[[Mapping[TopicPartition, A], Mapping[TopicPartition, int]], Message]
    """Takes what is asked of one leader, and the leader epochs."""
    read: Callable[[R], Iterable[tuple[TopicPartition, int, T]]]
    """Yields error codes and results."""


def ask_leaders(
    cluster: BlockingCluster,
    asked: Mapping[TopicPartition, A],
    question: LeaderQuestion[A, R, T],
    timeout_s: float | None = None,
) -> dict[TopicPartition, T]:
    """Partitions with an error are asked again as long as it may pass. Raises ApiError, WireClientError."""
    found: dict[TopicPartition, T] = {}

    def ask(deadline: float) -> dict[TopicPartition, T]:
        leaders = {tp: cluster.find_leader(tp, deadline) for tp in asked if tp not in found}
        answered, failures = _ask_once(cluster, {tp: asked[tp] for tp in leaders}, leaders, question, deadline)
        found.update(answered)
        if failures:
            raise min(failures, key=_weight)
        return found

    return cluster.until_done(ask, timeout_s) if asked else {}


def _ask_once(
    cluster: BlockingCluster,
    asked: Mapping[TopicPartition, A],
    leaders: Mapping[TopicPartition, Leader],
    question: LeaderQuestion[A, R, T],
    deadline: float,
) -> tuple[dict[TopicPartition, T], list[Exception]]:
    """What the leaders answered, and what went wrong with the other partitions."""
    by_node: dict[int, dict[TopicPartition, int]] = {}
    for tp, leader in leaders.items():
        by_node.setdefault(leader.node_id, {})[tp] = leader.epoch
    found: dict[TopicPartition, T] = {}
    failures: list[Exception] = []
    sent: list[BlockingConnection] = []
    for node_id, epochs in by_node.items():
        try:
            connection = cluster.connection(node_id, "control")
            connection.send(question.key, question.request({tp: asked[tp] for tp in epochs}, epochs))
            sent.append(connection)
        except (WireClientError, ApiError) as error:
            failures.append(error)
    for connection in sent:
        try:
            answer = connection.receive(question.kind, max(0.05, min(REQUEST_TIMEOUT_S, deadline - time.monotonic())))
        except WireClientError as error:
            failures.append(error)
            continue
        for tp, number, result in question.read(answer):
            if number:
                failures.append(offsets_refused(error_code(number), *tp))
                cluster.forget(tp.topic)
            else:
                found[tp] = result
    return found, failures


def _weight(failure: Exception) -> int:
    """Errors that do not pass come first. A lost broker comes before an error that passes: all metadata is in doubt."""
    if isinstance(failure, LOST):
        return 1
    return 2 if isinstance(failure, ApiError) and may(Again.ASK, failure.code) else 0


def list_offsets(
    cluster: BlockingCluster, wanted: Mapping[TopicPartition, int], *, read_committed: bool
) -> dict[TopicPartition, OffsetAndTimestamp]:
    def request(asked: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]) -> Message:
        return list_offsets_request(
            asked, round(REQUEST_TIMEOUT_S * 1000), read_committed=read_committed, epochs=epochs
        )

    def read(answer: ListOffsetsResponse) -> Iterable[tuple[TopicPartition, int, OffsetAndTimestamp]]:
        for topic in answer.topics:
            for entry in topic.partitions:
                tp = TopicPartition(topic.name, entry.partition_index)
                yield tp, entry.error_code, OffsetAndTimestamp(entry.offset, entry.timestamp, entry.leader_epoch)

    return ask_leaders(cluster, wanted, LeaderQuestion(Api.LIST_OFFSETS, ListOffsetsResponse, request, read))


def epoch_ends(
    cluster: BlockingCluster, epochs: Mapping[TopicPartition, int], timeout_s: float | None = None
) -> dict[TopicPartition, EpochEnd]:
    question = LeaderQuestion(
        Api.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochResponse, epoch_ends_request, read_epoch_ends
    )
    return ask_leaders(cluster, epochs, question, timeout_s)


def first_batches(
    cluster: BlockingCluster, positions: Mapping[TopicPartition, int], partition_bytes: int, timeout_s: float
) -> dict[TopicPartition, Buffer]:
    """The batches at these positions: one small fetch from each leader, tried once.

    Partitions are left out if their leader is not known or does not answer in time, and also if their first batch is
    larger than `partition_bytes` (the first partition of a fetch always has an answer).
    """
    deadline = time.monotonic() + timeout_s
    leaders = cluster.known_leaders(positions.keys(), timeout_s)
    terms = FetchTerms(max_wait_ms=0, min_bytes=1, max_bytes=SAMPLES_BYTES, read_committed=False)

    def request(asked: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]) -> Message:
        return fetch_request({tp: FetchFrom(at, partition_bytes, epochs[tp]) for tp, at in asked.items()}, terms)

    def read(answer: FetchResponse) -> Iterable[tuple[TopicPartition, int, Buffer]]:
        for topic in answer.responses:
            for entry in topic.partitions:
                records = entry.records
                assert records is None or isinstance(records, memoryview)
                yield TopicPartition(topic.topic, entry.partition_index), entry.error_code, records or b""

    asked = {tp: positions[tp] for tp in leaders}
    found, failures = _ask_once(
        cluster, asked, leaders, LeaderQuestion(Api.FETCH, FetchResponse, request, read), deadline
    )
    for tp in leaders.keys() - found.keys() if failures else ():
        cluster.forget(tp.topic)  # the leader may be another one
    return {tp: records for tp, records in found.items() if records}
