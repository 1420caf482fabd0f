"""Transaction markers: control batches with one record, which says that the transaction of a producer has ended.

    key      version i16 (0), type i16: 0 abort, 1 commit
    value    version i16 (0), coordinator epoch i32

The batch is transactional and has no sequence. Its producer epoch is that of the data, or, in the second version of the
transaction protocol (KIP-890), the next one.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from penstock.ports.disk import Buffer
from penstock.records.batch import CONTROL_BIT, HEADER_SIZE, NO_SEQUENCE, TRANSACTIONAL_BIT, BatchHeader
from penstock.records.builder import MalformedRecords, Record, build_batch, iterate_records

ABORT, COMMIT = 0, 1
CONTROL_KEY = Struct(">hh")  # version, type
_MARKER_VALUE = Struct(">hi")  # version, coordinator epoch


class Marker(NamedTuple):
    kind: int
    """ABORT, COMMIT or a type of a later version."""
    coordinator_epoch: int
    """-1: unknown."""


def build_marker(producer_id: int, producer_epoch: int, kind: int, coordinator_epoch: int, timestamp_ms: int) -> bytes:
    """The batch that ends a transaction, to be appended by the leader of a partition."""
    record = Record(CONTROL_KEY.pack(0, kind), _MARKER_VALUE.pack(0, coordinator_epoch), (), timestamp_ms)
    return build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
    )


def read_marker(header: BatchHeader, records: Buffer) -> Marker | None:
    """Read the marker from the bytes after the header of a control batch. None: the batch has no record, or the record
    is not a marker.

    Compaction may remove the record and leave the batch.
    """
    try:
        for record in iterate_records(header, records):
            if record.key is None or len(record.key) < CONTROL_KEY.size:
                return None
            value = record.value
            epoch = (
                _MARKER_VALUE.unpack_from(value)[1] if value is not None and len(value) >= _MARKER_VALUE.size else -1
            )
            return Marker(CONTROL_KEY.unpack_from(record.key)[1], epoch)
    except MalformedRecords:
        pass
    return None


def marker_of(header: BatchHeader, batch: Buffer) -> Marker | None:
    """Like `read_marker`, from the whole batch."""
    return read_marker(header, memoryview(batch)[HEADER_SIZE : header.size_bytes])
