"""Records of `__transaction_state` in Kafka's own binary form, so that Kafka's tools can read them.

    key    int16 0 | transactional id string
    value  int16 version | producer id int64 | epoch int16 | timeout int32 | state int8
           | partitions [topic string | [partition int32]] (null: none) | last update int64 | start int64
           | tagged fields: 0 previous producer id int64, 1 next producer id int64, 2 transaction version int16

A null value is a tombstone. Values are written in version 1, whose strings and arrays are compact; versions 0 and 1 are
read. The last epoch before the current one is a tagged field of our own (`_LAST_EPOCH_TAG`), which Kafka skips. With it
a repeated InitProducerId is recognized even after another broker has become the coordinator.

Must not know: what a transaction does with its records.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from penstock.core.shard.records import Decoder, Fields, compact, string, uvarint
from penstock.core.txn.states import State
from penstock.core.txn.transaction import NO_EPOCH, NO_PRODUCER_ID, Partition, Transaction

KEY: Final = 0
VERSION: Final = 1

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_HEAD = Struct(">hqhib")
_TIMES = Struct(">qq")

_PREVIOUS_ID_TAG: Final = 0
_NEXT_ID_TAG: Final = 1
_VERSION_TAG: Final = 2
_LAST_EPOCH_TAG: Final = 10_000


class TransactionStored(NamedTuple):
    transaction: Transaction

    def encode_key(self) -> bytes:
        return _key(self.transaction.transactional_id)

    def encode_value(self) -> bytes:
        one = self.transaction
        parts = [
            _HEAD.pack(VERSION, one.producer_id, one.epoch, one.timeout_ms, one.state),
            _encode_partitions(one.partitions),
            _TIMES.pack(one.last_update_ms, one.start_ms),
        ]
        tags = []
        if one.previous_producer_id != NO_PRODUCER_ID:
            tags.append((_PREVIOUS_ID_TAG, _INT64.pack(one.previous_producer_id)))
        if one.next_producer_id != NO_PRODUCER_ID:
            tags.append((_NEXT_ID_TAG, _INT64.pack(one.next_producer_id)))
        if one.version:
            tags.append((_VERSION_TAG, _INT16.pack(one.version)))
        if one.last_epoch != NO_EPOCH:
            tags.append((_LAST_EPOCH_TAG, _INT16.pack(one.last_epoch)))
        parts.append(uvarint(len(tags)))
        parts += (uvarint(tag) + uvarint(len(data)) + data for tag, data in tags)
        return b"".join(parts)


class TransactionTombstone(NamedTuple):
    transactional_id: str

    def encode_key(self) -> bytes:
        return _key(self.transactional_id)

    def encode_value(self) -> None:
        return None


def decode_transaction(key: bytes, value: bytes | None) -> TransactionStored | TransactionTombstone:
    transactional_id = Fields(key, 2).string()
    if value is None:
        return TransactionTombstone(transactional_id)
    (version,) = _INT16.unpack_from(value)
    fields = Fields(value, 2, flexible=version >= 1)
    producer_id, epoch, timeout_ms = fields.int64(), fields.int16(), fields.int32()
    state = State(fields.int8())
    if state is State.DEAD:
        return TransactionTombstone(transactional_id)
    if state is State.PREPARE_EPOCH_FENCE:  # which leads to nothing else
        state = State.PREPARE_ABORT
    partitions = frozenset(_read_partitions(fields))
    last_update_ms, start_ms = fields.int64(), fields.int64()
    tags = fields.tags()
    return TransactionStored(
        Transaction(
            transactional_id,
            producer_id,
            epoch,
            timeout_ms,
            state,
            partitions,
            last_update_ms,
            start_ms,
            previous_producer_id=_tagged(tags, _PREVIOUS_ID_TAG, _INT64, NO_PRODUCER_ID),
            next_producer_id=_tagged(tags, _NEXT_ID_TAG, _INT64, NO_PRODUCER_ID),
            last_epoch=_tagged(tags, _LAST_EPOCH_TAG, _INT16, NO_EPOCH),
            version=_tagged(tags, _VERSION_TAG, _INT16, 0),
        )
    )


DECODERS: Final[dict[int, Decoder]] = {KEY: decode_transaction}


def _tagged(tags: dict[int, bytes], tag: int, form: Struct, otherwise: int) -> int:
    return int(form.unpack(tags[tag])[0]) if tag in tags else otherwise


def _key(transactional_id: str) -> bytes:
    return b"\0\0" + string(transactional_id)


def _encode_partitions(partitions: Iterable[Partition]) -> bytes:
    """Sorted, so that the same transaction has the same bytes."""
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    parts = [uvarint(len(topics) + 1)]
    for topic, indexes in topics.items():
        parts += (compact(topic.encode()), uvarint(len(indexes) + 1), *map(_INT32.pack, indexes), b"\0")
    return b"".join(parts)


def _read_partitions(fields: Fields) -> Iterable[Partition]:
    for _ in range(max(fields.length(_INT32), 0)):
        topic = fields.string()
        for _ in range(fields.length(_INT32)):
            yield topic, fields.int32()
        fields.tags()
