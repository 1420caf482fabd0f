"""Which failures are worth another try, in one table: error codes of answers, and losses without an answer.

A code says what a broker cannot do now. Whether the same request may leave again depends on the request, too: a fetch
does no harm when it is done twice, and a record without a sequence number does. Must not know: how long, how often.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto
from typing import Final

from penstock.model.errors import ErrorCode
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut

LOST = (BrokerUnreachable, ConnectionLost, RequestTimedOut)
"""Nothing was answered. What was asked may have happened."""


class Again(Flag):
    ASK = auto()
    """Any request that does no harm when it is done twice."""
    FETCH = auto()
    """A fetch from the leader of a partition, once the leader was looked up again."""
    FIND_LEADER = auto()
    """The metadata are out of date, or about to be: another broker leads the partition."""
    FIND_COORDINATOR = auto()
    """The group's coordinator is elsewhere, or still loading."""
    FIND_CONTROLLER = auto()
    """Nobody leads the cluster. The change was not made."""
    APPEND = auto()
    """A record without a sequence number: the broker has not appended it."""
    DELIVER = auto()
    """A batch that may be stored already: with a sequence number, or at least once."""


_ASK, _DELIVER = Again.ASK, Again.DELIVER
_FETCH = Again.FETCH | _ASK
_LEADER = Again.FIND_LEADER | _FETCH
_COORDINATOR = Again.FIND_COORDINATOR | _ASK
_APPEND = Again.APPEND | _DELIVER

RETRIABLE: Final[Mapping[ErrorCode, Again]] = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _LEADER | _APPEND,
    ErrorCode.LEADER_NOT_AVAILABLE: _LEADER | _APPEND,
    ErrorCode.FENCED_LEADER_EPOCH: _LEADER | _APPEND,
    ErrorCode.UNKNOWN_LEADER_EPOCH: _LEADER | _DELIVER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _FETCH | _APPEND,
    ErrorCode.REPLICA_NOT_AVAILABLE: _FETCH | _DELIVER,
    ErrorCode.BROKER_NOT_AVAILABLE: _FETCH | _DELIVER,
    ErrorCode.KAFKA_STORAGE_ERROR: _FETCH | _DELIVER,
    ErrorCode.REQUEST_TIMED_OUT: _FETCH | _DELIVER,
    ErrorCode.NETWORK_EXCEPTION: _FETCH | _DELIVER,
    ErrorCode.OFFSET_NOT_AVAILABLE: _FETCH,
    ErrorCode.UNKNOWN_SERVER_ERROR: _FETCH,
    ErrorCode.NOT_ENOUGH_REPLICAS: _APPEND,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _DELIVER,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _DELIVER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _COORDINATOR,
    ErrorCode.NOT_COORDINATOR: _COORDINATOR,
    ErrorCode.NOT_CONTROLLER: Again.FIND_CONTROLLER | _ASK,
    ErrorCode.CONCURRENT_TRANSACTIONS: _ASK,
    ErrorCode.UNSTABLE_OFFSET_COMMIT: _ASK,
}


def may(again: Again, code: ErrorCode) -> bool:
    """Whether this may be done again after a broker answered with `code`."""
    return again in RETRIABLE.get(code, Again(0))
