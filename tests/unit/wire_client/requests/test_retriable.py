"""The table of error codes after which something is tried again."""

from __future__ import annotations

import pytest

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire_client.requests.errors import (
    AuthenticationFailed,
    ConnectionLost,
    FetchStalled,
    NoSuchTopic,
    NotKafka,
    TopicRecreated,
    UnknownHost,
)
from penstock.wire_client.requests.retriable import RETRIABLE, Again, may, may_pass, names_that_may_pass


def codes(again: Again) -> set[ErrorCode]:
    return {code for code in RETRIABLE if may(again, code)}


def test_the_leader_or_coordinator_is_looked_for_again() -> None:
    assert codes(Again.FIND_LEADER) == {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
    assert codes(Again.FIND_COORDINATOR) == {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
    assert codes(Again.FIND_CONTROLLER) == {ErrorCode.NOT_CONTROLLER}


def test_what_does_no_harm_is_asked_again_wherever_something_is_looked_for_again() -> None:
    assert codes(Again.FIND_LEADER) < codes(Again.FETCH) < codes(Again.ASK)
    assert codes(Again.FIND_COORDINATOR) | codes(Again.FIND_CONTROLLER) < codes(Again.ASK)


def test_a_record_without_a_number_is_sent_again_only_if_it_was_not_appended() -> None:
    assert codes(Again.APPEND) == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
    assert codes(Again.APPEND) < codes(Again.DELIVER)


@pytest.mark.parametrize("again", list(Again))
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NONE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ],
)
def test_what_does_not_get_better_is_not_tried_again(again: Again, code: ErrorCode) -> None:
    assert not may(again, code)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionLost("gone"), True),
        (UnknownHost("no such name"), True),
        (FetchStalled(("t", 0), 1, 2, "1 at h:1", 3.0, "it throttles"), True),
        (NotKafka("it speaks HTTP"), False),
        (AuthenticationFailed("no such user"), False),
        (TopicRecreated("t", bytes(16), bytes(16)), False),
        (ApiError(ErrorCode.KAFKA_STORAGE_ERROR), True),
        (ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), False),
        (NoSuchTopic("topic 't' does not exist"), False),
        (ValueError("no good"), False),
    ],
)
def test_what_a_later_attempt_may_mend(error: Exception, expected: bool) -> None:
    assert may_pass(error) is expected
    name = error.code.name if type(error) is ApiError else type(error).__name__
    assert (name in names_that_may_pass()) is expected
