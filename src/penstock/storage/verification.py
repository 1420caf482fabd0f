"""A batch opens a transaction only after the coordinator has said that this transaction is under way (KIP-890).

The question takes a round trip. Meanwhile the transaction may end: its marker is appended, and the batch that comes
after it would open one that nobody ever ends. So the question hands out a guard, and the append shows it: a marker, a
batch that opened the transaction, or time makes it void.

Must not know: who asks the coordinator, and how. Memory of the leader alone; nobody replicates it.
"""

from __future__ import annotations

from penstock.model.errors import ApiError, ErrorCode
from penstock.records.batch import BatchHeader

MOST_GUARDS = 10_000  # of one log; the one that was asked for longest ago becomes void


class Guard:
    """What one producer was asked about. Its identity is what counts."""

    __slots__ = ("epoch", "lowest_sequence", "producer_id", "raises_epoch", "seen_ms")

    def __init__(self, producer_id: int, sequence: int, epoch: int, *, raises_epoch: bool) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.lowest_sequence = sequence
        """Of the batches that were held back: those behind it wait for it to come again."""
        self.raises_epoch = raises_epoch
        """The producer speaks the second version of the protocol: each transaction has an epoch of its own."""
        self.seen_ms = -1

    def asks_again(self, sequence: int, epoch: int) -> None:
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


class Guards:
    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, Guard] = {}

    def __len__(self) -> int:
        return len(self._by_producer)

    def begin(self, producer_id: int, sequence: int, epoch: int, *, raises_epoch: bool) -> Guard:
        guard = self._by_producer.get(producer_id)
        if guard is None:
            if len(self._by_producer) >= MOST_GUARDS:
                del self._by_producer[next(iter(self._by_producer))]
            guard = self._by_producer[producer_id] = Guard(producer_id, sequence, epoch, raises_epoch=raises_epoch)
        else:
            guard.asks_again(sequence, epoch)
            self._by_producer[producer_id] = self._by_producer.pop(producer_id)
        return guard

    def check(self, header: BatchHeader, guard: Guard | None, *, has_batches: bool) -> None:
        """Before a batch that opens a transaction. Raises ApiError."""
        known = self._by_producer.get(header.producer_id)
        if guard is None or guard is not known:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} sends a batch that is not part of a transaction under way",
            )
        sequence = header.base_sequence
        if sequence < 0:  # of a coordinator: no sequences
            return
        if guard.raises_epoch and sequence != 0 and not has_batches:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence {sequence}, not 0",
            )
        if sequence > guard.lowest_sequence:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} comes with sequence {sequence}, and {guard.lowest_sequence} was held "
                "back",
            )

    def appended(self, producer_id: int, epoch: int, *, is_marker: bool) -> None:
        """A transactional batch voids the guard of its transaction, and those before. The marker of a transaction has
        the epoch of the next one, whose guard stays."""
        guard = self._by_producer.get(producer_id)
        if guard is None:
            return
        is_of_next = guard.epoch > epoch or (is_marker and guard.raises_epoch and guard.epoch == epoch)
        if not is_of_next:
            del self._by_producer[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        for guard in list(self._by_producer.values()):
            if guard.seen_ms < 0:
                guard.seen_ms = now_ms
            elif now_ms - guard.seen_ms >= expiration_ms:
                del self._by_producer[guard.producer_id]

    def forget(self, producer_id: int) -> None:
        self._by_producer.pop(producer_id, None)
