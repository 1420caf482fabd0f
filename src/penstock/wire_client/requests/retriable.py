"""The table of failures that are worth a retry: error codes of answers, and losses without an answer.

Whether a request may be sent again depends on the error code and on the request: a repeated fetch is harmless, a
repeated record without a sequence number is not. Must not know: how long and how often to retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto
from typing import Final

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire_client.requests.errors import (
    BrokerUnreachable,
    ConnectionLost,
    FetchStalled,
    NoSuchTopic,
    NotKafka,
    Overloaded,
    RequestTimedOut,
    UnknownHost,
    WireClientError,
)

LOST = (BrokerUnreachable, ConnectionLost, RequestTimedOut)
"""There was no answer. The request may have taken effect."""


# A client gives up on these after a while, but a later attempt may succeed: an unknown host may be starting.
MAY_PASS: Final[tuple[type[WireClientError], ...]] = (*LOST, UnknownHost, FetchStalled, Overloaded)
FINAL = (NotKafka,)
"""Except these, although they count as lost."""


class Again(Flag):
    ASK = auto()
    """Any request that is harmless when it is repeated."""
    FETCH = auto()
    """A fetch, after the partition's leader was looked up again."""
    FIND_LEADER = auto()
    """Another broker leads the partition, or soon will: the metadata is out of date."""
    FIND_COORDINATOR = auto()
    """The group's coordinator is another broker, or still loading."""
    FIND_CONTROLLER = auto()
    """There is no controller. The change was not made."""
    APPEND = auto()
    """A record without a sequence number, which the broker has not appended."""
    DELIVER = auto()
    """A batch that may already be stored, if it has a sequence number or at-least-once is enough."""


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
    ErrorCode.CONCURRENT_TRANSACTIONS: _ASK | _DELIVER,
    ErrorCode.UNSTABLE_OFFSET_COMMIT: _ASK,
}


def may(again: Again, code: ErrorCode) -> bool:
    """Whether this kind of request may be repeated after a broker answered with `code`."""
    return again in RETRIABLE.get(code, Again(0))


def may_pass(error: Exception) -> bool:
    """Whether all of it may be tried again later, after the client has given up."""
    if isinstance(error, ApiError):
        return error.code in RETRIABLE and not isinstance(error, NoSuchTopic)
    return isinstance(error, MAY_PASS) and not isinstance(error, FINAL)


def names_that_may_pass() -> frozenset[str]:
    """The same for those who have only the text of an error: names of its class, and of error codes."""
    return frozenset(kind.__name__ for kind in MAY_PASS) | frozenset(code.name for code in RETRIABLE)
