"""Decisions of the controller about topics: requests in, records out. The image is not changed here.

Raises ApiError with Kafka's code and a message that names the remedy. `brokers` is used only before the first
registration in a cluster: it is then the single broker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from penstock.core.metadata.image import RESOURCE_TOPIC, MetadataImage
from penstock.core.metadata.placement import Candidate, Placer, candidates, check_replication_factor
from penstock.core.metadata.records import ConfigChanged, MetadataRecord, PartitionsAdded, TopicCreated
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.new_topic import NewTopic

MAX_TOPIC_NAME = 249
MAX_NEW_PARTITIONS = 10_000
METADATA_TOPIC = "__cluster_metadata"  # its directory holds the metadata log
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: '{name}' is not allowed")
    if len(name) > MAX_TOPIC_NAME:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME}",
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
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
                )


def check_new_topic(image: MetadataImage, name: str) -> None:
    """Raise an error unless a topic of this name can be created now."""
    if name == METADATA_TOPIC:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    check_topic_name(name)
    if name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_collision(image, name)


def check_assignments(assignments: Mapping[int, Sequence[int]], first: int, brokers: Sequence[int]) -> None:
    replication_factor = None
    for replicas in assignments.values():
        check_replicas(replicas, brokers)
        if replication_factor is not None:
            check_same_factor(replicas, replication_factor)
        replication_factor = len(replicas)
    if sorted(assignments) != list(range(first, first + len(assignments))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )


def check_same_factor(replicas: Sequence[int], replication_factor: int) -> None:
    if len(replicas) != replication_factor:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s).",
        )


def check_replicas(replicas: Sequence[int], brokers: Sequence[int]) -> None:
    prefix = "The manual partition assignment includes"
    if not replicas:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} an empty replica list.")
    previous = None
    for broker in sorted(replicas):
        if broker not in brokers:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} broker {broker}, but no such broker is registered."
            )
        if broker == previous:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{prefix} the broker {broker} more than once.")
        previous = broker


def create_topic(
    image: MetadataImage, brokers: Sequence[int], topic: NewTopic, topic_id: bytes
) -> list[MetadataRecord]:
    """Defaults of partitions and replication factor are already filled in."""
    check_new_topic(image, topic.name)
    assignments = topic.assignments
    usable = candidates(image, brokers)
    if assignments:
        _check_partition_count(len(assignments))
        check_assignments(assignments, 0, _registered(image, brokers))
        placed = [tuple(assignments[index]) for index in range(len(assignments))]
        isrs = _manual_isrs(placed, 0, usable)
    else:
        if topic.partitions < 1:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        check_replication_factor(topic.replication_factor, usable)
        _check_partition_count(topic.partitions)
        placed = Placer(usable, image).place(topic.partitions, topic.replication_factor)
        isrs = _isrs(placed, usable)
    records: list[MetadataRecord] = [TopicCreated(topic.name, topic_id.hex(), tuple(placed), isrs)]
    if topic.configs:
        records.append(ConfigChanged(RESOURCE_TOPIC, topic.name, dict(topic.configs)))
    return records


def _check_partition_count(added: int) -> None:
    if added > MAX_NEW_PARTITIONS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


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
    added = count - current
    _check_partition_count(added)
    usable = candidates(image, brokers)
    if assignments is not None:
        if len(assignments) != added:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), "
                f"but only {len(assignments)} assignment(s) were specified.",
            )
        by_index = {current + index: replicas for index, replicas in enumerate(assignments)}
        check_assignments(by_index, current, _registered(image, brokers))
        placed = [tuple(replicas) for replicas in assignments]
        for replicas in placed:
            check_same_factor(replicas, topic.replication_factor)
        isrs = _manual_isrs(placed, current, usable)
    else:
        check_replication_factor(topic.replication_factor, usable)
        placed = Placer(usable, image).place(added, topic.replication_factor, topic)
        isrs = _isrs(placed, usable)
    return [PartitionsAdded(topic.topic_id.hex(), tuple(placed), isrs)]


def _registered(image: MetadataImage, brokers: Sequence[int]) -> Sequence[int]:
    return list(image.brokers) or brokers


def _isrs(placed: Sequence[tuple[int, ...]], usable: Sequence[Candidate]) -> tuple[tuple[int, ...], ...]:
    """The live replicas of each partition, which start in sync. Empty if all replicas are live."""
    live = [broker.broker_id for broker in usable if broker.is_live]
    isrs = tuple(tuple(replica for replica in replicas if replica in live) for replicas in placed)
    return () if isrs == tuple(placed) else isrs


def _manual_isrs(
    placed: Sequence[tuple[int, ...]], first: int, usable: Sequence[Candidate]
) -> tuple[tuple[int, ...], ...]:
    isrs = _isrs(placed, usable)
    for at, isr in enumerate(isrs):
        if not isr:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"All brokers specified in the manual partition assignment for partition {first + at} "
                "are fenced or in controlled shutdown.",
            )
    return isrs
