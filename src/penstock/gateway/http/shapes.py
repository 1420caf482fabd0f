"""Bodies of requests and answers: they validate requests, and their schemas are part of the OpenAPI description.

Field names are Confluent's. Answers with a fixed shape are structs; records and v3 resources are built as dictionaries
and only described here. Unknown fields of requests are refused: a misspelt field would lose a record's value or a
setting.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from penstock.gateway.http.formats import Given

Partition = Annotated[int, Meta(ge=0, le=2**31 - 1)]
# The largest offset leaves room for offset + 1.
Offset = Annotated[int, Meta(ge=0, le=2**63 - 2)]
Timestamp = Annotated[int, Meta(ge=0, le=2**62)]
TopicName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]+$", min_length=1, max_length=249)]
Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]+$", min_length=1, max_length=200)]


NumberOrText = Annotated[int, Meta(ge=0, le=60_000)] | Annotated[str, Meta(pattern=r"^[0-9]{1,4}$|^[1-5][0-9]{4}$")]
"""Confluent's clients send numbers as text."""


class Error(Struct):
    error_code: int
    message: str


class Body(Struct, forbid_unknown_fields=True):
    """The body of a request."""


# -- publish ------------------------------------------------------------------------------


class Header(Body):
    name: Annotated[str, Meta(min_length=1, max_length=1000)]
    value: str | None = None
    """Base64."""


class PartitionRecord(Body):
    """A record with a value, which may be null. `payload` is another name for `value`."""

    key: Given = UNSET
    value: Given = UNSET
    payload: Given = UNSET
    timestamp: Timestamp | None = None
    headers: list[Header] = []


class ProduceRecord(PartitionRecord):
    """A record that may name its partition."""

    partition: Partition | None = None


class PartitionProduceRequest(PartitionRecord):
    """A batch in `records`, or one event."""

    records: Annotated[list[PartitionRecord], Meta(min_length=1, max_length=10_000)] | UnsetType = UNSET


class ProduceRequest(ProduceRecord):
    """A batch in `records`, or one event."""

    records: Annotated[list[ProduceRecord], Meta(min_length=1, max_length=10_000)] | UnsetType = UNSET


class ProduceOffset(Struct):
    partition: int | None
    offset: int | None
    error_code: int | None = None
    error: str | None = None


class ProduceResponse(Struct):
    offsets: list[ProduceOffset]
    key_schema_id: int | None = None
    value_schema_id: int | None = None


class Data(Body):
    data: Given = UNSET
    type: Literal["BINARY", "JSON", "STRING"] = "JSON"


class V3Record(Body):
    partition_id: Partition | None = None
    headers: list[Header] = []
    key: Data | None = None
    value: Data | None = None
    timestamp: str | None = None
    """RFC 3339."""


class V3BatchEntry(Body):
    id: Annotated[str, Meta(min_length=1, max_length=80)]
    partition_id: Partition | None = None
    headers: list[Header] = []
    key: Data | None = None
    value: Data | None = None
    timestamp: str | None = None


class V3BatchRequest(Body):
    entries: Annotated[list[V3BatchEntry], Meta(min_length=1, max_length=1000)]


class DataSize(Struct):
    type: str
    size: int


class V3ProduceResponse(Struct):
    error_code: int
    cluster_id: str
    topic_name: str
    partition_id: int
    offset: int
    timestamp: str
    key: DataSize | None = None
    value: DataSize | None = None


class V3BatchSuccess(Struct):
    id: str
    cluster_id: str
    topic_name: str
    partition_id: int
    offset: int
    timestamp: str
    key: DataSize | None = None
    value: DataSize | None = None


class V3BatchFailure(Struct):
    id: str
    error_code: int
    message: str


class V3BatchResponse(Struct):
    successes: list[V3BatchSuccess]
    failures: list[V3BatchFailure]


# -- read ---------------------------------------------------------------------------------


class ConsumedRecord(Struct):
    topic: str
    partition: int
    offset: int
    key: Any = None
    value: Any = None
    timestamp: int | UnsetType = UNSET
    headers: list[Header] | UnsetType = UNSET
    key_encoding: str | UnsetType = UNSET
    value_encoding: str | UnsetType = UNSET


class Event(Struct):
    """One server-sent event; `data` is a record, or {"error_code", "message"} if `event` is "error"."""

    data: str
    id: str | UnsetType = UNSET
    event: str | UnsetType = UNSET


class OffsetRange(Struct):
    beginning_offset: int
    end_offset: int


class Replica(Struct):
    broker: int
    leader: bool
    in_sync: bool


class PartitionShape(Struct):
    partition: int
    leader: int
    replicas: list[Replica]


class TopicShape(Struct):
    name: str
    configs: dict[str, str | None]
    partitions: list[PartitionShape]


class Brokers(Struct):
    brokers: list[int]


# -- consumer instances -------------------------------------------------------------------


class CreateInstance(Body):
    name: Name | None = None
    format: Literal["json", "binary", "plain"] = "binary"
    auto_offset_reset: Literal["earliest", "latest", "none"] = field(name="auto.offset.reset", default="latest")
    auto_commit_enable: Literal["true", "false"] | bool = field(name="auto.commit.enable", default="false")
    fetch_min_bytes: NumberOrText | None = field(name="fetch.min.bytes", default=None)
    consumer_request_timeout_ms: NumberOrText | None = field(name="consumer.request.timeout.ms", default=None)


class InstanceCreated(Struct):
    instance_id: str
    base_uri: str


class Subscription(Body):
    topics: Annotated[list[TopicName], Meta(max_length=1000)] = []
    topic_pattern: str | None = None


class SubscriptionShape(Struct):
    topics: list[str]


class PartitionRef(Body):
    topic: TopicName
    partition: Partition


class Assignment(Body):
    partitions: Annotated[list[PartitionRef], Meta(max_length=10_000)]


class OffsetRef(Body):
    topic: TopicName
    partition: Partition
    offset: Offset
    metadata: str | None = None


class Offsets(Body):
    offsets: Annotated[list[OffsetRef], Meta(max_length=10_000)]


class CommittedOffset(Struct):
    topic: str
    partition: int
    offset: int
    metadata: str | None


class CommittedOffsets(Struct):
    offsets: list[CommittedOffset]


# -- topics and cluster -------------------------------------------------------------------


class ConfigEntry(Body):
    name: str
    value: str | None = None


class CreateTopic(Body):
    topic_name: Annotated[str, Meta(min_length=1, max_length=249)]
    partitions_count: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    replication_factor: Annotated[int, Meta(ge=1, le=32767)] | None = None
    configs: list[ConfigEntry] = []
    validate_only: bool = False


class Metadata(Struct):
    self: str
    resource_name: str | None = None


class Resource(Struct):
    """A resource of the v3 API: its kind and links. The other fields depend on the kind."""

    kind: str
    metadata: Metadata


class ListMetadata(Struct):
    self: str
    next: str | None = None


class ResourceList(Struct):
    kind: str
    metadata: ListMetadata
    data: list[Resource]


class BrokerHealth(Struct):
    """The health that the broker reports to its gateway."""

    problem: str
    cluster_id: str
    brokers: int
    controller: int


class Health(Struct):
    status: Literal["ok"]
    cluster_id: str
    brokers: int
    controller: int
