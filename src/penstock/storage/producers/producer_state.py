"""The state of a log's idempotent and transactional producers.

`check` decides before an append whether a batch is new, a repeat or out of order. `check_marker` decides the same for
the marker that ends a transaction, and `check_verified` for a batch that begins one. `update` records the append. The
last five batches of each producer are remembered, so a client with five requests in flight may repeat any of them.
State is dropped only when a producer has been idle for `producer_id_expiration_ms`: deleting its records does not
forget it. A `.snapshot` file keeps it over a restart (`producer_snapshot`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.disk import Buffer
from penstock.records.batch import CONTROL_BIT, NO_SEQUENCE, TRANSACTIONAL_BIT, BatchHeader
from penstock.records.control import ABORT, marker_of
from penstock.storage.producers import producer_snapshot
from penstock.storage.producers.producer import REMEMBERED_BATCHES, ProducedBatch, Producer
from penstock.storage.producers.transactions import AbortedTransaction, DecidedTransaction, MarkerCheck, Transactions
from penstock.storage.producers.verification import Guard, Guards

REMEMBERED_REFUSALS = 1_000
SEQUENCES = 1 << 31
MAX_EPOCH = 0x7FFF  # of a producer; the next transaction has another producer id


class _Refused(NamedTuple):
    """The first refused batch of a producer; the client will retry it."""

    epoch: int
    sequence: int
    is_old: bool = False

    def comes_before(self, header: BatchHeader) -> bool:
        return header.producer_epoch == self.epoch and is_later(header.base_sequence, self.sequence)

    def comes_after(self, header: BatchHeader) -> bool:
        return header.producer_epoch == self.epoch and is_later(self.sequence, header.base_sequence)


def is_later(sequence: int, than: int) -> bool:
    """Sequence numbers wrap to 0 after the largest one."""
    return 0 < (sequence - than) % SEQUENCES < SEQUENCES // 2


class ProducerStates:
    """All producers of one log.

    `has_earlier_batches` is False after reading a snapshot that has only the last batch of each producer.
    """

    __slots__ = (
        "_copies",
        "_guards",
        "_producers",
        "_refused",
        "has_earlier_batches",
        "snapshot_version",
        "transactions",
        "version",
    )

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._refused: dict[int, _Refused] = {}  # of producers not known yet
        self.transactions = Transactions()
        self._guards = Guards()
        self.has_earlier_batches = True
        self.version = 0  # grows with every change
        self.snapshot_version = 0  # the version in the newest snapshot
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
        """None: append it. An offset: the batch is already stored at that base offset. Raises ApiError."""
        producer = self._producers.get(header.producer_id)
        if producer is None or is_replication:
            # An unknown producer may start at any sequence: its state may have expired (KIP-360).
            if self._refused and not is_replication:
                self._check_refused(header)
            return None
        first, epoch = header.base_sequence, header.producer_epoch
        if epoch == producer.epoch:
            last_sequence = producer.last_sequence
            # After a marker alone the next sequence must be 0. Batches of a coordinator have no sequence.
            if first != (last_sequence + 1) & 0x7FFFFFFF and first != NO_SEQUENCE:
                return self._find_repeated(producer, header, last_sequence)
            if producer.transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
                self._refuse_outside(producer)
            return None
        if epoch < producer.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} sent epoch {epoch}, but the current one is {producer.epoch}",
            )
        if first != 0 and first != NO_SEQUENCE:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} starts epoch {epoch} with sequence {first}, not 0",
            )
        if producer.transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            self._refuse_outside(producer)
        return None

    @staticmethod
    def _refuse_outside(producer: Producer) -> NoReturn:
        raise ApiError(
            ErrorCode.INVALID_TXN_STATE,
            f"producer {producer.producer_id} sent a batch outside of its transaction, which has been open since "
            "offset "
            f"{producer.transaction_first_offset}",
        )

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> MarkerCheck:
        """Whether to append the marker that a coordinator sends. Raises ApiError.

        In version 2 of the protocol a marker raises the epoch, and data with that epoch belongs to the next
        transaction. A repeated marker must not end that transaction. It must not be refused either: the coordinator
        would send it for ever (KAFKA-19999). At the largest epoch there is no next transaction, and the marker has the
        epoch of its data. The same holds for older versions, where a repeat looks like any other marker.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return MarkerCheck.APPEND
        if epoch < producer.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of producer {producer_id} has epoch {epoch}, but the current epoch is {producer.epoch}",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of producer {producer_id} has coordinator epoch {coordinator_epoch}, but the current one "
                f"is {producer.coordinator_epoch}",
            )
        is_open = producer.transaction_first_offset >= 0
        if transaction_version >= 2 and epoch == producer.epoch and not (is_open and epoch == MAX_EPOCH):
            return MarkerCheck.ALREADY_THERE
        return MarkerCheck.APPEND

    # -- verification ----------------------------------------------------------------------------------------

    def needs_verification(self, header: BatchHeader) -> bool:
        """Whether the batch would begin a transaction, so that the coordinator must be asked first."""
        if header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) != TRANSACTIONAL_BIT:
            return False
        return not self._is_open(header.producer_id, header.producer_epoch)

    def _is_open(self, producer_id: int, epoch: int) -> bool:
        producer = self._producers.get(producer_id)
        return producer is not None and producer.transaction_first_offset >= 0 and producer.epoch == epoch

    def begin_verification(
        self, producer_id: int, sequence: int, epoch: int, *, raises_epoch: bool = False
    ) -> Guard | None:
        """Call before the coordinator is asked. The batch is later appended with the returned guard (`check_verified`).
        None: the transaction is already open here, so no question is needed. Raises ApiError. `raises_epoch`: True for
        transaction version 2."""
        producer = self._producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {epoch}, but the current epoch is {producer.epoch}",
            )
        if self._is_open(producer_id, epoch):
            return None
        return self._guards.begin(producer_id, sequence, epoch, raises_epoch=raises_epoch)

    def check_verified(self, header: BatchHeader, guard: Guard | None) -> None:
        """Call after `check` has found the batch to be new, if transactions are verified. Raises ApiError."""
        if self.needs_verification(header):
            producer = self._producers.get(header.producer_id)
            self._guards.check(header, guard, has_batches=producer is not None and bool(producer.batches))

    # -- what was refused ------------------------------------------------------------------------------------

    def refuse(self, header: BatchHeader) -> None:
        """The batch was refused for a temporary reason and will be retried: later batches must not pass it."""
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
                f"producer {header.producer_id} sent sequence {header.base_sequence}, but sequence {refused.sequence} "
                "was "
                "refused",
            )

    @staticmethod
    def _find_repeated(producer: Producer, header: BatchHeader, last_sequence: int) -> int:
        first, last = header.base_sequence, header.last_sequence
        for batch in producer.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch.first_offset
        # Between the first and the last known sequence, on the circle of sequence numbers: the batch was stored
        # once and forgotten since. Before the first it is unknown: the batch may have been refused, and
        # clients take "duplicate" for "stored".
        oldest = producer.first_sequence
        if (
            oldest is not None
            and (first - oldest) & 0x7FFFFFFF <= (last - oldest) & 0x7FFFFFFF <= (last_sequence - oldest) & 0x7FFFFFFF
        ):
            raise ApiError(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                f"producer {header.producer_id} repeats sequences {first} to {last}; the last one is {last_sequence}",
            )
        raise ApiError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sent sequence number {first}; the last one is {last_sequence}",
        )

    # -- what was appended -----------------------------------------------------------------------------------

    def update(self, header: BatchHeader, base_offset: int, data: Buffer) -> AbortedTransaction | None:
        """`data`, the whole batch of a producer, was appended at `base_offset`. Returns the transaction that it aborts,
        if any.
        """
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
        if attributes & TRANSACTIONAL_BIT and self._guards:
            self._guards.appended(producer_id, epoch, is_marker=bool(attributes & CONTROL_BIT))
        if attributes & CONTROL_BIT:
            return self._end_transaction(producer, header, base_offset, data)
        batches = producer.batches
        if not batches:
            producer.first_sequence = base_sequence
        if len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        last_sequence = (base_sequence + delta) & 0x7FFFFFFF if base_sequence >= 0 else NO_SEQUENCE
        batches.append(ProducedBatch(base_sequence, last_sequence, base_offset, base_offset + delta))
        if attributes & TRANSACTIONAL_BIT and producer.transaction_first_offset < 0:
            producer.transaction_first_offset = base_offset
            self.transactions.begin(base_offset, producer_id)
        return None

    def _end_transaction(
        self, producer: Producer, header: BatchHeader, base_offset: int, data: Buffer
    ) -> AbortedTransaction | None:
        """A control batch has one record, the marker. If it is empty, compaction has removed the record."""
        marker = marker_of(header, data)
        if marker is not None and marker.coordinator_epoch >= 0:
            producer.coordinator_epoch = marker.coordinator_epoch
        first_offset, producer.transaction_first_offset = producer.transaction_first_offset, -1
        if first_offset < 0:
            return None
        last_stable_offset = self.transactions.end(first_offset, base_offset)
        if marker is None or marker.kind != ABORT:
            return None
        return AbortedTransaction(producer.producer_id, first_offset, base_offset, last_stable_offset)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of the oldest transaction that is open, or whose marker is not below `high_watermark`. A
        high watermark goes back only when the log is cut, and a cut rebuilds the producers."""
        return self.transactions.first_unstable_offset(high_watermark)

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Drop idle producers without an open transaction; return their ids."""
        expired: list[int] = []
        # A producer that did not retry between two checks has given up.
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
        if self._guards:
            for producer_id in expired:
                self._guards.forget(producer_id)
            self._guards.expire(now_ms, expiration_ms)
        return expired

    def freeze(self) -> FrozenProducers:
        """Return the current state for a worker to encode. Cheap: later changes copy the producer first."""
        self._copies += 1
        return FrozenProducers(self, list(self._producers.values()), self.transactions.decided)

    def encode_snapshot(self) -> bytes:
        return producer_snapshot.encode(list(self._producers.values()), self.transactions.decided)

    @classmethod
    def decode_snapshot(cls, data: bytes) -> ProducerStates | None:
        """None if the file is torn or damaged: then an older snapshot is used."""
        snapshot = producer_snapshot.decode(data)
        if snapshot is None:
            return None
        states = cls()
        for producer in snapshot.producers:
            states._restore(producer)
        states.has_earlier_batches = snapshot.has_earlier_batches
        opened = (
            (one.transaction_first_offset, one.producer_id) for one in states if one.transaction_first_offset >= 0
        )
        states.transactions.restore(opened, snapshot.decided)
        return states

    def _restore(self, producer: Producer) -> None:
        self._producers[producer.producer_id] = producer

    def recall(self, headers: Iterable[BatchHeader]) -> None:
        """Add earlier batches from the log: Kafka's snapshot has only the last batch of each producer."""
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


class FrozenProducers:
    """The producers of a log at one moment."""

    __slots__ = ("_decided", "_producers", "_states", "_version")

    def __init__(self, states: ProducerStates, producers: list[Producer], decided: list[DecidedTransaction]) -> None:
        self._states = states
        self._version = states.version
        self._producers = producers
        self._decided = decided

    def encode(self) -> bytes:
        """The bytes of the snapshot. May run in a thread."""
        return producer_snapshot.encode(self._producers, self._decided)

    def is_kept(self) -> None:
        """A snapshot contains this state."""
        self._states.snapshot_version = max(self._states.snapshot_version, self._version)
