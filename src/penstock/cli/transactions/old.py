"""Old open transactions of partitions, each with the state that its coordinator has.

A transaction hangs if it is open in a partition and no coordinator will ever end it there: no transactional id has its
producer id, or the transaction of that id does not have this partition. An open transaction holds the last stable
offset of its partition, so consumers with read_committed cannot read past it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from penstock.model.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from penstock.model.topic_partition import TopicPartition
    from penstock.wire_client.blocking.transaction_admin import TransactionAdmin
    from penstock.wire_client.requests.transactions import PartitionProducer, TransactionDescription


class OldTransaction(NamedTuple):
    producer: PartitionProducer
    """State in the partition, from its leader."""
    known: TransactionDescription | None
    """State of the transactional id with this producer id, from its coordinator. None: there is no such id."""

    @property
    def is_hanging(self) -> bool:
        return self.known is None or self.producer.partition not in self.known.partitions


def old_transactions(
    admin: TransactionAdmin, longer_than_ms: int, topics: Iterable[str] | None = None, partition: int | None = None
) -> list[OldTransaction]:
    """Open transactions whose last write is at least that old. Without `topics` and `partition`: of all partitions."""
    last_ms = time.time() * 1000 - longer_than_ms
    found = [
        one
        for one in admin.open_transactions(topics)
        if one.last_write_ms < last_ms and partition in (None, one.partition.partition)
    ]
    if not found:
        return []
    known = coordinated(admin, {one.producer_id for one in found})
    # Asked again: a transaction that has ended in between is no longer part of its coordinator's state either.
    still = {_identity(one) for one in admin.open_transactions({one.partition.topic for one in found})}
    return [OldTransaction(one, known.get(one.producer_id)) for one in found if _identity(one) in still]


def _identity(one: PartitionProducer) -> tuple[TopicPartition, int, int | None]:
    return one.partition, one.producer_id, one.start_offset


def coordinated(admin: TransactionAdmin, producer_ids: Iterable[int]) -> dict[int, TransactionDescription]:
    """By producer id. Those that no coordinator knows are left out."""
    from penstock.wire_client.requests.transactions import TransactionFilter

    found: dict[int, TransactionDescription] = {}
    for listed in admin.transactional_ids(TransactionFilter(producer_ids=sorted(producer_ids))):
        try:
            found[listed.producer_id] = admin.describe(listed.transactional_id)
        except ApiError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # it has expired meanwhile
                raise
    return found


def decided_outside(admin: TransactionAdmin, transactional_ids: Iterable[str]) -> frozenset[str]:
    """Those of these ids whose transactions have no timeout (two-phase commit)."""
    found = []
    for name in transactional_ids:
        try:
            found.append(admin.describe(name))
        except ApiError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # it has expired meanwhile
                raise
    return frozenset(one.transactional_id for one in found if one.is_decided_outside)


def moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")


def span(duration_ms: float) -> str:
    """3.2 s, 15 min, 2.5 h"""
    seconds = max(0.0, duration_ms / 1000)
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def since(at_ms: int) -> str:
    return span(time.time() * 1000 - at_ms)
