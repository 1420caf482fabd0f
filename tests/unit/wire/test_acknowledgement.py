"""Acknowledgements of followers as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import ProtocolError
from penstock.wire.acknowledgement import (
    ACKNOWLEDGE_KEY,
    WAKE_FRAME,
    WAKE_KEY,
    Acknowledged,
    acknowledgement_frame,
    read_acknowledgement,
)
from penstock.wire.codec import read_request_header

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
entries = st.lists(st.builds(Acknowledged, st.binary(min_size=16, max_size=16), int32, int32, int64, int64), max_size=5)


@given(int32, int64, entries)
def test_what_is_written_is_read(replica_id: int, broker_epoch: int, said: list[Acknowledged]) -> None:
    frame = acknowledgement_frame(replica_id, broker_epoch, said)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    key, version, _, client_id, at = read_request_header(frame, 4)
    assert (key, version, client_id) == (ACKNOWLEDGE_KEY, 0, None)
    read_id, read_epoch, read = read_acknowledgement(memoryview(frame)[at:])
    assert (read_id, read_epoch, list(read)) == (replica_id, broker_epoch, said)


def test_a_wake_is_a_header_alone() -> None:
    assert int.from_bytes(WAKE_FRAME[:4], "big") == len(WAKE_FRAME) - 4
    assert read_request_header(WAKE_FRAME, 4)[0] == WAKE_KEY
    assert read_request_header(WAKE_FRAME, 4)[4] == len(WAKE_FRAME)


@pytest.mark.parametrize("size", [0, 11, 13, 12 + 39])
def test_a_torn_one_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        read_acknowledgement(bytes(size))
