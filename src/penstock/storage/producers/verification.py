"""Guards: a batch opens a transaction in a log only after the coordinator has confirmed that transaction (KIP-890).

The question to the coordinator takes a round trip. The transaction may end in that time: its marker is appended, and
the batch that follows would open a transaction that nobody ever ends. So the question creates a guard, and the append
must present it. A marker, a batch that opened the transaction, or the passing of time makes the guard void.

Guards are in the memory of the leader only, and are not replicated. Must not know: who asks the coordinator, and how.
"""

from __future__ import annotations

from penstock.model.errors import ApiError, ErrorCode
from penstock.records.batch import BatchHeader

MOST_GUARDS = 10_000  # per log; beyond that the oldest guard becomes void


class Guard:
    """One question to the coordinator about a producer. Guards are compared by identity."""

    __slots__ = ("epoch", "lowest_sequence", "producer_id", "raises_epoch", "seen_ms")

    def __init__(self, producer_id: int, sequence: int, epoch: int, *, raises_epoch: bool) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.lowest_sequence = sequence
        """The lowest sequence of the batches that were refused: later batches must wait for its retry."""
        self.raises_epoch = raises_epoch
        """The producer uses transaction version 2: each transaction has its own epoch."""
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
        """Call before a batch that opens a transaction is appended. Raises ApiError."""
        known = self._by_producer.get(header.producer_id)
        if guard is None or guard is not known:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} sent a batch that is not part of an open transaction",
            )
        sequence = header.base_sequence
        if sequence < 0:  # written by a coordinator: without sequences
            return
        if guard.raises_epoch and sequence != 0 and not has_batches:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} starts epoch {header.producer_epoch} with sequence {sequence}, not 0",
            )
        if sequence > guard.lowest_sequence:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {sequence}, but sequence {guard.lowest_sequence} was "
                "refused before and must be retried first",
            )

    def appended(self, producer_id: int, epoch: int, *, is_marker: bool) -> None:
        """A transactional batch makes the guards of its transaction and of earlier ones void. In version 2 a marker has
        the epoch of the next transaction, whose guard stays valid."""
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
