"""A transactional id as stored: one immutable value, and its successors.

Epochs: a producer uses the epoch it was given. Its successor with the same transactional id gets a higher one, and the
partitions refuse the lower one. Under transaction version 2 the epoch also rises at each end of a transaction, so late
requests of an ended transaction are refused (KIP-890).

Must not know: the bytes of records, partitions' leaders, clocks. Times are wall-clock arguments, as stored.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from penstock.core.txn.states import Move, State, moved

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
LARGEST_EPOCH: Final = 32_767
NO_TIME: Final = -1
NEVER_MS: Final = 2_147_483_647
"""The timeout of a transaction that an outside coordinator decides (two-phase commit, KIP-939)."""
FIRST_WITH_RISING_EPOCHS: Final = 2
LATEST_VERSION: Final = 2

Partition: TypeAlias = tuple[str, int]
"""(topic, partition)"""
NO_PARTITIONS: Final[frozenset[Partition]] = frozenset()


class Transaction(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[Partition]
    last_update_ms: int
    start_ms: int = NO_TIME
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH
    version: int = 0
    """The transaction version of the last client request."""

    @property
    def raises_epochs(self) -> bool:
        return self.version >= FIRST_WITH_RISING_EPOCHS

    @property
    def is_exhausted(self) -> bool:
        """The next end of a transaction would use up the last epoch of this producer id."""
        return self.epoch >= LARGEST_EPOCH - 1

    @property
    def has_last_epoch(self) -> bool:
        """Of markers alone: no producer works with it."""
        return self.epoch >= LARGEST_EPOCH

    @property
    def is_decided_outside(self) -> bool:
        return self.timeout_ms == NEVER_MS

    @property
    def is_ending(self) -> bool:
        return self.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def may_expire(self) -> bool:
        return self.state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

    @property
    def follow_up(self) -> tuple[int, int]:
        """(producer id, epoch) with which the client continues after the decided end."""
        return (self.next_producer_id, 0) if self.next_producer_id >= 0 else (self.producer_id, self.epoch)

    def epoch_of(self, producer_id: int) -> int | None:
        """The epoch of the client that has this producer id; None: no client has it.

        If the end of a transaction changes the id, its client uses the new one before the markers are written.
        """
        if producer_id == self.producer_id:
            return self.epoch
        return 0 if 0 <= producer_id == self.next_producer_id else None

    # # -- successors -------------------------------------------------------------------------

    def initialised(self, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int) -> Transaction:
        return self._replace(
            state=moved(self.state, Move.INIT),
            previous_producer_id=self.producer_id,
            epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=NO_PARTITIONS,
            start_ms=NO_TIME,
            last_update_ms=now_ms,
        )

    def with_producer_id(self, producer_id: int, last_epoch: int, timeout_ms: int, now_ms: int) -> Transaction:
        """A new producer id, because the epochs of the old one are used up."""
        return self.initialised(0, last_epoch, timeout_ms, now_ms)._replace(producer_id=producer_id)

    def with_partitions(self, added: frozenset[Partition], version: int, now_ms: int) -> Transaction:
        return self._replace(
            state=moved(self.state, Move.ADD),
            previous_producer_id=self.producer_id,
            partitions=self.partitions | added,
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms,
            last_update_ms=now_ms,
            version=version,
        )

    def ended(self, move: Move, version: int, next_producer_id: int, now_ms: int) -> Transaction:
        """Decided: COMMIT or ABORT. Under version 2 the markers carry the raised epoch."""
        rises = version >= FIRST_WITH_RISING_EPOCHS
        return self._replace(
            state=moved(self.state, move),
            previous_producer_id=self.producer_id,
            next_producer_id=next_producer_id,
            epoch=self.epoch + 1 if rises else self.epoch,
            last_epoch=self.epoch if rises else self.last_epoch,
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms,
            last_update_ms=now_ms,
            version=version,
        )

    def fenced(self, version: int, now_ms: int) -> Transaction:
        """Aborted by the coordinator: the producer of this transaction may not continue."""
        state = moved(moved(self.state, Move.FENCE), Move.ABORT)
        return self._replace(
            state=state,
            previous_producer_id=self.producer_id,
            epoch=min(self.epoch + 1, LARGEST_EPOCH),
            last_epoch=self.epoch if version >= FIRST_WITH_RISING_EPOCHS else NO_EPOCH,
            last_update_ms=now_ms,
            version=version,
        )

    def completed(self, now_ms: int) -> Transaction:
        producer_id, epoch = self.follow_up
        return self._replace(
            state=moved(self.state, Move.COMPLETE),
            previous_producer_id=self.producer_id,
            producer_id=producer_id,
            epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=NO_PARTITIONS,
            last_update_ms=now_ms,
        )
