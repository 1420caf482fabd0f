"""What every decision of the controller has in common: its turn, its settings, and the agreement on its records.

One decision at a time, each on the image that the last one left. `core.metadata` says what to do; a method here or in a
class on top of this one has the records agreed on and returns when they are applied here, so what was answered is in
this node's image. Where the controller is not active, every method raises NOT_CONTROLLER. Must not know: sockets, the
data of partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from penstock.cluster.running_config import RunningConfig
from penstock.cluster.turns import Turns
from penstock.config.topic import TopicConfig
from penstock.core.metadata.image import NO_LEADER, MetadataImage
from penstock.core.metadata.records import MetadataRecord, PartitionChanged, encode_entry
from penstock.core.raft.core import Status
from penstock.core.raft.exchange import Change
from penstock.model.errors import ApiError, ErrorCode


class MetadataQuorum(Protocol):
    """What the controller needs of `cluster.quorum.Quorum`."""

    @property
    def is_active(self) -> bool: ...

    @property
    def status(self) -> Status: ...

    async def propose(self, data: bytes) -> int: ...

    async def settled(self) -> None: ...

    async def change_membership(self, change: Change, node: int) -> None: ...


class Deciding:
    def __init__(self, node_id: int, quorum: MetadataQuorum, image: MetadataImage, running: RunningConfig) -> None:
        self._node_id = node_id
        self._quorum = quorum
        self.image = image
        self._running = running
        self._lock = Turns(quorum)
        self.elections = 0
        self.unclean_elections = 0

    @property
    def is_active(self) -> bool:
        return self._quorum.is_active

    @property
    def brokers(self) -> list[int]:
        """Those that serve. A broker that stands alone and is not registered yet counts."""
        return self.image.live_brokers() or [self._node_id]

    def _check_active(self) -> None:
        if not self._quorum.is_active:
            raise ApiError(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")

    async def _commit(self, records: Sequence[MetadataRecord]) -> int:
        self._check_active()
        if not records:
            return -1
        elections = list(self._elections(records))
        index = await self._quorum.propose(encode_entry(list(records)))
        self.elections += len(elections)
        self.unclean_elections += sum(elections)
        return index

    def _elections(self, records: Sequence[MetadataRecord]) -> Iterator[bool]:
        """For each new leader whether it may lack what was committed."""
        for record in records:
            if isinstance(record, PartitionChanged) and record.leader is not None and record.leader != NO_LEADER:
                before = self.image.topics_by_id[bytes.fromhex(record.topic_id)].partitions[record.index]
                if record.leader != before.leader:
                    yield record.leader not in before.isr and record.leader not in before.elr

    # -- settings of topics -------------------------------------------------------------

    def _topic(self, name: str) -> TopicConfig:
        return TopicConfig.resolve(self.image.topic_overrides(name), self._running.current)

    def _min_isr(self, topic: str) -> int:
        return self._topic(topic).min_insync_replicas

    def _unclean_ok(self, topic: str) -> bool:
        return self._topic(topic).unclean_leader_election_enable

    def _is_durable(self, topic: str) -> bool:
        return is_durable(self._topic(topic))


def is_durable(config: TopicConfig) -> bool:
    """What is acknowledged is on the disk, so a crash takes nothing of it."""
    return config.flush_messages <= 1
