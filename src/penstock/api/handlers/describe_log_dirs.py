"""DescribeLogDirs (key 35), versions 1-5.

Describes the one log directory and its partitions. topics null means all; partitions not on this broker are left out.
Sizes are those of the segments. Partitions are never moved between directories, so there are no future replicas and no
lag; no directory is cordoned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from penstock.api.bounds import WIDE
from penstock.api.context import RequestContext
from penstock.model.errors import ErrorCode
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition
from penstock.wire.apis import Api
from penstock.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


class DescribeLogDirsHandler:
    api: ClassVar = Api.DESCRIBE_LOG_DIRS
    min_version: ClassVar = 1
    max_version: ClassVar = 5
    bounds: ClassVar = WIDE

    def __init__(self, partitions: HostedPartitions) -> None:
        self._partitions = partitions

    async def handle(self, ctx: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        topics: list[DescribeLogDirsTopic] = []
        async for name, partitions in ctx.pace.each(self._chosen(request)):
            described = [
                DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size_bytes)
                async for partition in ctx.pace.each(partitions)
            ]
            if described:
                topics.append(DescribeLogDirsTopic(name=name, partitions=described))
        result = DescribeLogDirsResult(log_dir=self._partitions.directory, topics=topics)
        try:
            result.total_bytes, result.usable_bytes = self._partitions.space()
        except OSError:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return DescribeLogDirsResponse(results=[result])

    def _chosen(self, request: DescribeLogDirsRequest) -> Iterable[tuple[str, list[Partition]]]:
        wanted: dict[str, set[int]] | None = None
        if request.topics is not None:
            wanted = {}
            for topic in request.topics:
                wanted.setdefault(topic.topic, set()).update(topic.partitions)
        hosted = self._partitions.by_name
        for name in hosted if wanted is None else wanted:
            yield (
                name,
                [
                    partition
                    for partition in hosted.get(name, [])
                    if partition is not None and (wanted is None or partition.index in wanted[name])
                ],
            )

    def refuse(self, request: DescribeLogDirsRequest, code: ErrorCode, message: str | None) -> DescribeLogDirsResponse:
        return DescribeLogDirsResponse(error_code=code)
