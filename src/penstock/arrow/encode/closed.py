"""A closed record batch that is not sent yet: stamping it for a producer, and splitting it if it is too large.

It lacks the producer's fields (id, epoch and sequence) and the checksum. `stamp` sets them, also repeatedly. This
module imports nothing compiled, because the driver imports it, too.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.records.batch import CRC_START, HEADER_SIZE, TRANSACTIONAL_BIT, read_header
from penstock.records.builder import build_batch, iterate_records
from penstock.records.compression import decompress, recompress

NO_LEADER_EPOCH = -1

_PRODUCER = Struct(">qhi")
_PRODUCER_AT = 43
_CRC = Struct(">I")
_CRC_AT = 17
_ATTRIBUTES = Struct(">h")
_ATTRIBUTES_AT = 21


class ClosedBatch(NamedTuple):
    """`data` is a whole v2 batch except for the producer fields and the checksum."""

    slot: int
    data: bytearray
    record_count: int


def stamp(data: bytearray, producer_id: int, epoch: int, base_sequence: int, *, transactional: bool = False) -> None:
    """Makes a closed batch ready to be sent. May be repeated with another identity."""
    if transactional:
        (attributes,) = _ATTRIBUTES.unpack_from(data, _ATTRIBUTES_AT)
        _ATTRIBUTES.pack_into(data, _ATTRIBUTES_AT, attributes | TRANSACTIONAL_BIT)
    _PRODUCER.pack_into(data, _PRODUCER_AT, producer_id, epoch, base_sequence)
    _CRC.pack_into(data, _CRC_AT, crc32c(memoryview(data)[CRC_START:]))


def halves(data: bytearray) -> list[tuple[bytearray, int]]:
    """Splits a closed batch of two or more records in two, with the same codec. Returns each with its record count."""
    header = read_header(data)
    payload = decompress(header.compression, memoryview(data)[HEADER_SIZE:])
    rows = list(iterate_records(header, payload))
    parts: list[tuple[bytearray, int]] = []
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        plain = build_batch(part, leader_epoch=NO_LEADER_EPOCH)
        parts.append((bytearray(recompress(read_header(plain), plain, header.compression)), len(part)))
    return parts
