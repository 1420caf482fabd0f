"""The controller as protocols for handlers: the one of this node, and the cluster's, wherever it is.

The parts of `cluster.controller.Controller` and `cluster.controller_access` implement these; a handler is given the
parts that it uses. Every method of a `...Controller` raises ApiError(NOT_CONTROLLER) if this node does not lead, or
stopped leading before the change was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from penstock.core.metadata.image import MetadataImage
from penstock.core.metadata.requests import (
    ElectionKind,
    FeatureUpdate,
    HeartbeatAnswer,
    IsrAnswer,
    IsrChange,
    OngoingReassignment,
    PartitionAnswer,
    ProducerIdBlock,
    Reassignment,
    Registration,
)
from penstock.core.metadata.scram import Deletion, Upsertion
from penstock.model.errors import ApiError
from penstock.model.new_topic import NewTopic


class TopicCreator(Protocol):
    """Creates topics automatically: here, or through the controller on another node."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def brokers(self) -> Sequence[int]:
        """The brokers that may host a new topic."""
        ...

    async def create_topic(self, topic: NewTopic) -> object: ...


class TopicController(Protocol):
    """Topics, settings, credentials and producer ids."""

    @property
    def image(self) -> MetadataImage: ...

    async def create_topic(self, topic: NewTopic, *, validate_only: bool = False) -> bytes: ...

    async def create_partitions(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool
    ) -> None: ...

    async def delete_topic(self, topic_id: bytes) -> None: ...

    async def change_config(
        self,
        resource_type: int,
        name: str,
        decide: Callable[[Mapping[str, str]], dict[str, str]],
        *,
        validate_only: bool,
    ) -> None: ...

    async def alter_scram_credentials(self, changes: Sequence[Deletion | Upsertion]) -> dict[str, ApiError | None]: ...

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock: ...


class BrokerController(Protocol):
    """Brokers, and their supported features."""

    async def register_broker(self, registration: Registration) -> int:
        """Return the broker's epoch."""
        ...

    async def heartbeat(
        self,
        broker_id: int,
        broker_epoch: int,
        current_metadata_offset: int,
        want_fence: bool,
        want_shut_down: bool,
    ) -> HeartbeatAnswer: ...

    async def unregister_broker(self, broker_id: int) -> None: ...

    async def update_features(self, updates: Sequence[FeatureUpdate], validate_only: bool) -> None: ...


class PartitionController(Protocol):
    """Leaders and replicas of partitions."""

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrAnswer]: ...

    async def elect_leaders(
        self, kind: ElectionKind, partitions: Sequence[tuple[str, int]] | None
    ) -> list[PartitionAnswer]: ...

    async def alter_reassignments(
        self, moves: Sequence[Reassignment], allow_factor_change: bool
    ) -> list[PartitionAnswer]: ...

    def list_reassignments(self, partitions: Sequence[tuple[str, int]] | None) -> list[OngoingReassignment]: ...


class VoterController(Protocol):
    """Voters of the metadata quorum."""

    @property
    def image(self) -> MetadataImage: ...

    async def add_voter(self, voter_id: int, directory_id: bytes, host: str, port: int) -> None: ...

    async def update_voter(self, voter_id: int, directory_id: bytes, addresses: Sequence[tuple[str, int]]) -> None: ...

    async def remove_voter(self, voter_id: int, directory_id: bytes) -> None: ...
