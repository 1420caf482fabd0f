"""Requests about many partitions, to all their leaders at once: every request is sent before an answer is awaited.

Must not know: how long to retry. Invariant: a connection is left without open requests, because others share it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.model.errors import ApiError
from penstock.model.topic_partition import TopicPartition
from penstock.wire.apis import Api
from penstock.wire.messages.list_offsets import ListOffsetsResponse
from penstock.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochResponse
from penstock.wire.primitives import Message
from penstock.wire_client.blocking.connection import BlockingConnection
from penstock.wire_client.requests.errors import WireClientError, error_code
from penstock.wire_client.requests.leader_epochs import EpochEnd, epoch_ends_request, read_epoch_ends
from penstock.wire_client.requests.limits import REQUEST_TIMEOUT_S
from penstock.wire_client.requests.offsets import OffsetAndTimestamp, list_offsets_request
from penstock.wire_client.requests.retriable import LOST, Again, may
from penstock.wire_client.requests.sentences import offsets_refused

if TYPE_CHECKING:
    from penstock.wire_client.blocking.cluster import BlockingCluster

A = TypeVar("A")
R = TypeVar("R", bound=Message)
T = TypeVar("T")


class Leader(NamedTuple):
    """The leader of a partition, as far as the metadata knows."""

    node_id: int
    epoch: int
    """-1 if it is not known."""


def ask_leaders(
    cluster: BlockingCluster,
    asked: Mapping[TopicPartition, A],
    key: Api,
    request: Callable[[Mapping[TopicPartition, A], Mapping[TopicPartition, int]], Message],
    kind: type[R],
    read: Callable[[R], Iterable[tuple[TopicPartition, int, T]]],
) -> dict[TopicPartition, T]:
    """`request` takes what is asked of one leader, and the leader epochs; `read` yields error codes and results.

    Partitions with an error are asked again as long as it may pass. Raises ApiError, WireClientError.
    """
    found: dict[TopicPartition, T] = {}

    def ask(deadline: float) -> dict[TopicPartition, T]:
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp in asked:
            if tp not in found:
                leader = cluster.find_leader(tp, deadline)
                by_leader.setdefault(leader.node_id, {})[tp] = leader.epoch
        failures: list[Exception] = []
        sent: list[BlockingConnection] = []
        for node_id, epochs in by_leader.items():
            try:
                connection = cluster.connection(node_id, "control")
                connection.send(key, request({tp: asked[tp] for tp in epochs}, epochs))
                sent.append(connection)
            except (WireClientError, ApiError) as error:
                failures.append(error)
        for connection in sent:
            try:
                answer = connection.receive(kind, max(0.05, min(REQUEST_TIMEOUT_S, deadline - time.monotonic())))
            except WireClientError as error:
                failures.append(error)
                continue
            for tp, number, result in read(answer):
                if number:
                    failures.append(offsets_refused(error_code(number), *tp))
                    cluster.forget(tp.topic)
                else:
                    found[tp] = result
        if failures:
            raise min(failures, key=_weight)
        return found

    return cluster.until_done(ask) if asked else {}


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

    return ask_leaders(cluster, wanted, Api.LIST_OFFSETS, request, ListOffsetsResponse, read)


def epoch_ends(cluster: BlockingCluster, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
    return ask_leaders(
        cluster,
        epochs,
        Api.OFFSET_FOR_LEADER_EPOCH,
        epoch_ends_request,
        OffsetForLeaderEpochResponse,
        read_epoch_ends,
    )
