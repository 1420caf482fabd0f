"""What the controller is asked and what it answers, as values: the shapes between handlers and controller.

Handlers turn messages into these and back, the controller turns these into decisions. Knows no wire
format and decides nothing. Order is that of the request everywhere: answers come back in it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode

NO_BROKER_EPOCH = -1
"""Of a broker that has none: it was never registered, or whoever speaks of it does not know."""


def uuid_text(uuid: bytes) -> str:
    """16 bytes as Kafka writes them in files and messages; nothing but zeros is no id at all."""
    return urlsafe_b64encode(uuid).rstrip(b"=").decode() if any(uuid) else ""


def uuid_bytes(text: str) -> bytes:
    """The other way; what is no such id is zeros."""
    try:
        uuid = urlsafe_b64decode(text + "==")
    except ValueError:
        return bytes(16)
    return uuid if len(uuid) == 16 else bytes(16)


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker that wants to belong to the cluster."""

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    endpoints: Mapping[str, tuple[str, int]]  # listener name -> (host, port), in order
    rack: str | None = None
    previous_epoch: int = NO_BROKER_EPOCH  # of the run before, if that one ended cleanly
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # name -> lowest and highest level it knows
    directory_id: str = ""  # of its data directory, as in meta.properties


class HeartbeatAnswer(NamedTuple):
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


class ReplicaEpoch(NamedTuple):
    """A member of an ISR in the life the leader has seen of it."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class IsrChange:
    """What a leader asks for: this ISR, if the partition is still as the leader knows it."""

    topic_id: bytes
    index: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[ReplicaEpoch, ...]


@dataclass(frozen=True, slots=True)
class IsrAnswer:
    """The partition as it is from now on; with an error, only that counts."""

    topic_id: bytes
    index: int
    code: ErrorCode = ErrorCode.NONE
    leader: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    partition_epoch: int = -1


class ProducerIdBlock(NamedTuple):
    first: int
    length: int


class ElectionKind(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """Of one partition among many: None, or why not."""

    topic: str
    index: int
    error: ApiError | None = None


@dataclass(frozen=True, slots=True)
class Reassignment:
    topic: str
    index: int
    replicas: tuple[int, ...] | None  # None: cancel the one under way


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    topic: str
    index: int
    replicas: tuple[int, ...]  # old and new ones
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    name: str
    level: int  # 0: not finalized any more
    upgrade_type: int  # an UpgradeType, if the client sent one
