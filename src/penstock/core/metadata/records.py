"""The records of the metadata log: small JSON objects, one change each.

JSON because people read this log in trouble (`penstock log dump`), and because its rate is
that of topic creation, not of data. Every record carries its type under "type"; unknown
fields are ignored so that a newer writer does not break an older reader.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

from penstock.model.errors import StorageError


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


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    type: ClassVar[str] = "partitions-added"
    topic_id: str
    assignments: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    type: ClassVar[str] = "topic-deleted"
    topic_id: str


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """The whole set of overrides of one resource, as it is from now on."""

    type: ClassVar[str] = "config-changed"
    resource_type: int  # Kafka's ConfigResource type: 2 topic, 4 broker, 32 group
    resource_name: str
    overrides: dict[str, str]


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated:
    type: ClassVar[str] = "producer-ids-allocated"
    next_producer_id: int


@dataclass(frozen=True, slots=True)
class ScramCredentialSet:
    """What proves a password without being one: keys derived from it (RFC 5802), in hex."""

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


MetadataRecord: TypeAlias = (
    ClusterCreated
    | TopicCreated
    | PartitionsAdded
    | TopicDeleted
    | ConfigChanged
    | ProducerIdsAllocated
    | ScramCredentialSet
    | ScramCredentialRemoved
)

_TYPES: dict[str, type[MetadataRecord]] = {
    cls.type: cls
    for cls in (
        ClusterCreated,
        TopicCreated,
        PartitionsAdded,
        TopicDeleted,
        ConfigChanged,
        ProducerIdsAllocated,
        ScramCredentialSet,
        ScramCredentialRemoved,
    )
}


def encode(record: MetadataRecord) -> bytes:
    return json.dumps({"type": record.type, **asdict(record)}, separators=(",", ":")).encode()


def decode(value: bytes) -> MetadataRecord:
    fields: dict[str, Any] = json.loads(value)
    kind = fields.pop("type", None)
    cls = _TYPES.get(kind)
    if cls is None:
        raise StorageError(
            f"metadata record of unknown type {kind!r}: was this data directory written by a newer version?"
        )
    known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
    if "assignments" in known:
        known["assignments"] = tuple(tuple(replicas) for replicas in known["assignments"])
    return cls(**known)
