"""Consumer instances: group members that live in the gateway between the requests of their owners.

An instance is subscribed (a member of its group) or has manually assigned partitions. Positions start at the committed
offsets, or as auto.offset.reset says. They are lost with the assignment. Offsets are committed on request. With
auto.commit.enable they are also committed at the next read and at the end.

Invariants: a position moves past a record when the owner receives the record, so that an owner that hangs up loses
nothing. One request at a time uses an instance. An instance that is unused for five minutes is closed. The number of
instances is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.gateway.http.errors import Refused
from penstock.gateway.http.formats import Format
from penstock.model.errors import ApiError, ErrorCode
from penstock.model.topic_partition import TopicPartition
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.fetching import Fetched, fetch, list_offsets
from penstock.wire_client.aio.groups import commit, committed
from penstock.wire_client.aio.member import GroupMember
from penstock.wire_client.requests.errors import WireClientError
from penstock.wire_client.requests.groups import OffsetAndMetadata
from penstock.wire_client.requests.offsets import EARLIEST_MS, LATEST_MS

IDLE_TIMEOUT_S = 300.0
REAP_INTERVAL_S = 10.0
MAX_INSTANCES = 1000
POLL_MS = 500


class InstanceSettings(NamedTuple):
    """As its owner gave them."""

    kind: Format
    reset: str
    """auto.offset.reset"""
    auto_commit: bool
    min_bytes: int
    timeout_ms: int


class Instance:
    def __init__(
        self,
        cluster: AsyncCluster,
        group: str,
        name: str,
        settings: InstanceSettings,
    ) -> None:
        self._cluster = cluster
        self.group = group
        self.name = name
        self.settings = settings
        self.lock = asyncio.Lock()
        self.last_used = 0.0
        self._member = GroupMember(cluster, group, client_id=name)
        self._by_hand: tuple[TopicPartition, ...] = ()
        self._positions: dict[TopicPartition, int] = {}
        self._generation = -1

    # -- subscription and assignment --------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        return self._member.topics if self._member.is_subscribed else ()

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        return self._member.assignment if self._member.is_subscribed else self._by_hand

    async def subscribe(self, topics: list[str]) -> None:
        if self._by_hand:
            raise Refused(40903, "Subscription to topics and assignment of partitions are mutually exclusive")
        self._positions.clear()
        await self._member.subscribe(topics)

    async def unsubscribe(self) -> None:
        await self._finish()
        await self._member.leave()
        self._by_hand = ()
        self._positions.clear()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        if self._member.is_subscribed:
            raise Refused(40903, "Subscription to topics and assignment of partitions are mutually exclusive")
        self._by_hand = tuple(dict.fromkeys(partitions))
        self._positions = {key: offset for key, offset in self._positions.items() if key in self._by_hand}

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._refuse_others(offsets)
        self._settle_generation()
        self._positions.update(offsets)

    async def seek_to_end(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> None:
        """`timestamp_ms`: EARLIEST_MS or LATEST_MS."""
        wanted = list(partitions)
        self._refuse_others(wanted)
        found = await list_offsets(self._cluster, dict.fromkeys(wanted, timestamp_ms))
        self._settle_generation()
        self._positions.update({key: entry.offset for key, entry in found.items()})

    def _refuse_others(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if partition not in self.assignment:
                raise Refused(
                    40904, f"partition {partition.topic}-{partition.partition} is not assigned to this instance"
                )

    # -- reading --------------------------------------------------------------------------

    async def read(self, timeout_ms: int, max_bytes: int) -> dict[TopicPartition, Fetched]:
        """The records that arrive in time. The first call of a subscribed instance waits for its assignment.

        The next call returns the same records again unless the caller takes them with `hand_out` first.
        """
        if not self._member.is_subscribed and not self._by_hand:
            raise Refused(40901, "this instance has nothing to read: subscribe to topics or assign partitions first")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        if self.settings.auto_commit:
            await self._commit_quietly()
        while True:
            left_s = deadline - loop.time()
            if self._member.is_subscribed and not await self._member.wait_until_assigned(max(left_s, 0.001)):
                return {}
            self._settle_generation()
            generation, partitions = self._generation, self.assignment
            if partitions:
                found = await self._fetch(partitions, max(0, min(POLL_MS, round(left_s * 1000))), max_bytes)
                if self._is_current(generation):
                    if any(fetched.records for fetched in found.values()):
                        return found
                    self.hand_out(found)  # only aborted or control records, which are not shown
            elif left_s > 0:
                await asyncio.sleep(min(left_s, 0.1))
            if loop.time() >= deadline:
                return {}

    def hand_out(self, found: Mapping[TopicPartition, Fetched]) -> None:
        """Moves the positions past records that the owner has received."""
        for partition, fetched in found.items():
            self._positions[partition] = fetched.next_offset

    def _is_current(self, generation: int) -> bool:
        """False after a rebalance: another member may own the partitions that were read."""
        return not self._member.is_subscribed or self._member.generation == generation

    def _settle_generation(self) -> None:
        if self._member.is_subscribed and self._member.generation != self._generation:
            self._generation = self._member.generation
            self._positions.clear()

    async def _fetch(
        self, partitions: tuple[TopicPartition, ...], wait_ms: int, max_bytes: int
    ) -> dict[TopicPartition, Fetched]:
        await self._find_positions([key for key in partitions if key not in self._positions])
        positions = {key: self._positions[key] for key in partitions if key in self._positions}
        found = await fetch(
            self._cluster, positions, max_wait_ms=wait_ms, max_bytes=max_bytes, min_bytes=self.settings.min_bytes
        )
        good: dict[TopicPartition, Fetched] = {}
        for partition, fetched in found.items():
            if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                self._positions.update(await self._reset_positions([partition]))
            elif fetched.error is not ErrorCode.NONE:
                raise ApiError(fetched.error, f"{partition.topic}-{partition.partition}: {fetched.error.name}")
            else:
                good[partition] = fetched
        return good

    async def _find_positions(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        found = await committed(self._cluster, self.group, partitions)
        missing = [key for key in partitions if key not in found]
        self._positions.update({key: entry.offset for key, entry in found.items()})
        if missing:
            self._positions.update(await self._reset_positions(missing))

    async def _reset_positions(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self.settings.reset == "none":
            names = ", ".join(f"{key.topic}-{key.partition}" for key in partitions)
            raise Refused(41602, f"no offset for {names}, and auto.offset.reset is none")
        end = EARLIEST_MS if self.settings.reset == "earliest" else LATEST_MS
        found = await list_offsets(self._cluster, dict.fromkeys(partitions, end))
        return {key: entry.offset for key, entry in found.items()}

    # -- offsets --------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commits the given offsets, or with None the positions of all partitions."""
        if offsets is None:
            self._settle_generation()
            offsets = {key: OffsetAndMetadata(offset, "") for key, offset in self._positions.items()}
        if offsets:
            if self._member.is_subscribed:
                await self._member.commit(offsets)
            else:
                await commit(self._cluster, self.group, offsets)
        return dict(offsets)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return await committed(self._cluster, self.group, partitions)

    async def _commit_quietly(self) -> None:
        """Commits, and ignores a refusal because of a rebalance: the records are then read again (at least once)."""
        try:
            await self.commit(None)
        except ApiError as error:
            if error.code not in (
                ErrorCode.REBALANCE_IN_PROGRESS,
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.UNKNOWN_MEMBER_ID,
            ):
                raise

    async def _finish(self) -> None:
        if self.settings.auto_commit:
            await self._commit_quietly()

    async def close(self) -> None:
        try:
            await self._finish()
        finally:
            await self._member.leave()


class Instances:
    """All instances, by group and name."""

    def __init__(self) -> None:
        self._instances: dict[tuple[str, str], Instance] = {}
        self._reaper: asyncio.Task[None] | None = None
        self._next = 1

    def free_name(self, group: str) -> str:
        while (group, f"rest-consumer-{self._next}") in self._instances:
            self._next += 1
        return f"rest-consumer-{self._next}"

    def add(self, instance: Instance) -> None:
        """Raises Refused: 40902 for a name in use, 42903 for too many instances."""
        if len(self._instances) >= MAX_INSTANCES:
            raise Refused(42903, f"there are {MAX_INSTANCES} consumer instances already: delete one")
        if (instance.group, instance.name) in self._instances:
            raise Refused(40902, "Consumer with specified consumer ID already exists in the specified consumer group.")
        instance.last_used = asyncio.get_running_loop().time()
        self._instances[instance.group, instance.name] = instance
        if self._reaper is None:
            self._reaper = asyncio.create_task(self._reap())

    def find(self, group: str, name: str) -> Instance:
        instance = self._instances.get((group, name))
        if instance is None:
            raise Refused(40403, "Consumer instance not found.")
        instance.last_used = asyncio.get_running_loop().time()
        return instance

    async def remove(self, group: str, name: str) -> None:
        instance = self.find(group, name)
        del self._instances[group, name]
        async with instance.lock:
            await instance.close()

    async def _reap(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(REAP_INTERVAL_S)
            for (group, name), instance in list(self._instances.items()):
                if loop.time() - instance.last_used > IDLE_TIMEOUT_S and not instance.lock.locked():
                    del self._instances[group, name]
                    try:
                        await instance.close()
                    except (ApiError, WireClientError):
                        continue  # the group notices it at the session timeout

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
        instances = list(self._instances.values())
        self._instances.clear()
        await asyncio.gather(*(instance.close() for instance in instances), return_exceptions=True)
