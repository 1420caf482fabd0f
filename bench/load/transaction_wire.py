"""The requests of transactional producers, and the fields of the answers that the load reads.

Apache Kafka 4.x accepts the versions: FindCoordinator 3, InitProducerId 5, EndTxn 5, and Produce 12 (`wire`). They are
those of transaction version 2: the leader adds its partition to the transaction, and each end raises the epoch.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from bench.load import wire

NO_PRODUCER = struct.pack(">qh", -1, -1)
TRANSACTION_KEY = 1

_PRODUCER = struct.Struct(">qh")
_ENDED = struct.Struct(">hqh")
_CRC = struct.Struct(">I")
_IDENTITY = struct.Struct(">qhi")

# Places in a record batch.
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_PRODUCER_ID_AT = 43
_TRANSACTIONAL = 0x10

ENDED_AT = 4 + 1 + 4  # correlation id, tags, throttle time


class Identity(NamedTuple):
    producer_id: int
    epoch: int


def find_coordinator_request(transactional_id: str) -> bytearray:
    body = wire.compact_string(transactional_id) + bytes((TRANSACTION_KEY, 0))
    return wire.framed(10, 3, body, flexible=True)


class Coordinator(NamedTuple):
    error: int
    node_id: int


def read_coordinator(answer: bytes) -> Coordinator:
    (error,) = struct.unpack_from(">h", answer, ENDED_AT)
    message, at = wire.read_unsigned_varint(memoryview(answer), ENDED_AT + 2)
    (node_id,) = struct.unpack_from(">i", answer, at + max(message - 1, 0))
    return Coordinator(error, node_id)


def init_producer_id_request(transactional_id: str, timeout_ms: int) -> bytearray:
    body = wire.compact_string(transactional_id) + struct.pack(">i", timeout_ms) + NO_PRODUCER + b"\0"
    return wire.framed(22, 5, body, flexible=True)


def end_request(transactional_id: str, producer: Identity, *, is_commit: bool) -> bytearray:
    body = wire.compact_string(transactional_id) + _PRODUCER.pack(*producer) + bytes((is_commit, 0))
    return wire.framed(26, 5, body, flexible=True)


class Ended(NamedTuple):
    error: int
    next: Identity


def read_ended(answer: memoryview) -> Ended:
    """An answer to InitProducerId or EndTxn, after its length: the producer of the next transaction."""
    error, producer_id, epoch = _ENDED.unpack_from(answer, ENDED_AT)
    return Ended(error, Identity(producer_id, epoch))


class ProduceFrame:
    """A whole Produce request of one batch, which is stamped anew before each send."""

    def __init__(self, transactional_id: str, topic: str, partition: int, batch: bytes) -> None:
        self.frame = wire.produce_request(topic, partition, batch, transactional_id=transactional_id)
        self._batch_at = len(self.frame) - 3 - len(batch)  # the end: three empty tag sections
        self._frame_view = memoryview(self.frame)
        self.frame[self._batch_at + _ATTRIBUTES_AT + 1] |= _TRANSACTIONAL

    def stamp(self, producer: Identity, sequence: int) -> None:
        at = self._batch_at
        _IDENTITY.pack_into(self.frame, at + _PRODUCER_ID_AT, *producer, sequence)
        _CRC.pack_into(self.frame, at + _CRC_AT, crc32c(self._frame_view[at + _ATTRIBUTES_AT : -3]))
