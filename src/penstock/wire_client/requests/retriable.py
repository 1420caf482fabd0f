"""What is worth trying again: error codes of answers, and failures without an answer."""

from __future__ import annotations

from penstock.model.errors import ErrorCode
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut

LOST = (BrokerUnreachable, ConnectionLost, RequestTimedOut)
# Another broker leads the partition.
STALE = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    )
)
# The coordinator is elsewhere, or about to be ready.
ELSEWHERE = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
)
# Another broker is to be asked, or this one later: what was known of the cluster is out of date.
MOVED = STALE | frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    )
)
TRY_AGAIN = (
    MOVED
    | ELSEWHERE
    | frozenset((ErrorCode.NOT_CONTROLLER, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT))
)
