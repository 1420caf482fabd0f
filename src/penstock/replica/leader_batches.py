"""Reads batches of the leader's log as a consumer would, on the connection of the fetches.

The batches are only inspected. The request has no session and no replica id, so it does not report this replica's
position.
"""

from __future__ import annotations

from penstock.broker_link.leader_link import LeaderLink
from penstock.model.errors import ApiError, ErrorCode
from penstock.replica.partition import Partition
from penstock.wire.apis import Api
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

NO_SESSION_EPOCH = -1
MAX_BYTES = 1 << 20


async def ask_batches(link: LeaderLink, version: int, partition: Partition, offset: int) -> bytes:
    """Whole committed batches from the one that holds `offset` on; empty: there are none. Raises ApiError."""
    asked = FetchPartition(
        partition=partition.index,
        current_leader_epoch=partition.leader_epoch,
        fetch_offset=offset,
        partition_max_bytes=MAX_BYTES,
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=MAX_BYTES,
        session_epoch=NO_SESSION_EPOCH,
        topics=[FetchTopic(topic_id=partition.topic_id, partitions=[asked])],
    )
    response = await link.ask(Api.FETCH, version, request, FetchResponse)
    if response.error_code:
        raise ApiError(ErrorCode(response.error_code))
    for topic in response.responses:
        for data in topic.partitions:
            if data.error_code:
                raise ApiError(ErrorCode(data.error_code))
            assert data.records is None or isinstance(data.records, bytes | memoryview)
            return bytes(data.records or b"")
    return b""
