"""Remembers batches of idempotent producers for partitions that this broker did not lead yet.

A client sends further batches before it knows that the first was refused. If this broker has become the leader in
between, and the log knows nothing of the producer, the second batch would be appended. A retry of the first would then
be refused for ever. The log remembers batches that it refused itself (`ProducerStates.refuse`). This module remembers
batches that no log has seen: for a topic that is being created, or a leader that has just been elected.

Must not know: why a batch was refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.core.metadata.decisions import MAX_TOPIC_NAME
from penstock.model.errors import ApiError, ErrorCode
from penstock.ports.disk import Buffer
from penstock.records.batch import HEADER_SIZE, BatchHeader, read_header
from penstock.storage.producers.producer_state import ProducerStates, is_later

REMEMBERED: Final = 1000
REMEMBERED_S: Final = 5.0
"""Batches in flight behind a refused one have arrived by then."""


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    until_s: float


class EarlyBatches:
    def __init__(self) -> None:
        self._refused: dict[tuple[bytes | str, int, int], _Refused] = {}
        self._until_s = 0.0  # when the newest entry expires

    def __len__(self) -> int:
        return len(self._refused)

    def refuse(self, topic: bytes | str, index: int, records: object, now_s: float) -> None:
        """For a partition that is not led here. The first batch of its producer counts."""
        header = _header(records)
        if header is None or header.producer_id < 0 or len(topic) > MAX_TOPIC_NAME:  # no topic has such a name
            return
        key = topic, index, header.producer_id
        found = self._refused.get(key)
        is_over = found is None or found.until_s <= now_s or found.epoch < header.producer_epoch
        if is_over or (found is not None and is_later(found.sequence, header.base_sequence)):
            if len(self._refused) >= REMEMBERED:
                self._refused.clear()
            self._until_s = now_s + REMEMBERED_S
            self._refused[key] = _Refused(header.producer_epoch, header.base_sequence, self._until_s)

    def check(self, topic: bytes | str, index: int, records: Buffer, producers: ProducerStates, now_s: float) -> None:
        """Raises OUT_OF_ORDER_SEQUENCE_NUMBER if an earlier batch must be retried first."""
        if now_s >= self._until_s:
            self._refused.clear()
            return
        header = _header(records)
        if header is None:
            return
        key = topic, index, header.producer_id
        found = self._refused.get(key)
        if found is None:
            return
        is_over = found.until_s <= now_s or producers.get(header.producer_id) is not None
        if is_over or found.epoch != header.producer_epoch or not is_later(header.base_sequence, found.sequence):
            del self._refused[key]
            return
        raise ApiError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {header.producer_id} sent sequence {header.base_sequence}, but sequence {found.sequence} was "
            "refused before and must be retried first",
        )


def _header(records: object) -> BatchHeader | None:
    """The input may be invalid."""
    if not isinstance(records, (bytes, bytearray, memoryview)) or len(records) < HEADER_SIZE:
        return None
    return read_header(records)
