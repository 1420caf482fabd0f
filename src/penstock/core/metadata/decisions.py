"""What the controller decides: requests in, records out. Nothing here changes the image.

Raises ApiError with Kafka's code and a sentence that says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from penstock.core.metadata.image import RESOURCE_TOPIC, MetadataImage
from penstock.core.metadata.records import ConfigChanged, MetadataRecord, PartitionsAdded, TopicCreated
from penstock.model.errors import ApiError, ErrorCode

MAX_TOPIC_NAME = 249
MAX_PARTITIONS_PER_TOPIC = 10_000
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: '{name}' is not allowed")
    if len(name) > MAX_TOPIC_NAME:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic name is invalid: the length of '{name[:20]}...' is longer than "
            f"the max allowed length {MAX_TOPIC_NAME}",
        )
    if not _LEGAL.fullmatch(name):
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'",
        )


def check_collision(image: MetadataImage, name: str) -> None:
    """'a.b' and 'a_b' would share a metric name, so Kafka allows only one of them."""
    flat = name.replace(".", "_")
    if "." in name or "_" in name:
        for other in image.topics:
            if other != name and other.replace(".", "_") == flat:
                raise ApiError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topics: {other}"
                )


def place_replicas(
    brokers: Sequence[int], partitions: int, replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    """Round-robin over the brokers, each topic starting at another one."""
    count = len(brokers)
    return [
        tuple(brokers[(start + partition + replica) % count] for replica in range(replication_factor))
        for partition in range(partitions)
    ]


def check_replication_factor(replication_factor: int, brokers: Sequence[int]) -> None:
    if replication_factor < 1:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if replication_factor > len(brokers):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(brokers)} broker(s) are registered.",
        )


def check_assignments(assignments: Mapping[int, Sequence[int]], first: int, brokers: Sequence[int]) -> None:
    if sorted(assignments) != list(range(first, first + len(assignments))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partitions should be a consecutive 0-based integer sequence from {first}",
        )
    sizes = {len(replicas) for replicas in assignments.values()}
    for replicas in assignments.values():
        if not replicas:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment has an empty replica list."
            )
        if len(set(replicas)) != len(replicas):
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes the same broker twice: {list(replicas)}",
            )
        for broker in replicas:
            if broker not in brokers:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"The manual partition assignment includes broker {broker}, but no such broker is registered.",
                )
    if len(sizes) > 1:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment has partitions with different replication factors.",
        )


def create_topic(
    image: MetadataImage,
    brokers: Sequence[int],
    name: str,
    topic_id: bytes,
    partitions: int,
    replication_factor: int,
    assignments: Mapping[int, Sequence[int]],
    configs: dict[str, str],
) -> list[MetadataRecord]:
    """`partitions` and `replication_factor` have their defaults filled in already."""
    check_topic_name(name)
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_collision(image, name)
    if assignments:
        check_assignments(assignments, 0, brokers)
        placed = [tuple(assignments[index]) for index in range(len(assignments))]
    else:
        if partitions < 1:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        check_replication_factor(replication_factor, brokers)
        _check_partition_count(partitions)
        placed = place_replicas(brokers, partitions, replication_factor, len(image.topics))
    records: list[MetadataRecord] = [TopicCreated(name, topic_id.hex(), tuple(placed))]
    if configs:
        records.append(ConfigChanged(RESOURCE_TOPIC, name, configs))
    return records


def _check_partition_count(partitions: int) -> None:
    if partitions > MAX_PARTITIONS_PER_TOPIC:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partitions} partitions are more than the limit of {MAX_PARTITIONS_PER_TOPIC}",
        )


def create_partitions(
    image: MetadataImage,
    brokers: Sequence[int],
    name: str,
    count: int,
    assignments: Sequence[Sequence[int]] | None,
) -> list[MetadataRecord]:
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    current = len(topic.partitions)
    if count == current:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if count < current:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {name} currently has {current} partition(s); {count} would not be an increase.",
        )
    _check_partition_count(count)
    added = count - current
    if assignments is not None:
        if len(assignments) != added:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), "
                f"but only {len(assignments)} assignment(s) were specified.",
            )
        check_assignments({current + index: replicas for index, replicas in enumerate(assignments)}, current, brokers)
        placed = [tuple(replicas) for replicas in assignments]
        if any(len(replicas) != topic.replication_factor for replicas in placed):
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment must have replication factor {topic.replication_factor}.",
            )
    else:
        check_replication_factor(topic.replication_factor, brokers)
        placed = place_replicas(brokers, added, topic.replication_factor, current)
    return [PartitionsAdded(topic.topic_id.hex(), tuple(placed))]
