"""What a log remembers of its idempotent and transactional producers, and its `.snapshot` file.

`check` decides before an append whether a batch is new, a repeat or out of order; `update` records it after.
The last five batches of each producer are remembered, so a client with five requests in flight may repeat
any of them. State is dropped only when a producer has been idle for `producer_id_expiration_ms`: deleting
its records does not forget it.

A snapshot holds the state before the offset in its name: Kafka's version 1, which carries only the last batch of each
producer, and behind it, where Kafka does not look, the batches before the last. In a snapshot that Kafka wrote they are
missing, and found again in the log before it (`recall`), as far as they lie near its end.

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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.disk import Buffer
from penstock.records.batch import CONTROL_BIT, HEADER_SIZE, NO_SEQUENCE, TRANSACTIONAL_BIT, BatchHeader
from penstock.records.builder import iterate_records

REMEMBERED_BATCHES = 5
REMEMBERED_REFUSALS = 1_000
SEQUENCES = 1 << 31
SNAPSHOT_HEAD = Struct(">hIi")
_CRC_END = 6
SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_EARLIER_HEAD = Struct(">iB")
_EARLIER_BATCH = Struct(">iiq")
_CONTROL_VALUE = Struct(">hi")  # version, coordinator epoch


class ProducedBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int


_NO_BATCH = ProducedBatch(NO_SEQUENCE, NO_SEQUENCE, -1, -1)


class Producer:
    """One producer id. `batches` are of the current epoch, oldest first.

    `last_timestamp` is what its records say and may be years ago; idleness counts from
    `last_seen_ms`, the first look at the clock (`ProducerStates.expire`) after its last batch.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "copy_number",
        "epoch",
        "first_sequence",
        "is_fresh",
        "last_seen_ms",
        "last_timestamp",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: list[ProducedBatch] = []
        self.first_sequence: int | None = None  # of this epoch; None: not known, a snapshot does not say
        self.last_timestamp = -1
        self.last_seen_ms = -1
        self.is_fresh = True
        self.coordinator_epoch = -1
        self.transaction_first_offset = -1
        self.copy_number = 0  # that of `ProducerStates` when it was made: an older one is shared with a snapshot

    def copy(self, copy_number: int) -> Producer:
        result = Producer(self.producer_id, self.epoch)
        result.batches = self.batches[:]
        result.first_sequence = self.first_sequence
        result.last_timestamp = self.last_timestamp
        result.last_seen_ms = self.last_seen_ms
        result.is_fresh = self.is_fresh
        result.coordinator_epoch = self.coordinator_epoch
        result.transaction_first_offset = self.transaction_first_offset
        result.copy_number = copy_number
        return result

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1


class _Refused(NamedTuple):
    """The first batch of a producer that was refused, and comes again."""

    epoch: int
    sequence: int
    is_old: bool = False

    def comes_before(self, header: BatchHeader) -> bool:
        return header.producer_epoch == self.epoch and is_later(header.base_sequence, self.sequence)

    def comes_after(self, header: BatchHeader) -> bool:
        return header.producer_epoch == self.epoch and is_later(self.sequence, header.base_sequence)


def is_later(sequence: int, than: int) -> bool:
    """Sequence numbers begin again at 0 after the largest one."""
    return 0 < (sequence - than) % SEQUENCES < SEQUENCES // 2


class ProducerStates:
    """All producers of one log.

    `has_earlier_batches`: False for what was read from a snapshot with nothing but the last batch of each.
    """

    __slots__ = (
        "_copies",
        "_producers",
        "_refused",
        "_transactions",
        "has_earlier_batches",
        "snapshot_version",
        "version",
    )

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._refused: dict[int, _Refused] = {}  # of producers not known yet
        self._transactions: set[int] = set()  # producer ids with an open transaction
        self.has_earlier_batches = True
        self.version = 0  # rises with every change
        self.snapshot_version = 0  # the one that the newest snapshot holds
        self._copies = 0

    @property
    def is_dirty(self) -> bool:
        """Changed since the last snapshot."""
        return self.version != self.snapshot_version

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def check(self, header: BatchHeader, is_replication: bool = False) -> int | None:
        """None: append it. An offset: it is there already, at that base offset. Raises ApiError."""
        producer = self._producers.get(header.producer_id)
        if producer is None or is_replication:
            # A producer we know nothing of may start anywhere: its state may have expired (KIP-360).
            if self._refused and not is_replication:
                self._check_refused(header)
            return None
        first, epoch = header.base_sequence, header.producer_epoch
        if epoch == producer.epoch:
            last_sequence = producer.last_sequence
            if first == (last_sequence + 1) & 0x7FFFFFFF:
                return None
            return self._find_repeated(producer, header, last_sequence)
        if epoch < producer.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} comes with epoch {epoch}, the last seen is {producer.epoch}",
            )
        if first != 0:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} starts epoch {epoch} with sequence {first}, not 0",
            )
        return None

    def refuse(self, header: BatchHeader) -> None:
        """It was not appended for a reason that passes, and comes again: nothing that follows it may come before."""
        if header.producer_id >= 0 and header.producer_id not in self._producers:
            if len(self._refused) >= REMEMBERED_REFUSALS:
                self._refused.clear()
            refused = self._refused.get(header.producer_id)
            if refused is None or refused.epoch < header.producer_epoch or refused.comes_after(header):
                self._refused[header.producer_id] = _Refused(header.producer_epoch, header.base_sequence)
            elif refused.epoch == header.producer_epoch:
                self._refused[header.producer_id] = refused._replace(is_old=False)

    def _check_refused(self, header: BatchHeader) -> None:
        refused = self._refused.get(header.producer_id)
        if refused is not None and refused.comes_before(header):
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} comes with sequence {header.base_sequence}, and {refused.sequence} was "
                "refused",
            )

    @staticmethod
    def _find_repeated(producer: Producer, header: BatchHeader, last_sequence: int) -> int:
        first, last = header.base_sequence, header.last_sequence
        for batch in producer.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch.first_offset
        # Between the first sequence we saw and the last, on the circle of sequence numbers: stored
        # once, forgotten since. Behind the first we cannot know: the batch may have been refused, and
        # clients take "duplicate" for "stored".
        oldest = producer.first_sequence
        if (
            oldest is not None
            and (first - oldest) & 0x7FFFFFFF <= (last - oldest) & 0x7FFFFFFF <= (last_sequence - oldest) & 0x7FFFFFFF
        ):
            raise ApiError(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                f"producer {header.producer_id} repeats sequence {first} to {last}, the last seen is {last_sequence}",
            )
        raise ApiError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} comes with sequence {first}, the last seen is {last_sequence}",
        )

    def update(self, header: BatchHeader, base_offset: int, data: Buffer) -> None:
        """`data`, the whole batch of a producer, was appended at `base_offset`."""
        (_, _, _, _, _, attributes, delta, _, max_timestamp, producer_id, epoch, base_sequence, _) = header
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(producer_id, epoch)
            producer.copy_number = self._copies
            self._refused.pop(producer_id, None)
        else:
            if producer.copy_number != self._copies:
                producer = self._producers[producer_id] = producer.copy(self._copies)
            if producer.epoch != epoch:
                producer.epoch = epoch
                producer.batches.clear()
                producer.first_sequence = None
        self.version += 1
        producer.last_timestamp = max_timestamp
        producer.is_fresh = True
        if attributes & CONTROL_BIT:
            self._end_transaction(producer, header, data)
            return
        batches = producer.batches
        if not batches:
            producer.first_sequence = base_sequence
        if len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        batches.append(
            ProducedBatch(base_sequence, (base_sequence + delta) & 0x7FFFFFFF, base_offset, base_offset + delta)
        )
        if attributes & TRANSACTIONAL_BIT and producer.transaction_first_offset < 0:
            producer.transaction_first_offset = base_offset
            self._transactions.add(producer_id)

    def _end_transaction(self, producer: Producer, header: BatchHeader, data: Buffer) -> None:
        """A control batch: its one record is the marker. An empty one lost it to compaction."""
        producer.transaction_first_offset = -1
        self._transactions.discard(producer.producer_id)
        for record in iterate_records(header, memoryview(data)[HEADER_SIZE:]):
            if record.value is not None and len(record.value) >= _CONTROL_VALUE.size:
                producer.coordinator_epoch = _CONTROL_VALUE.unpack_from(record.value)[1]

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        if not self._transactions:
            return None
        return min(self._producers[producer_id].transaction_first_offset for producer_id in self._transactions)

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Forget idle producers without an open transaction; their ids."""
        expired: list[int] = []
        # Whoever has not come back from one look at the clock to the next has given up.
        self._refused = {one: left._replace(is_old=True) for one, left in self._refused.items() if not left.is_old}
        for producer in self._producers.values():
            if producer.is_fresh:
                producer.is_fresh = False
                producer.last_seen_ms = now_ms
            elif producer.transaction_first_offset < 0 and now_ms - producer.last_seen_ms >= expiration_ms:
                expired.append(producer.producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
            self.version += 1
        return expired

    def freeze(self) -> FrozenProducers:
        """The state of this moment, for a worker to encode. Cheap: whatever changes from now on is copied first."""
        self._copies += 1
        return FrozenProducers(self, list(self._producers.values()))

    def encode_snapshot(self) -> bytes:
        return _encode(list(self._producers.values()))

    @classmethod
    def decode_snapshot(cls, data: bytes) -> ProducerStates | None:
        """None when the file is torn or damaged: an older one then serves."""
        states = cls()
        if len(data) < SNAPSHOT_HEAD.size:
            return None
        version, crc, count = SNAPSHOT_HEAD.unpack_from(data)
        if version != 1 or crc != crc32c(memoryview(data)[_CRC_END:]):
            return None
        end = SNAPSHOT_HEAD.size + count * SNAPSHOT_ENTRY.size
        if count < 0 or len(data) < end:
            return None
        earlier = read_earlier_batches(data, end, count)
        if earlier is None:
            return None
        for entry in SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[SNAPSHOT_HEAD.size : end]):
            states._restore(Producer(entry[0], entry[1]), entry)
        states.has_earlier_batches = len(earlier) == count
        for producer, (first_sequence, batches) in zip(states, earlier, strict=False):
            producer.first_sequence = None if first_sequence < 0 else first_sequence
            producer.batches[:0] = batches
        return states

    def recall(self, headers: Iterable[BatchHeader]) -> None:
        """Kafka's snapshot knows the last batch of each producer; the log, just before it, knows some more of them."""
        chains: dict[int, list[ProducedBatch]] = {}
        for header in headers:
            producer = self._producers.get(header.producer_id)
            if producer is None or producer.epoch != header.producer_epoch or header.is_control:
                continue
            chain = chains.setdefault(header.producer_id, [])
            if chain and header.base_sequence != (chain[-1].last_sequence + 1) & 0x7FFFFFFF:
                chain.clear()
            chain.append(
                ProducedBatch(header.base_sequence, header.last_sequence, header.base_offset, header.last_offset)
            )
        for producer_id, chain in chains.items():
            producer = self._producers[producer_id]
            if producer.batches == chain[-1:]:
                producer.first_sequence = chain[0].first_sequence
                producer.batches = chain[-REMEMBERED_BATCHES:]

    def _restore(self, producer: Producer, entry: tuple[int, ...]) -> None:
        _, _, sequence, offset, delta, timestamp, coordinator_epoch, transaction_first_offset = entry
        if offset >= 0:
            first_sequence = (sequence - delta) & 0x7FFFFFFF
            producer.batches.append(ProducedBatch(first_sequence, sequence, offset - delta, offset))
        producer.last_timestamp = timestamp
        producer.coordinator_epoch = coordinator_epoch
        producer.transaction_first_offset = transaction_first_offset
        self._producers[producer.producer_id] = producer
        if transaction_first_offset >= 0:
            self._transactions.add(producer.producer_id)


class FrozenProducers:
    """What a log knew of its producers at one moment."""

    __slots__ = ("_producers", "_states", "_version")

    def __init__(self, states: ProducerStates, producers: list[Producer]) -> None:
        self._states = states
        self._version = states.version
        self._producers = producers

    def encode(self) -> bytes:
        """As `ProducerStates.encode_snapshot` then. May run in a thread."""
        return _encode(self._producers)

    def is_kept(self) -> None:
        """A snapshot holds it."""
        self._states.snapshot_version = max(self._states.snapshot_version, self._version)


def _encode(producers: list[Producer]) -> bytes:
    out = bytearray(SNAPSHOT_HEAD.pack(1, 0, len(producers)))
    for producer in producers:
        last = producer.batches[-1] if producer.batches else _NO_BATCH
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
    out[2:_CRC_END] = crc32c(memoryview(out)[_CRC_END:]).to_bytes(4, "big")
    return bytes(out)


def read_earlier_batches(data: bytes, start: int, count: int) -> list[tuple[int, list[ProducedBatch]]] | None:
    """Behind the entries of a snapshot: (first sequence of the epoch, batches before the last) of each producer.

    Empty where Kafka wrote it; None when the bytes make no sense.
    """
    if len(data) == start:
        return []
    found: list[tuple[int, list[ProducedBatch]]] = []
    at = start
    for _ in range(count):
        if at + _EARLIER_HEAD.size > len(data):
            return None
        first_sequence, number = _EARLIER_HEAD.unpack_from(data, at)
        at += _EARLIER_HEAD.size
        end = at + number * _EARLIER_BATCH.size
        if number >= REMEMBERED_BATCHES or end > len(data):
            return None
        batches = [
            ProducedBatch(first, (first + delta) & 0x7FFFFFFF, offset, offset + delta)
            for first, delta, offset in _EARLIER_BATCH.iter_unpack(memoryview(data)[at:end])
        ]
        found.append((first_sequence, batches))
        at = end
    return found if at == len(data) else None
