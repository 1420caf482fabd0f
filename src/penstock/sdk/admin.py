"""`Admin`: the asyncio admin client. It calls `BlockingAdmin` in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Literal, Self, Unpack

from penstock.model.topic_partition import TopicPartition
from penstock.sdk.blocking_admin import AdminOptions, BlockingAdmin, Kind
from penstock.sdk.cluster import (
    ClusterInfo,
    ConfigSetting,
    GroupInfo,
    GroupListing,
    OffsetChange,
    PartitionLag,
    ShiftBy,
    TopicInfo,
)
from penstock.sdk.records import Position

__all__ = ["Admin", "AdminOptions", "BlockingAdmin"]


class Admin:
    """
    async with Admin("localhost:9092") as admin:
        await admin.create_topic("events", partitions=3)
    """

    def __init__(self, bootstrap_servers: str | None = None, **options: Unpack[AdminOptions]) -> None:
        self._blocking = BlockingAdmin(bootstrap_servers, **options)

    @staticmethod
    def blocking(bootstrap_servers: str | None = None, **options: Unpack[AdminOptions]) -> BlockingAdmin:
        return BlockingAdmin(bootstrap_servers, **options)

    async def cluster(self) -> ClusterInfo:
        return await asyncio.to_thread(self._blocking.cluster)

    async def topics(self) -> list[TopicInfo]:
        return await asyncio.to_thread(self._blocking.topics)

    async def topic(self, name: str) -> TopicInfo:
        return await asyncio.to_thread(self._blocking.topic, name)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """None means the broker's default."""
        await asyncio.to_thread(self._blocking.create_topic, name, partitions, replication_factor, configs)

    async def delete_topic(self, name: str) -> None:
        await asyncio.to_thread(self._blocking.delete_topic, name)

    async def add_partitions(self, name: str, total: int) -> None:
        """Increases the number of partitions to `total`. It cannot be reduced again."""
        await asyncio.to_thread(self._blocking.add_partitions, name, total)

    async def offsets(
        self, partitions: Iterable[TopicPartition], at: Literal["earliest", "latest"] | datetime
    ) -> dict[TopicPartition, int]:
        """For a time: the offset of the first record at or after it, or the end offset if there is none."""
        return await asyncio.to_thread(self._blocking.offsets, partitions, at)

    async def groups(self) -> list[GroupListing]:
        return await asyncio.to_thread(self._blocking.groups)

    async def group(self, group_id: str) -> GroupInfo:
        return await asyncio.to_thread(self._blocking.group, group_id)

    async def group_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        return await asyncio.to_thread(self._blocking.group_offsets, group_id)

    async def set_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Refused while the group has members."""
        await asyncio.to_thread(self._blocking.set_group_offsets, group_id, offsets)

    async def delete_group(self, group_id: str) -> None:
        await asyncio.to_thread(self._blocking.delete_group, group_id)

    async def lag(self, group_id: str) -> list[PartitionLag]:
        return await asyncio.to_thread(self._blocking.lag, group_id)

    async def reset_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], to: Position | ShiftBy, *, dry_run: bool = False
    ) -> list[OffsetChange]:
        """Like `BlockingAdmin.reset_offsets`."""
        return await asyncio.to_thread(self._blocking.reset_offsets, group_id, partitions, to, dry_run=dry_run)

    async def configs(self, kind: Kind, name: str) -> list[ConfigSetting]:
        return await asyncio.to_thread(self._blocking.configs, kind, name)

    async def alter_configs(
        self, kind: Kind, name: str, *, set_: Mapping[str, str] | None = None, delete: Iterable[str] = ()
    ) -> None:
        """Changes only the named settings. A deleted setting returns to its default."""
        await asyncio.to_thread(self._blocking.alter_configs, kind, name, set_=set_, delete=delete)

    async def close(self) -> None:
        self._blocking.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
