"""Reassignments of replicas and leader elections, with one result for each partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from penstock.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from penstock.wire_client.requests.errors import check, error_code

PREFERRED, UNCLEAN = 0, 1

Targets: TypeAlias = Mapping[tuple[str, int], Sequence[int] | None]
"""The wanted replicas of partitions. None cancels a reassignment in progress."""


class ReplicaMove(NamedTuple):
    """A reassignment under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    """The target replicas, and the replicas to be removed."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class PartitionOutcome(NamedTuple):
    """The result for one partition of a request."""

    topic: str
    partition: int
    code: ErrorCode
    message: str


# -- reassignments ----------------------------------------------------------------------


def reassign_request(targets: Targets, timeout_ms: int) -> AlterPartitionReassignmentsRequest:
    topics: dict[str, list[ReassignablePartition]] = {}
    for (topic, partition), replicas in targets.items():
        asked = None if replicas is None else list(replicas)
        topics.setdefault(topic, []).append(ReassignablePartition(partition_index=partition, replicas=asked))
    return AlterPartitionReassignmentsRequest(
        timeout_ms=timeout_ms,
        topics=[ReassignableTopic(name=topic, partitions=asked) for topic, asked in topics.items()],
    )


def read_reassigned(answer: AlterPartitionReassignmentsResponse) -> list[PartitionOutcome]:
    """The results by topic and partition. Raises ApiError if the whole request was refused."""
    check(answer.error_code, answer.error_message)
    return sorted(
        _outcome(topic.name, one.partition_index, one.error_code, one.error_message)
        for topic in answer.responses
        for one in topic.partitions
    )


def moves_request(
    timeout_ms: int, topics: list[ListPartitionReassignmentsTopics] | None = None
) -> ListPartitionReassignmentsRequest:
    """None requests all reassignments in progress."""
    return ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=topics)


def read_moves(answer: ListPartitionReassignmentsResponse) -> list[ReplicaMove]:
    """The reassignments by topic and partition. Raises ApiError."""
    check(answer.error_code, answer.error_message)
    return sorted(
        ReplicaMove(
            topic.name,
            one.partition_index,
            tuple(one.replicas),
            tuple(one.adding_replicas),
            tuple(one.removing_replicas),
        )
        for topic in answer.topics
        for one in topic.partitions
    )


# -- elections --------------------------------------------------------------------------


def elect_request(
    topics: Mapping[str, Sequence[int]] | None, timeout_ms: int, *, is_unclean: bool = False
) -> ElectLeadersRequest:
    """None means all partitions."""
    asked = None
    if topics is not None:
        asked = [TopicPartitions(topic=topic, partitions=list(partitions)) for topic, partitions in topics.items()]
    return ElectLeadersRequest(
        election_type=UNCLEAN if is_unclean else PREFERRED, topic_partitions=asked, timeout_ms=timeout_ms
    )


def read_elected(answer: ElectLeadersResponse) -> list[PartitionOutcome]:
    """The results by topic and partition. Raises ApiError if the whole request was refused."""
    check(answer.error_code)
    return sorted(
        _outcome(topic.topic, one.partition_id, one.error_code, one.error_message)
        for topic in answer.replica_election_results
        for one in topic.partition_result
    )


# -- verdicts ---------------------------------------------------------------------------


def _outcome(topic: str, partition: int, number: int, message: str | None) -> PartitionOutcome:
    code = error_code(number)
    return PartitionOutcome(topic, partition, code, message or ("" if code is ErrorCode.NONE else code.name))


def raise_refusals(verdicts: Iterable[PartitionOutcome], doing: str) -> None:
    """Raises ApiError with the first refusal, and the number of further ones."""
    refused = [one for one in verdicts if one.code is not ErrorCode.NONE]
    if refused:
        first, more = refused[0], len(refused) - 1
        others = f" (and {more} more)" if more else ""
        said = first.message.rstrip(".")
        raise ApiError(first.code, f"{doing} {first.topic}-{first.partition}: {said} ({first.code.name}){others}")
