"""The bytes of a `.snapshot` file: the producers of a log at one moment.

The file has the state before the offset in its name. It is Kafka's version 1, which has only the last batch of each
producer, followed by a part that Kafka ignores, with the earlier batches. A snapshot written by Kafka lacks that part;
then the earlier batches are looked up in the log before the offset (`recall`), as far as they are near its end.

    byte  size  field
    0     2     version (1)
    2     4     CRC-32C of byte 6 to the end
    6     4     number of entries
    10    46 each: producer id i64, epoch i16, last sequence i32, last offset i64, offset delta i32,
                timestamp i64, coordinator epoch i32, first offset of the open transaction i64 (-1: none)
    then for each entry, in the same order:
          4     first sequence of the epoch (-1: not known)
          1     number of batches before the last
          16 each: first sequence i32, offset delta i32, first offset i64
    and for each decided transaction whose marker may not have been replicated yet
          4     number of such transactions
          16 each: offset of the marker i64, first offset i64; both increase
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from penstock.records.batch import NO_SEQUENCE
from penstock.storage.producers.producer import NO_BATCH, REMEMBERED_BATCHES, ProducedBatch, Producer
from penstock.storage.producers.transactions import DecidedTransaction

SNAPSHOT_HEAD = Struct(">hIi")
_CRC_END = 6
SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_EARLIER_HEAD = Struct(">iB")
_EARLIER_BATCH = Struct(">iiq")
_DECIDED_COUNT = Struct(">i")
_DECIDED = Struct(">qq")

EarlierBatches: TypeAlias = list[tuple[int, list[ProducedBatch]]]  # first sequence of the epoch, earlier batches


class Snapshot(NamedTuple):
    producers: list[Producer]
    has_earlier_batches: bool
    decided: list[DecidedTransaction]


def encode(producers: list[Producer], decided: list[DecidedTransaction]) -> bytes:
    out = bytearray(SNAPSHOT_HEAD.pack(1, 0, len(producers)))
    for producer in producers:
        last = producer.batches[-1] if producer.batches else NO_BATCH
        out += SNAPSHOT_ENTRY.pack(
            producer.producer_id,
            producer.epoch,
            last.last_sequence,
            last.last_offset,
            last.last_offset - last.first_offset,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.transaction_first_offset,
        )
    for producer in producers:
        first, earlier = producer.first_sequence, producer.batches[:-1]
        out += _EARLIER_HEAD.pack(-1 if first is None else first, len(earlier))
        for batch in earlier:
            delta = batch.last_offset - batch.first_offset
            out += _EARLIER_BATCH.pack(batch.first_sequence, delta, batch.first_offset)
    if decided:
        out += _DECIDED_COUNT.pack(len(decided))
        for one in decided:
            out += _DECIDED.pack(*one)
    out[2:_CRC_END] = crc32c(memoryview(out)[_CRC_END:]).to_bytes(4, "big")
    return bytes(out)


def decode(data: bytes) -> Snapshot | None:
    """None if the file is torn or damaged: then an older snapshot is used."""
    if len(data) < SNAPSHOT_HEAD.size:
        return None
    version, crc, count = SNAPSHOT_HEAD.unpack_from(data)
    if version != 1 or crc != crc32c(memoryview(data)[_CRC_END:]):
        return None
    end = SNAPSHOT_HEAD.size + count * SNAPSHOT_ENTRY.size
    if count < 0 or len(data) < end:
        return None
    rest = read_our_part(data, end, count)
    if rest is None:
        return None
    earlier, decided = rest
    entries = SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[SNAPSHOT_HEAD.size : end])
    producers = list({entry[0]: _restored(entry) for entry in entries}.values())
    for producer, (first_sequence, batches) in zip(producers, earlier, strict=False):
        producer.first_sequence = None if first_sequence < 0 else first_sequence
        producer.batches[:0] = batches
    return Snapshot(producers, len(earlier) == count, decided)


def _restored(entry: tuple[int, ...]) -> Producer:
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction_first_offset = entry
    producer = Producer(producer_id, epoch)
    if offset >= 0:
        first_sequence = (sequence - delta) & 0x7FFFFFFF if sequence >= 0 else NO_SEQUENCE
        producer.batches.append(ProducedBatch(first_sequence, sequence, offset - delta, offset))
    producer.last_timestamp = timestamp
    producer.coordinator_epoch = coordinator_epoch
    producer.transaction_first_offset = transaction_first_offset
    return producer


def read_our_part(data: bytes, start: int, count: int) -> tuple[EarlierBatches, list[DecidedTransaction]] | None:
    """Read the part after the entries of a snapshot: the earlier batches of each producer, and decided transactions.

    Both are empty if Kafka wrote the snapshot. None if the bytes are invalid.
    """
    found: EarlierBatches = []
    at = start
    if len(data) == start:
        return found, []
    for _ in range(count):
        if at + _EARLIER_HEAD.size > len(data):
            return None
        first_sequence, number = _EARLIER_HEAD.unpack_from(data, at)
        at += _EARLIER_HEAD.size
        end = at + number * _EARLIER_BATCH.size
        if number >= REMEMBERED_BATCHES or end > len(data):
            return None
        batches = [
            ProducedBatch(first, (first + delta) & 0x7FFFFFFF if first >= 0 else NO_SEQUENCE, offset, offset + delta)
            for first, delta, offset in _EARLIER_BATCH.iter_unpack(memoryview(data)[at:end])
        ]
        found.append((first_sequence, batches))
        at = end
    if at == len(data):
        return found, []
    if at + _DECIDED_COUNT.size > len(data):
        return None
    number = _DECIDED_COUNT.unpack_from(data, at)[0]
    at += _DECIDED_COUNT.size
    if number < 0 or at + number * _DECIDED.size != len(data):
        return None
    return found, [DecidedTransaction(*entry) for entry in _DECIDED.iter_unpack(memoryview(data)[at:])]
