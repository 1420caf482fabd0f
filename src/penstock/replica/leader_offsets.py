"""Where the leader's log begins and ends, asked on the connection that fetches go by.

Spoken in one version of ListOffsets, without asking which ones the leader knows: brokers of a cluster know it.
"""

from __future__ import annotations

import asyncio

from penstock.model.errors import ApiError, ErrorCode
from penstock.replica.leader_link import LeaderLink
from penstock.replica.partition import Partition
from penstock.wire.apis import Api
from penstock.wire.codec import decode_response, read_response_header
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LIST_OFFSETS_VERSION = 9
LATEST, EARLIEST = -1, -2


async def ask_offset(link: LeaderLink, node_id: int, partition: Partition, which: int) -> int:
    """The offset of `LATEST` or `EARLIEST`. Raises ApiError."""
    if not link.is_up:
        raise ApiError(ErrorCode.NETWORK_EXCEPTION, "the connection to the leader was lost")
    asked = ListOffsetsPartition(
        partition_index=partition.index, current_leader_epoch=partition.leader_epoch, timestamp=which
    )
    request = ListOffsetsRequest(
        replica_id=node_id, topics=[ListOffsetsTopic(name=partition.topic, partitions=[asked])]
    )
    answer: asyncio.Future[ListOffsetsResponse | None] = asyncio.get_running_loop().create_future()

    def take(frame: memoryview) -> None:
        if answer.done():
            return
        if not frame:
            answer.set_result(None)
            return
        _, at = read_response_header(Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, frame)
        message = decode_response(Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, frame, at)
        assert isinstance(message, ListOffsetsResponse)
        answer.set_result(message)

    link.send(Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, request, take)
    response = await answer
    if response is None:
        raise ApiError(ErrorCode.NETWORK_EXCEPTION, "the connection to the leader was lost")
    found = response.topics[0].partitions[0]
    if found.error_code:
        raise ApiError(ErrorCode(found.error_code))
    return found.offset
