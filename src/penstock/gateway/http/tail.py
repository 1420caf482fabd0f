"""GET /topics/{topic}/events: the records of a topic as server-sent events, as they arrive.

The id of an event holds the next offset of each partition ("0:12,1:7"). The first event has no data, only the start
positions. Browsers send the last id as Last-Event-ID when they reconnect, so that they miss nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.gateway.http.errors import Refused, refusal
from penstock.gateway.http.formats import Format, of_accept, show_record
from penstock.gateway.http.operations import (
    JSON_TYPES,
    Operation,
    Proxy,
    Query,
    Stopping,
    refuse_contradiction,
    unless_stopping,
)
from penstock.gateway.http.shapes import Event
from penstock.gateway.http.v2 import OFFSET, TIMESTAMP, existing_topic
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire_client.aio.fetching import fetch, list_offsets
from penstock.wire_client.requests.errors import WireClientError
from penstock.wire_client.requests.offsets import EARLIEST_MS, LATEST_MS

KEEP_ALIVE_S = 15.0
EVENT_STREAM = "text/event-stream"
PARTITION = Query("partition", "Read only this partition.", 0, 2**31 - 1)
FROM = Query("from", "Where to start (default: latest).", choices=("earliest", "latest"))
FORMAT = Query("format", "Format of keys and values.", choices=("plain", "json", "binary"))
LIMIT = Query("limit", "End the stream after this number of events.", 1, 10**9)
_EVENT_ID = re.compile(r"[0-9]{1,10}:[0-9]{1,19}(,[0-9]{1,10}:[0-9]{1,19}){0,9999}")
_FORMATS = {"plain": Format.PLAIN, "json": Format.JSON, "binary": Format.BINARY}


async def tail(proxy: Proxy, request: Request) -> Response:
    positions = await _positions(proxy, request)
    if request.method == "HEAD":
        return Response(media_type=EVENT_STREAM)
    format_name = FORMAT.choose(request)
    kind = of_accept(request.headers.get("accept", "")) if format_name is None else _FORMATS[format_name]
    return StreamingResponse(
        _events(proxy, positions, kind, LIMIT.read(request)),
        media_type=EVENT_STREAM,
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def _positions(proxy: Proxy, request: Request) -> dict[TopicPartition, int]:
    only, offset, timestamp_ms = PARTITION.read(request), OFFSET.read(request), TIMESTAMP.read(request)
    start = FROM.choose(request)
    refuse_contradiction({"offset": offset, "timestamp": timestamp_ms, "from": start})
    if offset is not None and only is None:
        raise Refused(400, "offset needs a partition: give partition as well")
    topic = await existing_topic(proxy, request)
    if only is not None and only >= len(topic.partitions):
        raise Refused(40402, f"Partition not found: topic '{topic.name}' has {len(topic.partitions)}")
    indexes = range(len(topic.partitions)) if only is None else (only,)
    partitions = [TopicPartition(topic.name, index) for index in indexes]
    ends = await list_offsets(proxy.cluster, dict.fromkeys(partitions, LATEST_MS))
    if start == "earliest":
        ends = await list_offsets(proxy.cluster, dict.fromkeys(partitions, EARLIEST_MS))
    positions = {partition: ends[partition].offset for partition in partitions}
    if offset is not None:
        positions = dict.fromkeys(partitions, offset)
    elif timestamp_ms is not None:
        found = await list_offsets(proxy.cluster, dict.fromkeys(partitions, timestamp_ms))
        positions.update({key: entry.offset for key, entry in found.items() if entry.offset >= 0})
    return positions | _resumed(request, topic.name, positions)


def _resumed(request: Request, topic: str, positions: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    last = request.headers.get("last-event-id", "")
    if not last:
        return {}
    pairs = [item.split(":") for item in last.split(",")] if _EVENT_ID.fullmatch(last) else []
    resumed = {TopicPartition(topic, int(index)): int(offset) for index, offset in pairs}
    if not resumed or max(resumed.values()) >= 2**63:
        raise Refused(400, "Last-Event-ID must be the id of an event of this stream, like 0:12,1:7")
    return {key: offset for key, offset in resumed.items() if key in positions}


async def _events(
    proxy: Proxy, positions: dict[TopicPartition, int], kind: Format, limit: int | None
) -> AsyncIterator[bytes]:
    yield b": open\n" + _event(positions, b"")
    sent = 0
    while True:
        try:
            fetching = fetch(proxy.cluster, positions, max_wait_ms=round(KEEP_ALIVE_S * 1000))
            found = await unless_stopping(proxy, fetching)
        except Stopping:
            return  # the reader reconnects with the last id
        except (ApiError, WireClientError) as error:
            yield _problem(refusal(error))
            return
        if not found:
            yield b": still here\n\n"
        for partition, fetched in found.items():
            if fetched.error is not ErrorCode.NONE:
                yield _problem(refusal(ApiError(fetched.error, f"{partition.topic}-{partition.partition}")))
                return
            for record in fetched.records:
                positions[partition] = record.offset + 1
                yield _event(positions, msgspec.json.encode(show_record(partition, record, kind)))
                sent += 1
                if sent == limit:
                    return
            positions[partition] = fetched.next_offset
        await asyncio.sleep(0)


def _event(positions: dict[TopicPartition, int], data: bytes) -> bytes:
    position = ",".join(f"{key.partition}:{offset}" for key, offset in positions.items())
    # JSON with line feeds becomes several data lines, which the reader joins.
    lines = b"".join(b"data: " + line + b"\n" for line in data.splitlines())
    return f"id: {position}\n".encode() + lines + b"\n"


def _problem(refused: Refused) -> bytes:
    body = msgspec.json.encode({"error_code": refused.code, "message": refused.message})
    return b"event: error\ndata: " + body + b"\n\n"


OPERATIONS = (
    Operation(
        "GET",
        "/topics/{topic}/events",
        "tailTopic",
        "Stream records as server-sent events; Last-Event-ID resumes.",
        "Records",
        tail,
        {200: Event},
        query=(PARTITION, OFFSET, TIMESTAMP, FROM, FORMAT, LIMIT),
        answer_types=(EVENT_STREAM,),
        accepts=(EVENT_STREAM, *JSON_TYPES),
        refusals=(400, 404),
    ),
)
