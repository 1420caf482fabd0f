"""Serializes the controller's decisions and has the quorum commit their records.

There is one decision at a time, on the image that the previous one left. `core.metadata` says what to do. A part of the
controller (`cluster.topic_decisions`, `cluster.partition_decisions`, `cluster.voter_decisions`,
`cluster.broker_registry`) takes a turn, has the records committed and returns when they are applied here. So every
answered change is in this node's image. If the controller is not active, `check_active` and `commit` raise
NOT_CONTROLLER. Must not know: what is decided, sockets, the data of partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from penstock.cluster.turns import DecisionTurns, Settling
from penstock.core.metadata.image import NO_LEADER, MetadataImage
from penstock.core.metadata.records import MetadataRecord, PartitionChanged, encode_entry
from penstock.model.errors import ApiError, ErrorCode


class ProposingQuorum(Settling, Protocol):
    """The part of `cluster.quorum.Quorum` that an agreement uses."""

    @property
    def is_active(self) -> bool: ...

    async def propose(self, data: bytes) -> int: ...


class Agreement:
    def __init__(self, quorum: ProposingQuorum, image: MetadataImage) -> None:
        self._quorum = quorum
        self._image = image
        self.turn = DecisionTurns(quorum)
        """For `async with`: a decision reads the image and commits within one turn."""
        self.elections = 0
        self.unclean_elections = 0

    @property
    def is_active(self) -> bool:
        return self._quorum.is_active

    def check_active(self) -> None:
        if not self._quorum.is_active:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")

    async def commit(self, records: Sequence[MetadataRecord]) -> int:
        """The index of the entry, once it is applied here; -1 if there were no records."""
        self.check_active()
        if not records:
            return -1
        elections = list(self._elections(records))
        index = await self._quorum.propose(encode_entry(list(records)))
        self.elections += len(elections)
        self.unclean_elections += sum(elections)
        return index

    def _elections(self, records: Sequence[MetadataRecord]) -> Iterator[bool]:
        """For each new leader, whether it may lack committed records."""
        for record in records:
            if isinstance(record, PartitionChanged) and record.leader is not None and record.leader != NO_LEADER:
                before = self._image.topics_by_id[bytes.fromhex(record.topic_id)].partitions[record.index]
                if record.leader != before.leader:
                    yield record.leader not in before.isr and record.leader not in before.elr
