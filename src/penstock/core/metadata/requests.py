"""Requests and answers of the controller, as values.

Handlers convert messages to and from these values; the controller turns requests into decisions. Must not know: the
wire. Answers are in the order of the request.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from penstock.model.errors import ApiError, ErrorCode

NO_BROKER_EPOCH = -1
"""The epoch of a broker without one: it was never registered, or the sender does not know its epoch."""


def uuid_text(uuid: bytes) -> str:
    """16 bytes in Kafka's text form; all zeros is no id and gives an empty text."""
    return urlsafe_b64encode(uuid).rstrip(b"=").decode() if any(uuid) else ""


def uuid_bytes(text: str) -> bytes:
    """Inverse of `uuid_text`; zeros if the text is not an id."""
    try:
        uuid = urlsafe_b64decode(text + "==")
    except ValueError:
        return bytes(16)
    return uuid if len(uuid) == 16 else bytes(16)


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker that wants to join the cluster."""

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    endpoints: Mapping[str, tuple[str, int]]  # listener name -> (host, port), in order
    rack: str | None = None
    previous_epoch: int = NO_BROKER_EPOCH  # of the previous incarnation, if it shut down cleanly
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # name -> lowest and highest supported level
    directory_id: str = ""  # id of its data directory, as in meta.properties


class HeartbeatAnswer(NamedTuple):
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


class ReplicaEpoch(NamedTuple):
    """A member of an ISR, with the broker epoch the leader has seen."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A leader's request for a new ISR, if its view of the partition is current."""

    topic_id: bytes
    index: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[ReplicaEpoch, ...]


@dataclass(frozen=True, slots=True)
class IsrAnswer:
    """The new state of the partition; with an error, only the error counts."""

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
    """The result for one of many partitions: None, or the error."""

    topic: str
    index: int
    error: ApiError | None = None


@dataclass(frozen=True, slots=True)
class Reassignment:
    topic: str
    index: int
    replicas: tuple[int, ...] | None  # None: cancel the current one


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    topic: str
    index: int
    replicas: tuple[int, ...]  # old and new replicas
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    name: str
    level: int  # 0: no longer finalized
    upgrade_type: int  # an UpgradeType, if the client sent one
