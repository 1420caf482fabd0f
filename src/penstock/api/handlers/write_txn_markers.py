"""WriteTxnMarkers (key 27), versions 1-2, among brokers and for `penstock transactions abort`: markers that end
transactions.

Answered when the markers are committed, partition by partition. A marker for a partition of the offsets topic makes the
transaction's offsets there count.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.coordination.marker_writing import MarkerWriter
from penstock.core.shard.exchange import Marker
from penstock.core.txn.transaction import Partition as Place
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

PATIENCE_S: Final = 2.0
"""A partition that waits for its replicas must not delay the markers of the others."""


class WriteTxnMarkersHandler:
    api: ClassVar = Api.WRITE_TXN_MARKERS
    min_version: ClassVar = 1
    max_version: ClassVar = 2
    bounds: ClassVar = WIDE

    def __init__(self, markers: MarkerWriter) -> None:
        self._markers = markers

    async def handle(self, ctx: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        loop = asyncio.get_running_loop()
        # Tasks: those of one turn append in the next one, and not all of a wide request at once.
        answers = [loop.create_task(self._write(asked)) async for asked in ctx.pace.each(request.markers)]
        codes = await asyncio.gather(*answers)
        return WriteTxnMarkersResponse(
            markers=[_result(asked, found) for asked, found in zip(request.markers, codes, strict=True)]
        )

    async def _write(self, asked: WritableTxnMarker) -> dict[Place, ErrorCode]:
        marker = Marker(
            asked.producer_id,
            asked.producer_epoch,
            asked.transaction_result,
            asked.coordinator_epoch,
            asked.transaction_version,
        )
        places = frozenset((topic.name, index) for topic in asked.topics for index in topic.partition_indexes)
        return await self._markers.write_all(marker, places, PATIENCE_S) if places else {}

    def refuse(self, request: WriteTxnMarkersRequest, code: ErrorCode, message: str | None) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                _result(
                    asked, {(topic.name, index): code for topic in asked.topics for index in topic.partition_indexes}
                )
                for asked in request.markers
            ]
        )


def _result(asked: WritableTxnMarker, codes: dict[Place, ErrorCode]) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=asked.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=codes[topic.name, index])
                    for index in topic.partition_indexes
                ],
            )
            for topic in asked.topics
        ],
    )
