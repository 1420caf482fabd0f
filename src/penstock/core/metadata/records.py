"""Records of the metadata log: small JSON objects, one change each.

JSON, because people read this log in trouble (`penstock log dump`), and because its rate is that of
topic creation, not of data. Every record has its type under "type". Fields with their default value
are left out; unknown fields are ignored, so that an older reader can read a newer writer's log. An
entry of the Raft log is one decision: an array of records, applied together (a single object is
also read: single brokers wrote these before there was a quorum).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Final, TypeAlias

from penstock.model.errors import StorageError

PARTITIONS_IN_ONE_GO: Final = 256


@dataclass(frozen=True, slots=True)
class ClusterCreated:
    type: ClassVar[str] = "cluster-created"
    cluster_id: str


@dataclass(frozen=True, slots=True)
class TopicCreated:
    type: ClassVar[str] = "topic-created"
    name: str
    topic_id: str  # hex of the 16 bytes
    assignments: tuple[tuple[int, ...], ...]  # replicas of partition 0, 1, ...
    isrs: tuple[tuple[int, ...], ...] = ()  # of partition 0, 1, ...; the first replica leads. (): all replicas
    durable_from_epoch: int = 0  # only in snapshots: see `image.TopicState`


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    type: ClassVar[str] = "partitions-added"
    topic_id: str
    assignments: tuple[tuple[int, ...], ...]
    isrs: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """Only the changed fields; None is unchanged. A `leader`, even the same one, bumps the leader epoch;
    every change bumps the partition epoch."""

    type: ClassVar[str] = "partition-changed"
    topic_id: str
    index: int
    leader: int | None = None  # -1: none
    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PartitionRestored:
    """The full state of a partition, with its epochs: only in snapshots, after the topic's record."""

    type: ClassVar[str] = "partition-restored"
    topic_id: str
    index: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    type: ClassVar[str] = "topic-deleted"
    topic_id: str


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """The complete new overrides of one resource."""

    type: ClassVar[str] = "config-changed"
    resource_type: int  # Kafka's ConfigResource type: 2 topic, 4 broker, 32 group
    resource_name: str
    overrides: dict[str, str]
    now_durable: tuple[str, ...] = ()  # topics that now flush before every acknowledgement and did not before


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated:
    type: ClassVar[str] = "producer-ids-allocated"
    next_producer_id: int


@dataclass(frozen=True, slots=True)
class ScramCredentialSet:
    """Keys derived from a password (RFC 5802), in hex. They verify the password without containing it."""

    type: ClassVar[str] = "scram-credential-set"
    user: str
    mechanism: int  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
    salt: str
    stored_key: str
    server_key: str
    iterations: int


@dataclass(frozen=True, slots=True)
class ScramCredentialRemoved:
    type: ClassVar[str] = "scram-credential-removed"
    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """One incarnation of a broker; each incarnation has its own broker epoch."""

    type: ClassVar[str] = "broker-registered"
    broker_id: int
    epoch: int
    incarnation_id: str  # hex of the 16 bytes
    endpoints: dict[str, tuple[str, int]]  # listener name -> (host, port), in order
    rack: str | None = None
    is_fenced: bool = True
    in_controlled_shutdown: bool = False
    directory_id: str = ""  # a broker that returns with another directory has none of its data
    features: dict[str, tuple[int, int]] = field(default_factory=dict)  # lowest and highest supported level


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """None is unchanged."""

    type: ClassVar[str] = "broker-changed"
    broker_id: int
    is_fenced: bool | None = None
    in_controlled_shutdown: bool | None = None


@dataclass(frozen=True, slots=True)
class BrokerUnregistered:
    type: ClassVar[str] = "broker-unregistered"
    broker_id: int


@dataclass(frozen=True, slots=True)
class BrokerEpochsUsed:
    """Only in snapshots: lower epochs were given to brokers, including removed ones."""

    type: ClassVar[str] = "broker-epochs-used"
    next_broker_epoch: int


@dataclass(frozen=True, slots=True)
class FeatureChanged:
    type: ClassVar[str] = "feature-changed"
    name: str
    level: int  # 0: no longer finalized


@dataclass(frozen=True, slots=True)
class PeerAddressSet:
    """The address of a voter; it overrides the nodes' configuration files."""

    type: ClassVar[str] = "peer-address-set"
    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PeerAddressRemoved:
    type: ClassVar[str] = "peer-address-removed"
    node_id: int


MetadataRecord: TypeAlias = (
    ClusterCreated
    | TopicCreated
    | PartitionsAdded
    | PartitionChanged
    | PartitionRestored
    | TopicDeleted
    | ConfigChanged
    | ProducerIdsAllocated
    | ScramCredentialSet
    | ScramCredentialRemoved
    | BrokerRegistered
    | BrokerChanged
    | BrokerUnregistered
    | BrokerEpochsUsed
    | FeatureChanged
    | PeerAddressSet
    | PeerAddressRemoved
)

_TYPES: dict[str, type[MetadataRecord]] = {cls.type: cls for cls in MetadataRecord.__args__}
_DEFAULTS: dict[str, dict[str, Any]] = {
    kind: {each.name: {} if each.default_factory is dict else each.default for each in fields(cls)}
    for kind, cls in _TYPES.items()
}
_LISTS = ("isr", "replicas", "adding", "removing", "elr", "last_known_elr", "now_durable")
_LISTS_OF_LISTS = ("assignments", "isrs")
_PAIRS = ("endpoints", "features")


def encode(record: MetadataRecord) -> bytes:
    return _dump(_to_json(record))


def decode(value: bytes) -> MetadataRecord:
    return _from_json(json.loads(value))


def encode_entry(records: Iterable[MetadataRecord]) -> bytes:
    return _dump([_to_json(record) for record in records])


def encode_in_steps(records: Iterable[MetadataRecord]) -> Generator[None, None, bytes]:
    """Return the bytes of `encode_entry`. A step encodes at most `PARTITIONS_IN_ONE_GO` partitions, or one record."""
    pieces: list[bytes] = []
    some: list[dict[str, Any]] = []
    width = 0
    for record in records:
        if width >= PARTITIONS_IN_ONE_GO:
            pieces.append(_dump(some)[1:-1])
            some, width = [], 0
            yield
        some.append(_to_json(record))
        width += len(record.assignments) if isinstance(record, TopicCreated) else 1
    if some:
        pieces.append(_dump(some)[1:-1])
    return b"[" + b",".join(pieces) + b"]"


def decode_entry(value: bytes | memoryview) -> list[MetadataRecord]:
    found = json.loads(bytes(value))
    return [_from_json(each) for each in (found if isinstance(found, list) else [found])]


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _to_json(record: MetadataRecord) -> dict[str, Any]:
    found: dict[str, Any] = {"type": record.type}
    for name, default in _DEFAULTS[record.type].items():
        value = getattr(record, name)
        if default is MISSING or value != default:
            found[name] = value
    return found


def _from_json(found: dict[str, Any]) -> MetadataRecord:
    kind = found.get("type")
    cls = _TYPES.get(kind) if isinstance(kind, str) else None
    if kind is None or cls is None:
        raise StorageError(
            f"metadata record of unknown type {kind!r}: was this data directory written by a newer version?"
        )
    known = {name: found[name] for name in _DEFAULTS[kind] if name in found}
    for name in _LISTS:
        if known.get(name) is not None:
            known[name] = tuple(known[name])
    for name in _LISTS_OF_LISTS:
        if name in known:
            known[name] = tuple(tuple(each) for each in known[name])
    for name in _PAIRS:
        if name in known:
            known[name] = {key: tuple(pair) for key, pair in known[name].items()}
    return cls(**known)
