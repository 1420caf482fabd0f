"""Transaction markers, byte for byte as Kafka writes and reads them."""

from __future__ import annotations

import pytest

from penstock.model.errors import ApiError
from penstock.records.batch import CONTROL_BIT, HEADER_SIZE, TRANSACTIONAL_BIT, read_header, validate_produced
from penstock.records.builder import Record, build_batch, seal
from penstock.records.control import ABORT, COMMIT, Marker, build_marker, marker_of, read_marker


def test_the_bytes_of_a_marker() -> None:
    data = build_marker(producer_id=7, producer_epoch=3, kind=COMMIT, coordinator_epoch=9, timestamp_ms=1000)
    assert data[16:17].hex() == "02"
    assert (
        data[21:].hex()
        == (
            "0030"  # transactional, control
            "00000000"
            "00000000000003e8"
            "00000000000003e8"
            "0000000000000007"
            "0003"
            "ffffffff"
            "00000001"
            "20"  # a record of 16 bytes: attributes, two deltas, key, value, headers
            "000000"
            "08" + "00000001"  # version 0, commit
            "0c" + "000000000009"  # version 0, coordinator epoch
            "00"
        )
    )
    header = read_header(data)
    assert header.size_bytes == len(data)
    assert seal(header, data[HEADER_SIZE:]) == data, "the checksum"


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_marker_is_read_as_it_was_written(kind: int) -> None:
    data = build_marker(7, 0, kind, 4, 1000)
    assert marker_of(read_header(data), data) == Marker(kind, 4)


def control(key: bytes | None, value: bytes | None) -> bytes:
    return build_batch(
        [Record(key, value)], producer_id=7, producer_epoch=0, attributes=TRANSACTIONAL_BIT | CONTROL_BIT
    )


def test_what_is_no_marker() -> None:
    emptied = seal(read_header(build_marker(7, 0, ABORT, 4, 1000))._replace(record_count=0), b"")
    for data in (emptied, control(None, b""), control(b"\0\0\0", b"")):
        assert marker_of(read_header(data), data) is None
    header = read_header(control(b"", b""))
    assert read_marker(header, b"\xff\xff") is None


def test_a_marker_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    data = control(b"\0\1\0\0\0\0", b"\0\1\0\0\0\5\0\0\0\0")
    assert marker_of(read_header(data), data) == Marker(ABORT, 5)
    data = control(b"\0\0\0\1", None)
    assert marker_of(read_header(data), data) == Marker(COMMIT, -1)


def test_no_producer_may_send_one() -> None:
    """It passes for a batch: whoever takes in batches of clients looks at the bit."""
    with pytest.raises(ApiError, match="sequence"):
        validate_produced(build_marker(7, 0, COMMIT, 4, 1000))
