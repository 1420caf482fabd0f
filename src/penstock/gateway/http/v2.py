"""Topics, publishing and reading without a group, as in Confluent's v2 API.

GET  /topics                                     names
GET  /topics/{topic}                             partitions and settings
POST /topics/{topic}                             publish a batch, or one event
GET  /topics/{topic}/partitions[/{partition}]
POST /topics/{topic}/partitions/{partition}      publish to one partition
GET  /topics/{topic}/partitions/{partition}/offsets
GET  /topics/{topic}/partitions/{partition}/records   from an offset or a time, with long poll
GET  /brokers
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.http import shapes
from penstock.gateway.http.errors import Refused, refusal
from penstock.gateway.http.formats import (
    V2,
    Format,
    encode_key,
    encode_value,
    from_base64,
    of_accept,
    of_content_type,
    show_records,
)
from penstock.gateway.http.operations import (
    JSON,
    Operation,
    Proxy,
    Query,
    answer,
    attended,
    decode,
    read_body,
    refuse_contradiction,
)
from penstock.model.errors import ApiError
from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record
from penstock.wire_client.aio.fetching import MAX_BYTES, fetch_one, offset_range, position_at
from penstock.wire_client.aio.publisher import Produced
from penstock.wire_client.aio.topics import topic_settings
from penstock.wire_client.requests.errors import WireClientError
from penstock.wire_client.requests.metadata import PartitionMetadata, TopicMetadata

PRODUCE_TYPES = tuple(kind.value for kind in Format)
DEFAULT_TIMEOUT_MS = 1000
_PARTITION = re.compile(r"[0-9]{1,10}")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


# -- path parameters ------------------------------------------------------------------------


def topic_name(request: Request) -> str:
    """The topic's name. Raises Refused(404) for an invalid name."""
    name: str = request.path_params["topic"]
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise Refused(40401, "Topic not found: not a valid topic name")
    return name


async def existing_topic(proxy: Proxy, request: Request) -> TopicMetadata:
    """The current metadata of the topic: another client may have changed or deleted it."""
    return await proxy.cluster.topic(topic_name(request), max_age_s=0)


async def existing_partition(proxy: Proxy, request: Request) -> tuple[TopicMetadata, PartitionMetadata]:
    topic = await existing_topic(proxy, request)
    text: str = request.path_params["partition"]
    if not _PARTITION.fullmatch(text) or int(text) >= len(topic.partitions):
        raise Refused(40402, f"Partition not found: topic '{topic.name}' has {len(topic.partitions)}")
    return topic, topic.partitions[int(text)]


# -- topics and brokers --------------------------------------------------------------------------


def v2_type(request: Request) -> str:
    """Confluent's own media type if the caller asks for it."""
    return V2 if V2 in request.headers.get("accept", "") else JSON


async def list_topics(proxy: Proxy, request: Request) -> Response:
    info = await proxy.cluster.describe()
    return answer([topic.name for topic in info.topics if not topic.is_internal], media_type=v2_type(request))


async def get_topic(proxy: Proxy, request: Request) -> Response:
    topic = await existing_topic(proxy, request)
    settings = await topic_settings(proxy.cluster, topic.name)
    shape = shapes.TopicShape(
        topic.name, {entry.name: entry.value for entry in settings}, [show_partition(p) for p in topic.partitions]
    )
    return answer(shape, media_type=v2_type(request))


def show_partition(partition: PartitionMetadata) -> shapes.PartitionShape:
    return shapes.PartitionShape(
        partition.partition,
        partition.leader_id,
        [
            shapes.Replica(broker, broker == partition.leader_id, broker in partition.isr)
            for broker in partition.replicas
        ],
    )


async def list_partitions(proxy: Proxy, request: Request) -> Response:
    topic = await existing_topic(proxy, request)
    return answer([show_partition(partition) for partition in topic.partitions], media_type=v2_type(request))


async def get_partition(proxy: Proxy, request: Request) -> Response:
    _, partition = await existing_partition(proxy, request)
    return answer(show_partition(partition), media_type=v2_type(request))


async def get_offsets(proxy: Proxy, request: Request) -> Response:
    topic, partition = await existing_partition(proxy, request)
    first, end = await offset_range(proxy.cluster, TopicPartition(topic.name, partition.partition))
    return answer(shapes.OffsetRange(first, end), media_type=v2_type(request))


async def list_brokers(proxy: Proxy, request: Request) -> Response:
    info = await proxy.cluster.describe()
    return answer(shapes.Brokers([broker.node_id for broker in info.brokers]), media_type=v2_type(request))


# -- publish --------------------------------------------------------------------------------


async def publish(proxy: Proxy, request: Request) -> Response:
    kind = of_content_type(request.headers.get("content-type", ""))
    name = topic_name(request)
    body = decode(await read_body(proxy, request), shapes.ProduceRequest)
    refuse_both(body)
    records: Sequence[shapes.ProduceRecord] = (body,) if body.records is UNSET else body.records
    made = [(build_record(proxy, record, kind), record.partition) for record in records]
    return await publish_all(proxy, request, await proxy.cluster.topic(name, create=True), made)


async def publish_to_partition(proxy: Proxy, request: Request) -> Response:
    kind = of_content_type(request.headers.get("content-type", ""))
    body = decode(await read_body(proxy, request), shapes.PartitionProduceRequest)
    refuse_both(body)
    records: Sequence[shapes.PartitionRecord] = (body,) if body.records is UNSET else body.records
    made = [build_record(proxy, record, kind) for record in records]
    topic, partition = await existing_partition(proxy, request)
    return await publish_all(proxy, request, topic, [(record, partition.partition) for record in made])


def refuse_both(body: shapes.ProduceRequest | shapes.PartitionProduceRequest) -> None:
    """Raises Refused(422) if a batch has fields of a single event beside it: they would be ignored."""
    if body.records is UNSET:
        return
    for name in ("key", "value", "payload", "partition", "timestamp", "headers"):
        if getattr(body, name, None) not in (UNSET, None, []):
            raise Refused(422, f"a body is a batch or one event: in a batch, put '{name}' into each record")


def build_record(proxy: Proxy, given: shapes.PartitionRecord, kind: Format) -> Record:
    """Raises Refused(422) for a record without a value: a tombstone needs an explicit null."""
    if (given.value is UNSET) == (given.payload is UNSET):
        problem = (
            "needs a value; null deletes the key" if given.value is UNSET else "has a value or a payload, not both"
        )
        raise Refused(422, f"a record {problem}")
    value = given.payload if given.value is UNSET else given.value
    return Record(
        encode_key(given.key, kind),
        encode_value(value, kind),
        build_headers(given.headers),
        proxy.clock.now_ms() if given.timestamp is None else given.timestamp,
    )


def build_headers(given: Sequence[shapes.Header]) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((entry.name, None if entry.value is None else from_base64(entry.value)) for entry in given)


async def publish_all(
    proxy: Proxy, request: Request, topic: TopicMetadata, records: Sequence[tuple[Record, int | None]]
) -> Response:
    """The answer has one entry per record. The status is 200, or that of the first error if no record was written."""
    results = await deliver(proxy, topic, records)
    written = [result for result in results if isinstance(result, Produced)]
    refused = [result for result in results if isinstance(result, Refused)]
    if refused and not written:
        raise refused[0]
    offsets = [
        shapes.ProduceOffset(result.partition, result.offset)
        if isinstance(result, Produced)
        else shapes.ProduceOffset(None, None, result.code, result.message)
        for result in results
    ]
    return answer(shapes.ProduceResponse(offsets), media_type=v2_type(request))


async def deliver(
    proxy: Proxy, topic: TopicMetadata, records: Sequence[tuple[Record, int | None]]
) -> list[Produced | Refused]:
    """Publishes the records together. Returns the outcome of each, in the same order."""
    waiting: list[asyncio.Future[Produced] | Refused] = []
    for record, partition in records:
        try:
            waiting.append(proxy.producer.enqueue(topic, record, partition))
        except (ApiError, WireClientError) as error:
            waiting.append(refusal(error))
    results: list[Produced | Refused] = []
    for entry in waiting:
        if isinstance(entry, Refused):
            results.append(entry)
            continue
        try:
            results.append(await entry)
        except (ApiError, WireClientError) as error:
            results.append(refusal(error))
    return results


# -- read -----------------------------------------------------------------------------------

OFFSET = Query("offset", "Offset to start at.", 0, 2**63 - 1)
TIMESTAMP = Query("timestamp", "Start at the first record at or after this time, in ms since 1970.", 0, 2**62)
MAX_RECORDS = Query("max_records", "Largest number of records in the answer.", 1, 10_000)
TIMEOUT = Query("timeout", "How long to wait for a record if there is none, in ms.", 0, 60_000)
MAX_BYTES_QUERY = Query("max_bytes", "About how many bytes of records to read.", 1, 16 << 20)


async def read_records(proxy: Proxy, request: Request) -> Response:
    """Reads from `offset`, from `timestamp`, or from the first record."""
    kind = of_accept(request.headers.get("accept", ""))
    offset, timestamp_ms = OFFSET.read(request), TIMESTAMP.read(request)
    refuse_contradiction({"offset": offset, "timestamp": timestamp_ms})
    most = MAX_RECORDS.read(request) or 1000
    timeout_ms = TIMEOUT.read(request)
    max_bytes = MAX_BYTES_QUERY.read(request) or MAX_BYTES
    topic, info = await existing_partition(proxy, request)
    partition = TopicPartition(topic.name, info.partition)
    if offset is None:
        offset = (await offset_range(proxy.cluster, partition))[0]
        if timestamp_ms is not None:
            offset = await position_at(proxy.cluster, partition, timestamp_ms)
    timeout_ms = DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms
    polling = poll(proxy, partition, offset, most=most, timeout_ms=timeout_ms, max_bytes=max_bytes)
    return answer(show_records(partition, await attended(proxy, request, polling), kind), media_type=kind.value)


async def poll(
    proxy: Proxy, partition: TopicPartition, offset: int, *, most: int, timeout_ms: int, max_bytes: int
) -> list[Record]:
    """The available records, within the limits. Waits for the first record."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    records: list[Record] = []
    while True:
        wait_ms = 0 if records else max(0, round((deadline - loop.time()) * 1000))
        fetched = await fetch_one(proxy.cluster, partition, offset, max_wait_ms=wait_ms, max_bytes=max_bytes)
        records += fetched.records[: most - len(records)]
        max_bytes -= sum(len(record.value or b"") for record in fetched.records)
        is_end = fetched.next_offset in (offset, fetched.high_watermark)
        # A fetch may stop early (at the end of a segment), or find only control records.
        if (records and (is_end or len(records) == most or max_bytes <= 0)) or (is_end and not wait_ms):
            return records
        offset = fetched.next_offset


RECORD_REFUSALS = (404, 413, 415, 422, 400, 408)

OPERATIONS = (
    Operation(
        "GET",
        "/topics",
        "listTopics",
        "Names of all topics, except internal ones.",
        "Topics",
        list_topics,
        {200: list[str]},
    ),
    Operation(
        "GET",
        "/topics/{topic}",
        "getTopic",
        "Partitions and settings of a topic.",
        "Topics",
        get_topic,
        {200: shapes.TopicShape},
        refusals=(404,),
    ),
    Operation(
        "POST",
        "/topics/{topic}",
        "publish",
        "Publish a batch of records, or one event.",
        "Records",
        publish,
        {200: shapes.ProduceResponse},
        body=shapes.ProduceRequest,
        body_types=PRODUCE_TYPES,
        refusals=RECORD_REFUSALS,
    ),
    Operation(
        "GET",
        "/topics/{topic}/partitions",
        "listPartitions",
        "Partitions of a topic.",
        "Topics",
        list_partitions,
        {200: list[shapes.PartitionShape]},
        refusals=(404,),
    ),
    Operation(
        "GET",
        "/topics/{topic}/partitions/{partition}",
        "getPartition",
        "Leader and replicas of a partition.",
        "Topics",
        get_partition,
        {200: shapes.PartitionShape},
        refusals=(404,),
    ),
    Operation(
        "POST",
        "/topics/{topic}/partitions/{partition}",
        "publishToPartition",
        "Publish a batch of records, or one event, to one partition.",
        "Records",
        publish_to_partition,
        {200: shapes.ProduceResponse},
        body=shapes.PartitionProduceRequest,
        body_types=PRODUCE_TYPES,
        refusals=RECORD_REFUSALS,
    ),
    Operation(
        "GET",
        "/topics/{topic}/partitions/{partition}/offsets",
        "getOffsets",
        "First and end offset of a partition.",
        "Topics",
        get_offsets,
        {200: shapes.OffsetRange},
        refusals=(404,),
    ),
    Operation(
        "GET",
        "/topics/{topic}/partitions/{partition}/records",
        "readRecords",
        "Read from an offset or a time, and wait if there are no records.",
        "Records",
        read_records,
        {200: list[shapes.ConsumedRecord]},
        query=(OFFSET, TIMESTAMP, MAX_RECORDS, TIMEOUT, MAX_BYTES_QUERY),
        answer_types=PRODUCE_TYPES,
        refusals=(400, 404, 416),
    ),
    Operation("GET", "/brokers", "listBrokers", "Ids of all brokers.", "Cluster", list_brokers, {200: shapes.Brokers}),
)
