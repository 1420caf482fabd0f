"""A member of a consumer group (the classic protocol, range assignor): joins, heartbeats, rejoins, leaves.

One task per member runs the life cycle. The consumer reads `assignment` and `generation`, and waits with
`wait_until_assigned`. Must not know: records and positions. Invariants: there is an assignment only between a
completed SyncGroup and the next rebalance. `leave` sends LeaveGroup to the coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from penstock.model.errors import ApiError, ErrorCode, ProtocolError
from penstock.model.topic_partition import TopicPartition
from penstock.wire.apis import Api
from penstock.wire.messages.heartbeat import HeartbeatResponse
from penstock.wire.messages.join_group import JoinGroupResponse
from penstock.wire.messages.leave_group import LeaveGroupResponse
from penstock.wire.messages.sync_group import SyncGroupResponse
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.connection import AsyncConnection
from penstock.wire_client.aio.groups import commit, find_coordinator
from penstock.wire_client.requests.errors import WireClientError, check
from penstock.wire_client.requests.groups import OffsetAndMetadata
from penstock.wire_client.requests.membership import (
    Timeouts,
    heartbeat_request,
    join_request,
    leave_request,
    sync_request,
)
from penstock.wire_client.requests.retriable import Again, may
from penstock.wire_client.requests.subscription import (
    assign_ranges,
    decode_assignment,
    decode_subscription,
)

log = logging.getLogger(__name__)

TIMEOUTS = Timeouts(session_ms=45_000, rebalance_ms=60_000)
HEARTBEAT_S = 1.0
RETRY_PAUSE_S = 0.2
LEAVE_TIMEOUT_S = 5.0


class GroupMember:
    def __init__(self, cluster: AsyncCluster, group: str, client_id: str | None = None) -> None:
        """`client_id`: the member's client id; by default the cluster's."""
        self._cluster = cluster
        self.group = group
        self._client_id = client_id
        self.member_id = ""
        self.generation = -1
        self.assignment: tuple[TopicPartition, ...] = ()
        self.topics: tuple[str, ...] = ()
        self.failure: ApiError | ProtocolError | None = None
        """Why the member gave up. Only a new subscription helps."""
        self._assigned = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: AsyncConnection | None = None
        self._counts: dict[str, int] = {}

    async def subscribe(self, topics: Sequence[str]) -> None:
        await self.leave()
        self.topics = tuple(dict.fromkeys(topics))
        self.failure = None
        self._task = asyncio.create_task(self._live())

    @property
    def is_subscribed(self) -> bool:
        return self._task is not None

    async def wait_until_assigned(self, timeout_s: float) -> bool:
        """False after the timeout. Raises the error that made the member give up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._assigned.wait()
        except TimeoutError:
            return False
        if self.failure is not None:
            raise self.failure
        return True

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await commit(self._cluster, self.group, offsets, member_id=self.member_id, generation=self.generation)

    async def leave(self) -> None:
        """Leaves the group, so that the others need not wait for a session timeout. Safe to call twice."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        member_id, self.member_id = self.member_id, ""
        self._forget_assignment()
        if not member_id:
            return
        request = leave_request(self.group, member_id)
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                connection = await self._cluster.control(await find_coordinator(self._cluster, self.group))
                await connection.call(Api.LEAVE_GROUP, request, LeaveGroupResponse)
        except (WireClientError, ApiError, TimeoutError) as error:
            log.info("group %s: left without an answer: %s", self.group, error)

    # -- the life cycle -----------------------------------------------------------------

    async def _live(self) -> None:
        try:
            while True:
                try:
                    await self._join()
                    await self._stay()
                except WireClientError as error:
                    log.info("group %s: %s", self.group, error)
                    await asyncio.sleep(RETRY_PAUSE_S)
                except ApiError as error:
                    if not await self._go_on_after(error):
                        self.failure = error
                        return
                except ProtocolError as error:
                    self.failure = error
                    return
                finally:
                    self._forget_assignment()
                    self._close_connection()
        finally:
            if self.failure is not None:
                self._assigned.set()

    async def _go_on_after(self, error: ApiError) -> bool:
        if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            return True
        if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.member_id = ""
            return True
        if may(Again.FIND_COORDINATOR, error.code) or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            await asyncio.sleep(RETRY_PAUSE_S)
            return True
        return False

    async def _join(self) -> None:
        coordinator = await find_coordinator(self._cluster, self.group)
        self._connection = connection = await self._cluster.dedicated(coordinator, self._client_id)
        answer = await self._ask_to_join(connection)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = await self._ask_to_join(connection)
        check(answer.error_code)
        self.member_id = answer.member_id
        assignments: Mapping[str, Sequence[TopicPartition]] = {}
        self._counts = {}
        if answer.leader == answer.member_id and not answer.skip_assignment:
            subscriptions = {member.member_id: decode_subscription(member.metadata) for member in answer.members}
            self._counts = await self._partition_counts({t for topics in subscriptions.values() for t in topics})
            assignments = assign_ranges(subscriptions, self._counts)
        request = sync_request(self.group, answer, assignments)
        synced = await connection.call(
            Api.SYNC_GROUP, request, SyncGroupResponse, timeout_s=TIMEOUTS.rebalance_ms / 1000 + 5
        )
        check(synced.error_code)
        self.generation = answer.generation_id
        self.assignment = decode_assignment(synced.assignment)
        self._assigned.set()

    async def _ask_to_join(self, connection: AsyncConnection) -> JoinGroupResponse:
        request = join_request(self.group, self.member_id, self.topics, TIMEOUTS)
        return await connection.call(
            Api.JOIN_GROUP, request, JoinGroupResponse, timeout_s=TIMEOUTS.rebalance_ms / 1000 + 10
        )

    async def _stay(self) -> None:
        """Sends heartbeats until an exception, which every change is."""
        assert self._connection is not None
        request = heartbeat_request(self.group, self.generation, self.member_id)
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            answer = await self._connection.call(
                Api.HEARTBEAT, request, HeartbeatResponse, timeout_s=TIMEOUTS.session_ms / 1000
            )
            check(answer.error_code)
            # Only the group leader knows the partition counts, so it must notice a topic with new partitions.
            if self._counts and self._counts != await self._partition_counts(self._counts):
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    async def _partition_counts(self, topics: set[str] | dict[str, int]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for topic in sorted(topics):
            try:
                counts[topic] = len((await self._cluster.topic(topic)).partitions)
            except ApiError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                counts[topic] = 0  # it may be created later
        return counts

    def _forget_assignment(self) -> None:
        self.assignment = ()
        self.generation = -1
        if self.failure is None:
            self._assigned.clear()

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
