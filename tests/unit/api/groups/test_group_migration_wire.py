"""Members of both protocols in one group, as raw frames: upgrade, what classic members hear, downgrade, policies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from group_client import GroupClient
from wire_client import WireClient

from penstock.core.group.embedded_protocol import read_assignment, write_assignment
from penstock.model.errors import ErrorCode
from penstock.testing import Broker
from penstock.wire.apis import Api
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.messages.join_group import JoinGroupRequestProtocol
from penstock.wire.messages.list_groups import ListGroupsRequest
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "penstock.group.rebalance.settle.ms": "0",
    "penstock.group.heartbeat.hold.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
}
PARTITIONS = 3
_names = itertools.count(1)


class Group(GroupClient):
    """With a topic of its own. Classic members say what they own, by `range`."""

    def __init__(self, wire: WireClient) -> None:
        super().__init__(wire, f"migrating-{next(_names)}")
        self.find()
        self.topic = wire.create_topic(partitions=PARTITIONS)

    def subscription(self, *owned: int) -> list[JoinGroupRequestProtocol]:
        name = self.topic.encode()
        said = (
            b"\0\1"
            + (1).to_bytes(4, "big")
            + len(name).to_bytes(2, "big")
            + name
            + (-1).to_bytes(4, "big", signed=True)
        )
        held = write_assignment(1, {self.topic: frozenset(owned)} if owned else {})[2:-4]
        return [JoinGroupRequestProtocol(name="range", metadata=said + held)]

    def classic(self, member: str = "", *owned: int, instance: str | None = None, **changes: Any) -> Any:
        fields: dict[str, Any] = {"protocols": self.subscription(*owned), "group_instance_id": instance}
        return self.join(member, **{**fields, **changes})

    def first_classic(self, instance: str | None = None) -> str:
        """A stable classic group; its only member has everything."""
        joined = self.classic(instance=instance)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = self.classic(joined.member_id)
        everything = write_assignment(1, {self.topic: frozenset(range(PARTITIONS))})
        synced = self.synced(joined.member_id, joined.generation_id, instance, {joined.member_id: everything})
        assert (joined.generation_id, synced.error_code) == (1, 0)
        return str(joined.member_id)

    def synced(
        self,
        member: str,
        generation: int,
        instance: str | None = None,
        given: dict[str, bytes] | None = None,
        protocol: str = "range",
    ) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            protocol_type="consumer",
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=one, assignment=data) for one, data in (given or {}).items()
            ],
        )
        response: SyncGroupResponse = self.wire.call(Api.SYNC_GROUP, 5, request)
        return response

    def partitions(self, member: str, generation: int, instance: str | None = None) -> list[int]:
        synced = self.synced(member, generation, instance)
        assert synced.error_code == 0
        return sorted(read_assignment(synced.assignment)[0].get(self.topic, ()))

    def consumer(self, member: str, epoch: int = 0, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        if epoch == 0:
            said = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [self.topic], "topic_partitions": []}
            fields = {**said, **fields}
        request = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=member, member_epoch=epoch, **fields)
        response: ConsumerGroupHeartbeatResponse = self.wire.call(Api.CONSUMER_GROUP_HEARTBEAT, 1, request)
        return response

    @property
    def kind(self) -> tuple[str, str]:
        """Type and state."""
        response = self.wire.call(Api.LIST_GROUPS, 5, ListGroupsRequest())
        (found,) = [each for each in response.groups if each.group_id == self.group]
        return found.group_type, found.group_state


@pytest.fixture(scope="module")
def group_with() -> Iterator[Callable[[str], Group]]:
    """By migration policy; each has a broker."""
    brokers: dict[str, Broker] = {}
    with ExitStack() as stack:

        def make(policy: str) -> Group:
            if policy not in brokers:
                settings = {**SETTINGS, "group.consumer.migration.policy": policy}
                brokers[policy] = stack.enter_context(Broker(settings))
            return Group(stack.enter_context(WireClient(brokers[policy].port)))

        yield make


GroupWith = Callable[[str], Group]


def test_up_and_down_with_dynamic_members(group_with: GroupWith) -> None:
    group = group_with("bidirectional")
    old = group.first_classic()
    joined = group.consumer("new")
    assert (joined.error_code, joined.member_epoch) == (0, 2)
    assert joined.assignment is not None
    assert joined.assignment.topic_partitions == [], "nothing is free yet"
    assert group.kind == ("consumer", "Reconciling")

    assert group.heartbeat(old, 2) == ErrorCode.ILLEGAL_GENERATION
    assert group.heartbeat("nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat("new", 1) == ErrorCode.UNKNOWN_MEMBER_ID, "it does not speak the classic protocol"
    assert group.heartbeat(old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.commit(group.topic, {0: 7}, member_id=old, generation_id_or_member_epoch=1) == {0: 0}

    assert group.classic(old, protocol_type="connect").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    again = group.classic(old)  # an eager member: it owns nothing while it joins
    assert (again.error_code, again.generation_id, again.protocol_name) == (0, 2, "range")
    other = [JoinGroupRequestProtocol(name="roundrobin", metadata=group.subscription()[0].metadata)]
    assert group.classic("another", protocols=other).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    given = group.consumer("new", 2).assignment
    assert given is not None
    (held,) = given.topic_partitions
    assert group.kind == ("consumer", "Stable")

    assert group.synced(old, 1).error_code == ErrorCode.ILLEGAL_GENERATION
    assert group.synced(old, 2, protocol="roundrobin").error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sorted([*group.partitions(old, 2), *held.partitions]) == list(range(PARTITIONS))

    assert group.consumer("new", -1).error_code == 0
    assert group.kind == ("classic", "PreparingRebalance")


def test_up_and_down_with_static_members(group_with: GroupWith) -> None:
    group = group_with("bidirectional")
    old = group.first_classic("a")
    assert group.consumer("new", instance_id="b").member_epoch == 2
    assert group.classic(old, instance="a").generation_id == 2
    given = group.consumer("new", 2, instance_id="b").assignment
    assert given is not None
    (held,) = given.topic_partitions
    assert group.kind == ("consumer", "Stable")
    back = group.classic(instance="b")
    assert (back.error_code, back.generation_id, back.protocol_name) == (0, 2, "range")
    assert group.kind == ("classic", "Stable"), "nothing moves, so nobody has to join again"
    assert group.partitions(back.member_id, 2, "b") == sorted(held.partitions)


def test_policy_upgrade(group_with: GroupWith) -> None:
    group = group_with("upgrade")
    group.first_classic()
    assert group.consumer("new").error_code == 0
    assert group.kind == ("consumer", "Reconciling")
    assert group.consumer("new", -1).error_code == 0
    assert group.kind == ("consumer", "Assigning")


def test_policy_downgrade(group_with: GroupWith) -> None:
    group = group_with("downgrade")
    assert group.consumer("new").member_epoch == 2
    old = group.classic(group.classic().member_id)
    assert (old.error_code, old.generation_id) == (0, 3)
    assert group.partitions(old.member_id, 3) == []
    assert group.consumer("new", -1).error_code == 0
    assert group.kind == ("classic", "PreparingRebalance")
    assert group.consumer("new").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_policy_disabled(group_with: GroupWith) -> None:
    group = group_with("disabled")
    group.first_classic()
    assert group.consumer("new").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    group = group_with("disabled")
    assert group.consumer("new", instance_id="i").error_code == 0
    for instance in (None, "another", "i"):
        refused = group.classic(instance=instance)
        assert (refused.error_code, refused.member_id, refused.protocol_name) == (23, "", None)
    assert group.kind == ("consumer", "Stable")
