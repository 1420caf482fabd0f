"""Errors as HTTP: a status, and a body {"error_code", "message"} with Confluent's five-digit codes.

The first three digits of a code are the status. Only this module maps errors of the cluster to statuses.
"""

from __future__ import annotations

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire_client.requests.errors import Overloaded, WireClientError

_CODES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 40401,
    ErrorCode.UNKNOWN_TOPIC_ID: 40401,
    ErrorCode.GROUP_ID_NOT_FOUND: 40403,
    ErrorCode.OFFSET_OUT_OF_RANGE: 41601,
    ErrorCode.MESSAGE_TOO_LARGE: 41301,
    ErrorCode.RECORD_LIST_TOO_LARGE: 41301,
    ErrorCode.UNKNOWN_MEMBER_ID: 40903,
    ErrorCode.ILLEGAL_GENERATION: 40903,
    ErrorCode.REBALANCE_IN_PROGRESS: 40903,
    ErrorCode.NON_EMPTY_GROUP: 40904,
    ErrorCode.GROUP_MAX_SIZE_REACHED: 40905,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: 40906,
    ErrorCode.INVALID_TOPIC_EXCEPTION: 40002,
    ErrorCode.TOPIC_ALREADY_EXISTS: 40002,
    ErrorCode.INVALID_PARTITIONS: 40002,
    ErrorCode.INVALID_REPLICATION_FACTOR: 40002,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: 40002,
    ErrorCode.INVALID_CONFIG: 40002,
    ErrorCode.INVALID_REQUEST: 40002,
    ErrorCode.POLICY_VIOLATION: 40002,
    ErrorCode.INVALID_GROUP_ID: 42205,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: 42206,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: 42206,
    ErrorCode.INVALID_TIMESTAMP: 42207,
    ErrorCode.INVALID_RECORD: 42208,
    ErrorCode.TOPIC_DELETION_DISABLED: 40301,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 40301,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 40301,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 40301,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: 42902,
    ErrorCode.UNSUPPORTED_VERSION: 50101,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: 50302,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: 50302,
    ErrorCode.NOT_COORDINATOR: 50302,
    ErrorCode.LEADER_NOT_AVAILABLE: 50303,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: 50303,
    ErrorCode.NOT_ENOUGH_REPLICAS: 50303,
    ErrorCode.NETWORK_EXCEPTION: 50304,
    ErrorCode.REQUEST_TIMED_OUT: 50304,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: 50304,
}


class Refused(Exception):
    """`code` has three digits, or five; the first three are the status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        return self.code if self.code < 1000 else self.code // 100


class BodyTooLate(Refused):
    """The body is incomplete. The connection is closed, because the start of the next request is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(408, message)


def refusal(error: ApiError | WireClientError) -> Refused:
    if isinstance(error, Overloaded):
        return Refused(42901, str(error))
    if isinstance(error, WireClientError):
        return Refused(50301, str(error))
    return Refused(_CODES.get(error.code, 50002), str(error))
