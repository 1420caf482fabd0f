"""Publishing, as in Confluent's v3 API.

POST /v3/clusters/{cluster}/topics/{topic}/records         one record, or several JSON objects in a row
POST /v3/clusters/{cluster}/topics/{topic}/records:batch   entries with an id, each with its own outcome
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.http import shapes
from penstock.gateway.http.consumers import json_body
from penstock.gateway.http.errors import Refused
from penstock.gateway.http.formats import Format, encode_value, of_content_type
from penstock.gateway.http.operations import Operation, Proxy, answer, decode, read_body
from penstock.gateway.http.v2 import build_headers, deliver, topic_name
from penstock.gateway.http.v3_resources import BODY_REFUSALS, TOPIC, open_cluster
from penstock.records.builder import Record
from penstock.wire_client.aio.publisher import Produced
from penstock.wire_client.requests.metadata import ClusterMetadata, TopicMetadata

MAX_STREAMED = 10_000


async def publish(proxy: Proxy, request: Request) -> Response:
    """Each JSON object in the body is a record, and gets one JSON object in the answer."""
    of_content_type(request.headers.get("content-type", ""))
    given = [decode(text, shapes.V3Record) for text in split_objects(await read_body(proxy, request))]
    info, _ = await open_cluster(proxy, request)
    made = [(build_record(proxy, entry), entry.partition_id) for entry in given]
    topic = await proxy.cluster.topic(topic_name(request), create=True)
    results = await deliver(proxy, topic, made)
    if len(results) == 1 and isinstance(results[0], Refused):
        raise results[0]
    lines = [
        msgspec.json.encode(
            shapes.V3ProduceResponse(200, **acknowledgement(info, topic, entry, record, result))
            if isinstance(result, Produced)
            else shapes.Error(result.code, result.message)
        )
        for entry, (record, _), result in zip(given, made, results, strict=True)
    ]
    return Response(b"\r\n".join(lines), media_type="application/json")


async def publish_batch(proxy: Proxy, request: Request) -> Response:
    given = decode(await json_body(proxy, request), shapes.V3BatchRequest)
    info, _ = await open_cluster(proxy, request)
    made = [(build_record(proxy, entry), entry.partition_id) for entry in given.entries]
    topic = await proxy.cluster.topic(topic_name(request), create=True)
    successes, failures = [], []
    for entry, (record, _), result in zip(given.entries, made, await deliver(proxy, topic, made), strict=True):
        if isinstance(result, Produced):
            fields = acknowledgement(info, topic, entry, record, result)
            successes.append(shapes.V3BatchSuccess(entry.id, **fields))
        else:
            failures.append(shapes.V3BatchFailure(entry.id, result.code, result.message))
    return answer(shapes.V3BatchResponse(successes, failures), 207)


def split_objects(body: bytes) -> list[bytes]:
    """Raises Refused: 400 for a body that is not a sequence of JSON objects, 413 for too many."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(400, "not JSON: not UTF-8") from error
    decoder = json.JSONDecoder()
    pieces: list[bytes] = []
    at = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
        if at == len(text):
            break
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"not JSON: {error}") from error
        pieces.append(text[at:end].encode("utf-8"))
        at = end
        if len(pieces) > MAX_STREAMED:
            raise Refused(413, f"at most {MAX_STREAMED} records in one request")
    if not pieces:
        raise Refused(400, "not JSON: the body is empty")
    return pieces


def build_record(proxy: Proxy, given: shapes.V3Record | shapes.V3BatchEntry) -> Record:
    return Record(
        encode_data(given.key),
        encode_data(given.value),
        build_headers(given.headers),
        proxy.clock.now_ms() if given.timestamp is None else parse_time(given.timestamp),
    )


def encode_data(data: shapes.Data | None) -> bytes | None:
    if data is None:
        return None
    if data.type == "STRING":
        text = encode_value(data.data, Format.JSON)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=str).encode()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(422, "data of type STRING must be a string") from error
    return encode_value(data.data, Format.BINARY if data.type == "BINARY" else Format.JSON)


def parse_time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        timestamp_ms = round(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise Refused(422, f"timestamp: {error}") from error
    if timestamp_ms < 0:
        raise Refused(422, "timestamp: before 1970")
    return timestamp_ms


def show_time(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError):
        return str(timestamp_ms)  # after the year 9999
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def acknowledgement(
    info: ClusterMetadata,
    topic: TopicMetadata,
    given: shapes.V3Record | shapes.V3BatchEntry,
    record: Record,
    produced: Produced,
) -> dict[str, Any]:
    def size(data: shapes.Data | None, encoded: bytes | None) -> shapes.DataSize | None:
        return None if data is None else shapes.DataSize(data.type, len(encoded or b""))

    return {
        "cluster_id": info.cluster_id,
        "topic_name": topic.name,
        "partition_id": produced.partition,
        "offset": produced.offset,
        "timestamp": show_time(produced.timestamp_ms),
        "key": size(given.key, record.key),
        "value": size(given.value, record.value),
    }


OPERATIONS = (
    Operation(
        "POST",
        f"{TOPIC}/records",
        "publishRecord",
        "Publish a record, or several JSON objects in a row.",
        "Records",
        publish,
        {200: shapes.V3ProduceResponse},
        body=shapes.V3Record,
        refusals=BODY_REFUSALS,
    ),
    Operation(
        "POST",
        f"{TOPIC}/records:batch",
        "publishBatch",
        "Publish a batch, each entry with its own outcome.",
        "Records",
        publish_batch,
        {207: shapes.V3BatchResponse},
        body=shapes.V3BatchRequest,
        refusals=BODY_REFUSALS,
    ),
)
