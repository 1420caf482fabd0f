"""Fetch sessions as a state machine: ids, epochs, eviction."""

from __future__ import annotations

from itertools import count

import pytest

from penstock.api.fetch.fetch_sessions import EVICT_AFTER_S, FetchSessions, SessionPartition
from penstock.model.errors import ApiError, ErrorCode


def partition(index: int, offset: int = 0) -> SessionPartition:
    return SessionPartition("t", bytes(16), index, offset, 1000, -1, -1)


def make(slots: int = 2) -> FetchSessions:
    numbers = count(0)
    return FetchSessions(slots, lambda: next(numbers))


def test_epochs_rise_and_wrap() -> None:
    sessions = make()
    session = sessions.start(uses_topic_ids=False, now=0)
    assert session is not None
    assert session.id != 0
    for epoch in (1, 2, 3):
        assert sessions.use(session.id, epoch, uses_topic_ids=False, now=0) is session
    session.epoch = 0x7FFFFFFF
    sessions.use(session.id, 0x7FFFFFFF, uses_topic_ids=False, now=0)
    assert session.epoch == 1


def test_refusals() -> None:
    sessions = make()
    session = sessions.start(uses_topic_ids=False, now=0)
    assert session is not None
    for session_id, epoch, ids, code in (
        (99, 1, False, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (session.id, 2, False, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (session.id, 1, True, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ):
        with pytest.raises(ApiError) as refused:
            sessions.use(session_id, epoch, uses_topic_ids=ids, now=0)
        assert refused.value.code is code


def test_a_full_cache_evicts_only_the_idle() -> None:
    sessions = make(slots=2)
    old = sessions.start(uses_topic_ids=False, now=0)
    busy = sessions.start(uses_topic_ids=False, now=0)
    assert old is not None
    assert busy is not None
    assert sessions.start(uses_topic_ids=False, now=1) is None
    sessions.use(busy.id, 1, uses_topic_ids=False, now=EVICT_AFTER_S)
    assert sessions.start(uses_topic_ids=False, now=EVICT_AFTER_S) is not None
    assert sessions.evicted == 1
    assert len(sessions) == 2
    with pytest.raises(ApiError):
        sessions.use(old.id, 1, uses_topic_ids=False, now=EVICT_AFTER_S)


def test_partitions_are_updated_forgotten_and_rotated() -> None:
    sessions = make()
    session = sessions.start(uses_topic_ids=False, now=0)
    assert session is not None
    for index in range(3):
        session.put(partition(index))
    session.put(partition(1, offset=50))
    assert [known.fetch_offset for known in session.partitions.values()] == [0, 50, 0]
    session.move_to_end(partition(0))
    assert [known.index for known in session.partitions.values()] == [1, 2, 0]
    session.forget("t", bytes(16), 2)
    session.forget("t", bytes(16), 2)
    assert [known.index for known in session.partitions.values()] == [1, 0]


def test_closing_is_final() -> None:
    sessions = make()
    session = sessions.start(uses_topic_ids=True, now=0)
    assert session is not None
    sessions.close(session.id)
    sessions.close(session.id)
    assert len(sessions) == 0
