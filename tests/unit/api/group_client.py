"""Requests of the group APIs as raw frames, in any version."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from wire_client import WireClient

from penstock.wire.apis import Api
from penstock.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.heartbeat import HeartbeatRequest
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.messages.list_groups import ListGroupsRequest
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

T = TypeVar("T")

SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"  # of topic "t"


class GroupClient:
    def __init__(self, wire: WireClient, group: str) -> None:
        self.wire = wire
        self.group = group

    def find(self, version: int = 4) -> Any:
        request = FindCoordinatorRequest(key=self.group, coordinator_keys=[self.group])
        return self.wire.call(Api.FIND_COORDINATOR, version, request)

    def join_request(self, member: str = "", **changes: Any) -> JoinGroupRequest:
        fields: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "member_id": member,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
        }
        return JoinGroupRequest(**{**fields, **changes})

    def join(self, member: str = "", version: int = 9, **changes: Any) -> JoinGroupResponse:
        response: JoinGroupResponse = self.wire.call(Api.JOIN_GROUP, version, self.join_request(member, **changes))
        return response

    def enter_or_error(self) -> JoinGroupResponse:
        return self.join(self.join().member_id)

    def enter(self, version: int = 9, **changes: Any) -> JoinGroupResponse:
        """Join, with the id that is asked for first from version 4 on."""
        response = self.join(version=version, **changes)
        if response.error_code == 79:
            response = self.join(response.member_id, version, **changes)
        assert response.error_code == 0, response
        return response

    def sync(
        self, joined: JoinGroupResponse, assignments: dict[str, bytes] | None = None, version: int = 5
    ) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=given)
                for member, given in (assignments or {}).items()
            ],
        )
        response: SyncGroupResponse = self.wire.call(Api.SYNC_GROUP, version, request)
        return response

    def stable(self, version: int = 9) -> JoinGroupResponse:
        """The only member of a stable group."""
        joined = self.enter(version)
        assert self.sync(joined, {joined.member_id: b"mine"}).assignment == b"mine"
        return joined

    def heartbeat(self, member: str, generation: int, version: int = 4) -> int:
        request = HeartbeatRequest(group_id=self.group, generation_id=generation, member_id=member)
        code: int = self.wire.call(Api.HEARTBEAT, version, request).error_code
        return code

    def leave(self, member: str, version: int = 5, instance_id: str | None = None) -> Any:
        identity = MemberIdentity(member_id=member, group_instance_id=instance_id)
        request = LeaveGroupRequest(group_id=self.group, member_id=member, members=[identity])
        return self.wire.call(Api.LEAVE_GROUP, version, request)

    def commit(
        self, topic: str, offsets: dict[int, int], version: int = 9, *, topic_id: bytes = bytes(16), **changes: Any
    ) -> dict[int, int]:
        """Error code by partition."""
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="note")
            for index, offset in offsets.items()
        ]
        request = OffsetCommitRequest(
            group_id=self.group,
            topics=[OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=partitions)],
            **changes,
        )
        (answer,) = self.wire.call(Api.OFFSET_COMMIT, version, request).topics
        return {partition.partition_index: partition.error_code for partition in answer.partitions}

    def committed(
        self, topic: str | None, partitions: list[int], version: int = 9, *, topic_id: bytes = bytes(16)
    ) -> dict[int, tuple[int, str | None]]:
        """(offset, note) by partition; of all topics when `topic` is None."""
        if version < 8:
            one = None if topic is None else [OffsetFetchRequestTopic(name=topic, partition_indexes=partitions)]
            response = self.wire.call(Api.OFFSET_FETCH, version, OffsetFetchRequest(group_id=self.group, topics=one))
            assert response.error_code == 0
            topics = response.topics
        else:
            asked = OffsetFetchRequestTopics(name=topic or "", topic_id=topic_id, partition_indexes=partitions)
            group = OffsetFetchRequestGroup(group_id=self.group, topics=None if topic is None else [asked])
            (answer,) = self.wire.call(Api.OFFSET_FETCH, version, OffsetFetchRequest(groups=[group])).groups
            assert answer.error_code == 0, answer
            topics = answer.topics
        return {
            partition.partition_index: (partition.committed_offset, partition.metadata)
            for each in topics
            for partition in each.partitions
        }

    def describe(self, version: int = 6) -> DescribedGroup:
        found: DescribedGroup
        (found,) = self.wire.call(Api.DESCRIBE_GROUPS, version, DescribeGroupsRequest(groups=[self.group])).groups
        return found

    def listed(self, version: int = 5, **filters: Any) -> list[str]:
        response = self.wire.call(Api.LIST_GROUPS, version, ListGroupsRequest(**filters))
        assert response.error_code == 0
        return [group.group_id for group in response.groups]


class Later:
    """A request that waits at the broker, sent from a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._result: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._result.append(call()))
        self._thread.start()

    def is_waiting(self, seconds: float = 0.2) -> bool:
        time.sleep(seconds)
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(15)
        assert self._result, "no answer within 15 s"
        return self._result[0]
