"""Creates, extends and deletes topics: one topic per request."""

from __future__ import annotations

from penstock.model.new_topic import BROKER_DEFAULT, NewTopic
from penstock.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.wire_client.requests.errors import check


def create_topic_request(topic: NewTopic, timeout_ms: int, *, validate_only: bool = False) -> CreateTopicsRequest:
    has_assignments = bool(topic.assignments)  # they determine partitions and replication factor
    wanted = CreatableTopic(
        name=topic.name,
        num_partitions=BROKER_DEFAULT if has_assignments else topic.partitions,
        replication_factor=BROKER_DEFAULT if has_assignments else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in topic.assignments.items()
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )
    return CreateTopicsRequest(topics=[wanted], timeout_ms=timeout_ms, validate_only=validate_only)


def read_created(answer: CreateTopicsResponse) -> int:
    """The number of partitions, if the broker reports it. Raises ApiError."""
    created = answer.topics[0]
    check(created.error_code, created.error_message)
    return created.num_partitions


def delete_topic_request(name: str, timeout_ms: int) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topic_names=[name], timeout_ms=timeout_ms)


def check_deleted(answer: DeleteTopicsResponse) -> None:
    """Raises ApiError."""
    check(answer.responses[0].error_code, answer.responses[0].error_message)


def grow_topic_request(name: str, count: int, timeout_ms: int) -> CreatePartitionsRequest:
    """Increases the number of partitions to `count`. The controller places the new ones."""
    wanted = CreatePartitionsTopic(name=name, count=count, assignments=None)
    return CreatePartitionsRequest(topics=[wanted], timeout_ms=timeout_ms)


def check_grown(answer: CreatePartitionsResponse) -> None:
    """Raises ApiError."""
    check(answer.results[0].error_code, answer.results[0].error_message)
