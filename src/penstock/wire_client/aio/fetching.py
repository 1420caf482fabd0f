"""Reading records and offsets without a group: from given positions, it returns records and the next positions.

It reads only committed records: records of open or aborted transactions and control records are left out. Must not
know: the reader, or where positions are stored. Invariant: `next_offset` moves past everything that was examined, so
that a reader that follows it misses nothing and always makes progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, cast

from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.ports.disk import Buffer
from penstock.ports.workers import RecordWorkers
from penstock.records.builder import Record
from penstock.records.decoding import Aborted, Limits, decode, is_little
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchResponse, PartitionData
from penstock.wire.messages.list_offsets import ListOffsetsResponse
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.requests.errors import BrokerUnreachable, ConnectionLost, OffsetOutOfRange, check, error_code
from penstock.wire_client.requests.fetch import FetchFrom, FetchTerms, fetch_request
from penstock.wire_client.requests.offsets import (
    EARLIEST_MS,
    LATEST_MS,
    OffsetAndTimestamp,
    list_offsets_request,
)
from penstock.wire_client.requests.retriable import Again, may
from penstock.wire_client.requests.sentences import offsets_refused, partition_refused

MAX_BYTES = 1 << 20
STALE_PAUSE_S = 0.05
PORTION = Limits(10_000, 16 << 20)  # decoded from one fetch of a partition if workers decode
RETRY_FOR_S = 10.0
TIMEOUT_MS = 30_000
# With several leaders, an answer with data waits for one without: not for long.
MANY_LEADERS_WAIT_MS = 200


class Fetched(NamedTuple):
    records: list[Record]
    next_offset: int
    high_watermark: int
    log_start_offset: int
    error: ErrorCode
    """The error, such as OFFSET_OUT_OF_RANGE; the other fields are then empty."""


Positions = Mapping[TopicPartition, int]


async def fetch(
    cluster: AsyncCluster, positions: Positions, *, max_wait_ms: int, max_bytes: int = MAX_BYTES, min_bytes: int = 1
) -> dict[TopicPartition, Fetched]:
    """The records at these positions. Waits up to `max_wait_ms` for `min_bytes`. Empty partitions are left out."""
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for partition, offset in positions.items():
        by_leader.setdefault(await cluster.leader(*partition), {})[partition] = offset
    if len(by_leader) > 1:
        max_wait_ms = min(max_wait_ms, MANY_LEADERS_WAIT_MS)
    terms = FetchTerms(max_wait_ms, min_bytes, max_bytes, read_committed=True)
    answers = await asyncio.gather(*(_fetch_from(cluster, leader, asked, terms) for leader, asked in by_leader.items()))
    return {partition: fetched for answer in answers for partition, fetched in answer.items()}


async def fetch_one(
    cluster: AsyncCluster, partition: TopicPartition, offset: int, *, max_wait_ms: int, max_bytes: int = MAX_BYTES
) -> Fetched:
    """Fetches one partition. Raises ApiError for an error code."""
    answer = await fetch(cluster, {partition: offset}, max_wait_ms=max_wait_ms, max_bytes=max_bytes)
    fetched = answer.get(partition)
    if fetched is None:
        return Fetched([], offset, -1, -1, ErrorCode.NONE)
    if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        first, end = await offset_range(cluster, partition)
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            str(OffsetOutOfRange(partition, offset, first, end)),
        )
    if fetched.error is not ErrorCode.NONE:
        raise ApiError(fetched.error, partition_refused(fetched.error, *partition))
    return fetched


async def _fetch_from(
    cluster: AsyncCluster, leader: int, positions: Positions, terms: FetchTerms
) -> dict[TopicPartition, Fetched]:
    topics = dict.fromkeys(partition.topic for partition in positions)
    request = fetch_request({key: FetchFrom(at, terms.max_bytes) for key, at in positions.items()}, terms)
    try:
        async with cluster.lease(leader) as connection:
            answer = await connection.call(Api.FETCH, request, FetchResponse, timeout_s=terms.max_wait_ms / 1000 + 30)
    except (BrokerUnreachable, ConnectionLost):
        # If the rest of the cluster answers, another broker is about to lead the partitions of this one.
        for topic in topics:
            cluster.forget(topic)
            await cluster.topic(topic)
        await asyncio.sleep(STALE_PAUSE_S)
        for topic in topics:
            cluster.forget(topic)
        return {}
    check(answer.error_code)
    fetched: dict[TopicPartition, Fetched] = {}
    stale = False
    for topic_answer in answer.responses:
        for data in topic_answer.partitions:
            partition = TopicPartition(topic_answer.topic, data.partition_index)
            code = error_code(data.error_code)
            if may(Again.FIND_LEADER, code):
                cluster.forget(partition.topic)
                stale = True
            elif code is not ErrorCode.NONE:
                if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    cluster.forget(partition.topic)
                fetched[partition] = Fetched([], positions[partition], -1, -1, code)
            else:
                read = await _read(data, positions[partition], cluster.record_workers)
                if read.next_offset != positions[partition]:
                    fetched[partition] = read
    if stale and not fetched:
        await asyncio.sleep(STALE_PAUSE_S)  # an election is under way: no tight loop
    return fetched


async def _read(data: PartitionData, offset: int, workers: RecordWorkers | None) -> Fetched:
    """Decodes records. If there are workers, they decode large answers in portions."""
    raw = cast("Buffer", data.records or b"")
    aborted = [Aborted(one.first_offset, one.producer_id) for one in data.aborted_transactions or ()]
    if workers is None or is_little(raw):
        decoded = decode(raw, offset, aborted)
    else:
        decoded = await workers.call(decode, bytes(raw), offset, aborted, PORTION)
    return Fetched(decoded.records, decoded.next_offset, data.high_watermark, data.log_start_offset, ErrorCode.NONE)


# -- offsets ----------------------------------------------------------------------------


async def list_offsets(
    cluster: AsyncCluster, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """The first offset at or after each timestamp (EARLIEST_MS and LATEST_MS for the ends). Raises ApiError.

    It follows leaders that change.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RETRY_FOR_S
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    while True:
        try:
            await _list_offsets(cluster, {key: at for key, at in wanted.items() if key not in found}, found)
        except ApiError as error:
            if not may(Again.FIND_LEADER, error.code) or loop.time() > deadline:
                raise
        except (BrokerUnreachable, ConnectionLost):
            for topic in dict.fromkeys(key.topic for key in wanted):
                cluster.forget(topic)
                await cluster.topic(topic)  # raises if no broker answers
            if loop.time() > deadline:
                raise
        else:
            return found
        await asyncio.sleep(STALE_PAUSE_S)
        for key in wanted:
            cluster.forget(key.topic)


async def _list_offsets(
    cluster: AsyncCluster, wanted: Mapping[TopicPartition, int], found: dict[TopicPartition, OffsetAndTimestamp]
) -> None:
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, timestamp_ms in wanted.items():
        by_leader.setdefault(await cluster.leader(*tp), {})[tp] = timestamp_ms
    for leader, asked in by_leader.items():
        request = list_offsets_request(asked, TIMEOUT_MS, read_committed=True)
        connection = await cluster.control(leader)
        answer = await connection.call(Api.LIST_OFFSETS, request, ListOffsetsResponse)
        for topic_answer in answer.topics:
            for entry in topic_answer.partitions:
                if entry.error_code:
                    cluster.forget(topic_answer.name)
                    raise offsets_refused(error_code(entry.error_code), topic_answer.name, entry.partition_index)
                partition_key = TopicPartition(topic_answer.name, entry.partition_index)
                found[partition_key] = OffsetAndTimestamp(entry.offset, entry.timestamp)


async def offset_range(cluster: AsyncCluster, partition: TopicPartition) -> tuple[int, int]:
    """The first offset and the end offset."""
    first = await list_offsets(cluster, {partition: EARLIEST_MS})
    last = await list_offsets(cluster, {partition: LATEST_MS})
    return first[partition].offset, last[partition].offset


async def position_at(cluster: AsyncCluster, partition: TopicPartition, timestamp_ms: int) -> int:
    """The offset of the first record at or after the time, or the end offset if there is none."""
    found = (await list_offsets(cluster, {partition: timestamp_ms}))[partition].offset
    if found < 0:
        found = (await list_offsets(cluster, {partition: LATEST_MS}))[partition].offset
    return found
