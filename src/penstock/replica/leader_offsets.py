"""Asks the leader for its log start and end, on the connection of the fetches.

Uses one version of ListOffsets, without asking for the leader's versions: all brokers of a cluster serve it.
"""

from __future__ import annotations

from penstock.broker_link.leader_link import LeaderLink
from penstock.model.errors import ApiError, ErrorCode
from penstock.replica.partition import Partition
from penstock.wire.apis import Api
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
    asked = ListOffsetsPartition(
        partition_index=partition.index, current_leader_epoch=partition.leader_epoch, timestamp=which
    )
    request = ListOffsetsRequest(
        replica_id=node_id, topics=[ListOffsetsTopic(name=partition.topic, partitions=[asked])]
    )
    response = await link.ask(Api.LIST_OFFSETS, LIST_OFFSETS_VERSION, request, ListOffsetsResponse)
    found = response.topics[0].partitions[0]
    if found.error_code:
        raise ApiError(ErrorCode(found.error_code))
    return found.offset
