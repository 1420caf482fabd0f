"""One producer as a log remembers it: its epoch, its last batches, and where its open transaction begins."""

from __future__ import annotations

from typing import NamedTuple

from penstock.records.batch import NO_SEQUENCE

REMEMBERED_BATCHES = 5


class ProducedBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int


NO_BATCH = ProducedBatch(NO_SEQUENCE, NO_SEQUENCE, -1, -1)


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
        self.first_sequence: int | None = None  # of this epoch; None: unknown, because a snapshot does not contain it
        self.last_timestamp = -1
        self.last_seen_ms = -1
        self.is_fresh = True
        self.coordinator_epoch = -1
        self.transaction_first_offset = -1
        # the number in `ProducerStates` when this copy was made: an older copy is shared with a snapshot
        self.copy_number = 0

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
