"""Error messages for people, one sentence for each kind of request."""

from __future__ import annotations

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire_client.requests.errors import NoSuchTopic

NAME_SHOWN = 300
"""The number of characters shown of an invalid topic name."""


def no_such_topic(name: str) -> str:
    return f"topic '{name}' does not exist"


def no_such_partition(topic: str, partition: int) -> str:
    return f"topic '{topic}' has no partition {partition}"


def no_leader(topic: str, partition: int) -> str:
    return f"{topic}-{partition} has no leader"


def leader_superseded(topic: str, partition: int) -> str:
    return f"{topic}-{partition}: the brokers' metadata names a leader that has been replaced"


def not_a_topic_name(name: str) -> str:
    return f"'{name[:NAME_SHOWN]}' is not a topic name"


def no_such_group(group: str) -> str:
    return f"group '{group}' does not exist"


def no_such_transactional_id(transactional_id: str) -> str:
    return f"transactional id '{transactional_id}' does not exist"


def no_two_phase_commit(transactional_id: str) -> str:
    return (
        f"transactional id '{transactional_id}': the cluster does not serve two-phase commit; it needs brokers with "
        "InitProducerId version 6 and transaction.two.phase.commit.enable=true"
    )


def partition_refused(code: ErrorCode, topic: str, partition: int) -> str:
    return f"{topic}-{partition}: {code.name}"


def offsets_refused(code: ErrorCode, topic: str, partition: int) -> ApiError:
    return ApiError(code, f"offsets of {topic}-{partition}: {code.name}")


def group_refused(code: ErrorCode, group: str) -> ApiError:
    return ApiError(code, f"group '{group}': {code.name}")


def committed_refused(code: ErrorCode, group: str, topic: str, partition: int) -> ApiError:
    return ApiError(code, f"group '{group}', {topic}-{partition}: {code.name}")


def commit_refused(code: ErrorCode, group: str, topic: str, partition: int) -> ApiError:
    if code is ErrorCode.UNKNOWN_MEMBER_ID or code is ErrorCode.ILLEGAL_GENERATION:
        return ApiError(code, f"group '{group}' has members, and only they may commit")
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return NoSuchTopic(no_such_partition(topic, partition))
    return committed_refused(code, group, topic, partition)
