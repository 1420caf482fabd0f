"""Consumer groups in a shard: beside classic groups, with offsets, and turning from one kind into the other."""

from __future__ import annotations

import pytest
from group_driver import Driver, assignment, subscription
from test_consumer_group import FakeTopics

from penstock.core.group.classic import ClassicGroup
from penstock.core.group.consumer_exchange import (
    ConsumerHeartbeatReply,
    ConsumerHeartbeatRequest,
    ConsumerSettings,
    DescribeConsumerGroupReply,
)
from penstock.core.group.consumer_group import ConsumerGroup, ConsumerState
from penstock.core.group.embedded_protocol import read_assignment
from penstock.core.group.exchange import (
    DeleteGroupReply,
    DeleteOffsetsReply,
    DeleteOffsetsRequest,
    DescribeGroupReply,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    LeavingMember,
    ListGroupsReply,
)
from penstock.core.group.settings import GroupSettings
from penstock.core.group.shard import GroupShard
from penstock.core.group.states import State
from penstock.core.group.story import What
from penstock.model.errors import ErrorCode

GROUP = "g"


def owning(*topics: str, **owned: list[int]) -> bytes:
    """A subscription of version 1, which says what its sender owns."""
    held = assignment(**owned)[2:-4]
    return b"\0\1" + subscription(*topics)[2:] + held


class ConsumerDriver(Driver):
    def __init__(self, settings: ConsumerSettings = ConsumerSettings(assignment_interval_ms=0)) -> None:  # noqa: B008
        self.topics = FakeTopics(t=4)
        self.consumer_settings = settings
        super().__init__(GroupSettings(initial_rebalance_delay_ms=0))
        self.shard = self.new_shard()
        self.take(self.shard.loaded(self.now_ms))

    def new_shard(self) -> GroupShard:
        return GroupShard(self.settings, self.topics, lambda group_id: self.consumer_settings)

    def restart(self) -> None:
        """kill -9, and a log of which compaction has left the last record of each key."""
        self.shard = self.new_shard()
        last = {key: (position, value) for position, (key, value) in enumerate(self.log)}
        for key, (_, value) in sorted(last.items(), key=lambda item: item[1][0]):
            record = self.shard.decode(key, value)
            assert record is not None
            self.shard.replay(record)
        self.take(self.shard.loaded(self.now_ms))

    def beat(self, member: str, epoch: int, **fields: object) -> ConsumerHeartbeatReply:
        token = self.token()
        request = ConsumerHeartbeatRequest(GROUP, member, epoch, **fields)  # type: ignore[arg-type]
        self.take(self.shard.consumer_heartbeat(request, token, self.now_ms))
        reply = self.replies[token]
        assert isinstance(reply, ConsumerHeartbeatReply)
        return reply

    def enter(self, member: str, *topics: str, **fields: object) -> ConsumerHeartbeatReply:
        return self.beat(member, 0, rebalance_timeout_ms=60_000, topic_names=topics or ("t",), owned={}, **fields)

    @property
    def group(self) -> ConsumerGroup:
        group = self.shard.groups[GROUP]
        assert isinstance(group, ConsumerGroup)
        return group

    def partitions(self, reply: ConsumerHeartbeatReply) -> list[int]:
        assert reply.assignment is not None
        return sorted(reply.assignment.get(self.topics.id_of("t"), ()))

    def owned(self, *partitions: int) -> dict[bytes, frozenset[int]]:
        return {self.topics.id_of("t"): frozenset(partitions)} if partitions else {}

    def synced_partitions(self, member: str, generation: int) -> list[int]:
        reply = self.synced(self.sync(member, generation))
        assert reply.error is ErrorCode.NONE
        return sorted(read_assignment(reply.assignment)[0].get("t", ()))

    def story_of(self) -> list[What]:
        return [event.what for event in self.shard.story(GROUP)]


@pytest.fixture
def driver() -> ConsumerDriver:
    return ConsumerDriver()


def test_a_group_is_listed_described_and_deleted(driver: ConsumerDriver) -> None:
    driver.enter("m1")
    driver.take(driver.shard.list_groups((), (), 100, 0))
    listed = driver.replies[100]
    assert isinstance(listed, ListGroupsReply)
    assert listed.groups == ((GROUP, "consumer", "Stable", "consumer"),)
    driver.take(driver.shard.list_groups((), ("classic",), 101, 0))
    assert driver.replies[101] == ListGroupsReply(())

    driver.take(driver.shard.describe_consumer_group(GROUP, 102, 0))
    described = driver.replies[102]
    assert isinstance(described, DescribeConsumerGroupReply)
    assert (described.state, described.epoch, described.assignor) == ("Stable", 2, "uniform")
    assert described.members[0].assigned == driver.owned(0, 1, 2, 3)
    driver.take(driver.shard.describe_group(GROUP, 103, 0))
    dead = driver.replies[103]
    assert isinstance(dead, DescribeGroupReply)
    assert dead.error is ErrorCode.GROUP_ID_NOT_FOUND

    driver.take(driver.shard.delete_group(GROUP, 104, 0))
    assert driver.replies[104] == DeleteGroupReply(ErrorCode.NON_EMPTY_GROUP)
    driver.beat("m1", -1)
    driver.take(driver.shard.delete_group(GROUP, 105, 0))
    assert driver.replies[105] == DeleteGroupReply(ErrorCode.NONE)
    assert GROUP not in driver.shard.groups
    driver.restart()
    assert GROUP not in driver.shard.groups
    assert driver.beat("m1", 1).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.beat("m1", -1).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_are_committed_and_fetched_with_the_current_epoch(driver: ConsumerDriver) -> None:
    epoch = driver.enter("m1").member_epoch
    assert driver.commit(7, "m1", epoch) is ErrorCode.NONE
    assert driver.commit(8, "m1", epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit(8, "m1", epoch, knows_group_not_found=False) is ErrorCode.UNSUPPORTED_VERSION
    assert driver.commit(8, "m2", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit(8) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.committed() == 7
    fetches = [
        ("m1", epoch, ErrorCode.NONE),
        ("m1", epoch + 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("m2", epoch, ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    for member, claimed, code in fetches:
        token = driver.token()
        request = FetchOffsetsRequest(GROUP, None, member, claimed)
        driver.take(driver.shard.fetch_offsets(request, token, driver.now_ms))
        reply = driver.replies[token]
        assert isinstance(reply, FetchOffsetsReply)
        assert reply.error is code
    driver.take(driver.shard.delete_offsets(DeleteOffsetsRequest(GROUP, (("t", 0),)), 100, driver.now_ms))
    assert driver.replies[100] == DeleteOffsetsReply(ErrorCode.NONE, (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,))
    driver.beat("m1", -1)
    assert driver.commit(9) is ErrorCode.NONE, "nobody is there to disturb"


def test_a_commit_with_an_earlier_epoch_counts_for_what_the_member_had_then(driver: ConsumerDriver) -> None:
    first = driver.enter("m1").member_epoch
    driver.enter("m2")
    kept = driver.partitions(driver.beat("m1", first, owned=driver.owned(0, 1, 2, 3)))
    given = next(index for index in range(4) if index not in kept)
    assert driver.commit(5, "m1", first, partition=given) is ErrorCode.NONE, "it still has that to give up"
    second = driver.beat("m1", first, owned=driver.owned(*kept)).member_epoch
    assert second > first
    for _ in range(2):
        assert driver.commit(7, "m1", first, partition=kept[0]) is ErrorCode.NONE
        assert driver.commit(7, "m1", first, partition=given) is ErrorCode.STALE_MEMBER_EPOCH
        assert driver.commit(7, "m1", first, topic="other") is ErrorCode.STALE_MEMBER_EPOCH
        assert driver.commit(7, "m1", first - 1, partition=kept[0]) is ErrorCode.STALE_MEMBER_EPOCH
        assert driver.commit(7, "m1", second + 1, partition=kept[0]) is ErrorCode.STALE_MEMBER_EPOCH
        driver.restart()
    # Once it gets the partition back, what it read of it before may not be committed any more.
    driver.beat("m2", -1)
    driver.wait(2_000)
    third = driver.beat("m1", second, owned=driver.owned(*kept))
    assert driver.partitions(third) == [0, 1, 2, 3]
    assert driver.commit(7, "m1", first, partition=given) is ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit(7, "m1", second, partition=kept[0]) is ErrorCode.NONE


def test_offsets_of_a_simple_consumer_do_not_stand_in_the_way_and_survive(driver: ConsumerDriver) -> None:
    driver.commit(5)
    assert isinstance(driver.shard.groups[GROUP], ClassicGroup)
    assert driver.enter("m1").error is ErrorCode.NONE
    driver.restart()
    assert driver.group.state is ConsumerState.STABLE
    assert driver.committed() == 5


def test_members_live_through_a_restart_and_are_given_a_whole_session(driver: ConsumerDriver) -> None:
    epoch = driver.enter("m1").member_epoch
    driver.wait(40_000)
    driver.restart()
    assert driver.beat("m1", epoch).error is ErrorCode.NONE
    driver.wait(44_000)
    assert "m1" in driver.group.members
    driver.wait(2_000)
    assert driver.group.state is ConsumerState.EMPTY
    assert driver.story_of() == [What.LOADED, What.TIMED_OUT, What.EMPTY]


def test_expired_offsets_take_the_empty_group_with_them(driver: ConsumerDriver) -> None:
    epoch = driver.enter("m1").member_epoch
    driver.commit(3, "m1", epoch)
    driver.beat("m1", -1)
    driver.wait(7 * 24 * 3_600_000 + 600_000)
    assert driver.shard.groups == {}


def test_an_empty_classic_group_and_an_empty_consumer_group_give_way(driver: ConsumerDriver) -> None:
    member, _ = driver.new_member()
    driver.leave(member)
    driver.wait(1)
    assert driver.state is State.EMPTY
    assert driver.enter("m1").error is ErrorCode.NONE
    driver.restart()
    assert list(driver.group.members) == ["m1"]
    driver.beat("m1", -1)
    member, token = driver.new_member()
    assert driver.joined(token).error is ErrorCode.NONE
    driver.restart()
    assert not isinstance(driver.shard.groups.get(GROUP), ConsumerGroup)


def upgraded(driver: ConsumerDriver) -> tuple[list[str], int]:
    """A classic group of two with a partition each, which a consumer then joins."""
    members, generation = driver.stable(2)
    reply = driver.enter("new")
    assert reply.error is ErrorCode.NONE
    assert reply.member_epoch == generation + 1
    return members, generation


def test_a_consumer_turns_a_classic_group_into_its_own_kind_and_nobody_loses_what_it_reads(
    driver: ConsumerDriver,
) -> None:
    members, generation = upgraded(driver)
    group = driver.group
    assert sorted(group.members) == sorted([*members, "new"])
    for index, member in enumerate(members):
        assert group.current[member].assigned == driver.owned(index), "as before"
        assert driver.commit(index, member, generation) is ErrorCode.NONE, "its generation still holds"
        assert driver.heartbeat(member, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert What.UPGRADED in driver.story_of()

    # Each joins with what it owns, learns its part at once, and nobody waits for the others.
    taken: list[int] = []
    for index, member in enumerate(members):
        reply = driver.joined(driver.join(member, protocols=(("range", owning("t", t=[index])),)))
        assert (reply.error, reply.generation, reply.leader) == (ErrorCode.NONE, generation + 1, "")
        taken += driver.synced_partitions(member, reply.generation)
        assert driver.heartbeat(member, reply.generation) is ErrorCode.NONE
    given = driver.partitions(driver.beat("new", generation + 1, rebalance_timeout_ms=1, topic_names=("t",), owned={}))
    assert sorted(taken + given) == [0, 1, 2, 3]
    assert group.state is ConsumerState.STABLE
    driver.restart()
    assert driver.group.current == group.current
    assert driver.group.members == group.members


def test_a_classic_member_gives_up_a_partition_in_two_rounds(driver: ConsumerDriver) -> None:
    driver.topics.set("t", 2)
    members, generation = driver.stable(1)
    member = members[0]
    # Its leader gave it partition 0 only; let it have both before the other comes.
    held = driver.owned(0, 1)
    driver.enter("new")
    driver.beat("new", -1)
    driver.wait(0)
    assert driver.state is State.PREPARING, "alone again it is a classic group again"
    token = driver.join(member)
    generation = driver.joined(token).generation
    driver.sync(member, generation, {member: assignment(t=[0, 1])})

    driver.enter("new")
    assert driver.group.current[member].assigned == held
    both = (("range", owning("t", t=[0, 1])),)
    first = driver.joined(driver.join(member, protocols=both)).generation
    keeps = driver.synced_partitions(member, first)
    assert len(keeps) == 1, "a smaller assignment at the old generation"
    assert driver.heartbeat(member, first) is ErrorCode.REBALANCE_IN_PROGRESS
    one = (("range", owning("t", t=keeps)),)
    second = driver.joined(driver.join(member, protocols=one)).generation
    assert second > first
    assert driver.synced_partitions(member, second) == keeps
    new_epoch = driver.group.current["new"].epoch
    given = driver.beat("new", new_epoch)
    assert sorted(driver.partitions(given) + keeps) == [0, 1]


def test_when_the_last_consumer_goes_the_group_is_classic_again_and_rebalances(driver: ConsumerDriver) -> None:
    members, _ = upgraded(driver)
    epoch = driver.group.epoch
    driver.beat("new", -1)
    group = driver.shard.groups[GROUP]
    assert isinstance(group, ClassicGroup)
    assert (sorted(group.members), group.generation) == (sorted(members), epoch)
    assert driver.state is State.PREPARING, "at once"
    assert driver.form(*members) == epoch + 1
    assert driver.state is State.STABLE
    assert What.DOWNGRADED in driver.story_of()
    driver.restart()
    assert driver.state is State.STABLE
    assert [driver.heartbeat(member, epoch + 1) for member in members] == [ErrorCode.NONE] * 2


def test_a_silent_consumer_turns_the_group_back_too(driver: ConsumerDriver) -> None:
    members, _ = upgraded(driver)
    for _ in range(50):
        driver.wait(1_000)
        group = driver.shard.groups[GROUP]
        if isinstance(group, ClassicGroup):
            break
        for index, member in enumerate(members):
            if driver.heartbeat(member, group.current[member].epoch) is ErrorCode.REBALANCE_IN_PROGRESS:
                driver.join(member, protocols=(("range", owning("t", t=[index])),))
                driver.sync(member, driver.group.current[member].epoch)
    assert isinstance(driver.shard.groups[GROUP], ClassicGroup)


def test_members_are_refused_as_they_would_be_in_a_classic_group(driver: ConsumerDriver) -> None:
    members, generation = upgraded(driver)
    member = members[0]
    assert driver.heartbeat("nobody", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat("new", generation + 1) is ErrorCode.UNKNOWN_MEMBER_ID, "it does not speak classic"
    assert driver.heartbeat(member, generation + 5) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit(1, member, generation + 5) is ErrorCode.ILLEGAL_GENERATION
    assert driver.synced(driver.sync(member, generation)).error is ErrorCode.REBALANCE_IN_PROGRESS
    other = (("sticky", subscription("t")),)
    assert driver.joined(driver.join(protocols=other)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.joined(driver.join(protocol_type="connect")).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    broken = (("range", b"\0"),)
    assert driver.joined(driver.join(member, protocols=broken)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    errors = driver.leave("nobody", LeavingMember("", "nobody")).errors
    assert errors == (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_classic_member_that_does_not_come_back_in_time_is_removed(driver: ConsumerDriver) -> None:
    members, generation = upgraded(driver)
    stays, goes = members
    for second in range(70):
        epoch = driver.group.current[stays].epoch
        if driver.heartbeat(stays, epoch) is ErrorCode.REBALANCE_IN_PROGRESS:
            joined = driver.joined(driver.join(stays, protocols=(("range", owning("t", t=[0])),)))
            driver.sync(stays, joined.generation)
        driver.beat("new", driver.group.current["new"].epoch)
        if goes in driver.group.members:
            assert driver.heartbeat(goes, generation) is ErrorCode.REBALANCE_IN_PROGRESS
            assert second <= 60
        driver.wait(1_000)
    assert goes not in driver.group.members
    assert What.NOT_REJOINED in driver.story_of()


def test_a_new_classic_member_joins_a_consumer_group(driver: ConsumerDriver) -> None:
    driver.enter("m1")
    reply = driver.joined(driver.join())
    assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
    joined = driver.joined(driver.join(reply.member_id))
    assert (joined.error, joined.protocol_name) == (ErrorCode.NONE, "range")
    assert driver.group.members[reply.member_id].classic is not None
    driver.beat("m1", 2)
    epoch = driver.beat("m1", 2, owned=driver.owned(0, 1)).member_epoch
    assert epoch == driver.group.epoch
    assert driver.heartbeat(reply.member_id, joined.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = driver.joined(driver.join(reply.member_id))
    assert driver.synced_partitions(reply.member_id, joined.generation) == [2, 3]
    assert driver.leave(reply.member_id).errors == (ErrorCode.NONE,)
    assert list(driver.group.members) == ["m1"]


def test_a_group_that_cannot_be_read_or_may_not_move_stays_classic(driver: ConsumerDriver) -> None:
    members, generation = driver.stable(1)
    driver.consumer_settings = ConsumerSettings(can_upgrade=False)
    refused = driver.enter("new")
    assert (refused.error, "upgrade is disabled" in str(refused.message)) == (ErrorCode.GROUP_ID_NOT_FOUND, True)
    driver.consumer_settings = ConsumerSettings(max_size=0)
    assert driver.enter("new").error is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.heartbeat(members[0], generation) is ErrorCode.NONE


def test_a_group_with_an_assignor_of_its_own_stays_classic(driver: ConsumerDriver) -> None:
    custom = assignment(t=[0])[:-4] + b"\0\0\0\1x"
    member, token = driver.new_member(protocols=(("my-own", subscription("t")),))
    driver.sync(member, driver.joined(token).generation, {member: custom})
    refused = driver.enter("new")
    assert refused.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert "custom assignor" in str(refused.message)
    assert driver.heartbeat(member, 1) is ErrorCode.NONE


def test_what_stock_assignors_put_beside_an_assignment_is_no_hindrance(driver: ConsumerDriver) -> None:
    sticky = assignment(t=[0])[:-4] + b"\0\0\0\1x"
    member, token = driver.new_member(protocols=(("cooperative-sticky", subscription("t")),))
    driver.sync(member, driver.joined(token).generation, {member: sticky})
    assert driver.enter("new").error is ErrorCode.NONE
    assert driver.group.current[member].assigned == driver.owned(0)


def test_members_that_wait_in_a_classic_group_are_sent_to_join_again(driver: ConsumerDriver) -> None:
    first, token = driver.new_member()
    generation = driver.joined(token).generation
    second, waiting = driver.new_member()
    assert waiting not in driver.replies
    driver.enter("new")
    assert driver.joined(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert sorted(driver.group.members) == sorted([first, second, "new"])
    assert generation == 1


def test_an_id_that_no_record_has_room_for_leaves_a_classic_group_alone(driver: ConsumerDriver) -> None:
    (member,), generation = driver.stable(1)
    held = driver.hold_heartbeat(member, generation)
    assert driver.enter("m" * 32_768).error is ErrorCode.INVALID_REQUEST
    assert held not in driver.replies
    assert driver.state is State.STABLE
    # A classic member's id is checked too: in a consumer group it becomes part of a key.
    driver.enter("k1")
    assert driver.joined(driver.join("m" * 32_768)).error is ErrorCode.INVALID_REQUEST


def test_a_refused_classic_join_leaves_an_empty_consumer_group_and_its_offsets(driver: ConsumerDriver) -> None:
    epoch = driver.enter("k1").member_epoch
    driver.commit(7, "k1", epoch)
    driver.beat("k1", -1)
    log = len(driver.log)
    assert driver.joined(driver.join("stale")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(driver.log) == log
    assert driver.group.is_empty
    assert driver.committed() == 7


def test_offsets_keep_a_group_whatever_erased_its_kind(driver: ConsumerDriver) -> None:
    (member,), generation = driver.stable(1)
    driver.commit(7, member, generation)
    driver.enter("k1")  # erases the classic group
    driver.beat("k1", -1)
    driver.leave(member)
    assert driver.joined(driver.join()).error is ErrorCode.MEMBER_ID_REQUIRED  # erases the consumer group
    for _ in range(2):
        driver.restart()
        assert isinstance(driver.shard.groups[GROUP], ClassicGroup)
        assert driver.committed() == 7
    driver.shard = driver.new_shard()
    for key, value in driver.log:  # as if nothing had been compacted
        record = driver.shard.decode(key, value)
        assert record is not None
        driver.shard.replay(record)
    assert isinstance(driver.shard.groups[GROUP], ClassicGroup)
    assert driver.committed() == 7
    driver.take(driver.shard.delete_group(GROUP, 100, driver.now_ms))
    assert driver.replies[100] == DeleteGroupReply(ErrorCode.NONE)
    assert GROUP not in driver.shard.groups
    assert driver.committed() is None


def test_a_static_member_moves_from_the_classic_protocol_without_having_left(driver: ConsumerDriver) -> None:
    joined = driver.joined(driver.join(instance_id="i1"))
    driver.sync(joined.member_id, joined.generation, {joined.member_id: assignment(t=[0, 1, 2, 3])}, instance_id="i1")
    held = driver.hold_heartbeat(joined.member_id, joined.generation)
    reply = driver.enter("k1", instance_id="i1")
    assert reply.error is ErrorCode.NONE
    assert driver.partitions(reply) == [0, 1, 2, 3]
    assert held in driver.replies
    assert list(driver.group.members) == ["k1"]
    assert driver.heartbeat(joined.member_id, joined.generation, "i1") is ErrorCode.FENCED_INSTANCE_ID
    # Between two members of the new protocol the first must have left.
    assert driver.enter("k2", instance_id="i1").error is ErrorCode.UNRELEASED_INSTANCE_ID
    driver.restart()
    assert list(driver.group.members) == ["k1"]


def test_a_refused_consumer_leaves_a_classic_group_undisturbed(driver: ConsumerDriver) -> None:
    members, generation = driver.stable(2)
    held = [driver.hold_heartbeat(member, generation) for member in members]
    story = driver.story_of()
    timers = len(driver.shard.timers)
    reply = driver.beat("k1", 0, rebalance_timeout_ms=60_000, topic_names=(), topic_regex="([", owned={})
    assert reply.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not [token for token in held if token in driver.replies]
    assert driver.state is State.STABLE
    assert (driver.story_of(), len(driver.shard.timers)) == (story, timers)
    driver.consumer_settings = driver.consumer_settings._replace(max_size=2)
    assert driver.enter("k1").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not [token for token in held if token in driver.replies]


@pytest.mark.parametrize("protocol_type", ["consumer", "connect"])
def test_an_empty_classic_group_gives_way_whatever_it_was(protocol_type: str) -> None:
    driver = ConsumerDriver(ConsumerSettings(can_upgrade=False, can_downgrade=False))
    member, token = driver.new_member(protocol_type=protocol_type)
    generation = driver.joined(token).generation
    driver.sync(member, generation, {member: b""})
    driver.commit(5, member, generation)
    assert driver.enter("k1").error is ErrorCode.GROUP_ID_NOT_FOUND
    driver.leave(member)
    assert driver.enter("k1").error is ErrorCode.NONE
    for _ in range(2):
        assert list(driver.group.members) == ["k1"]
        assert driver.committed() == 5
        driver.restart()


def test_no_deadline_outlives_a_downgrade(driver: ConsumerDriver) -> None:
    (member,), generation = driver.stable(1)
    driver.enter("k1")
    assert driver.heartbeat(member, generation) is ErrorCode.REBALANCE_IN_PROGRESS  # it shall join again in time
    driver.beat("k1", -1)
    assert isinstance(driver.shard.groups[GROUP], ClassicGroup)
    kinds = ("consumer-session", "consumer-revocation", "consumer-rejoin", "consumer-sync")
    assert not [kind for kind in kinds if (kind, GROUP, member) in driver.shard.timers]


def test_downgrade_can_be_switched_off(driver: ConsumerDriver) -> None:
    members, _ = upgraded(driver)
    driver.consumer_settings = ConsumerSettings(can_downgrade=False)
    driver.beat("new", -1)
    assert sorted(driver.group.members) == sorted(members)


def test_a_classic_member_may_not_join_a_consumer_group_where_migration_is_disabled() -> None:
    driver = ConsumerDriver(ConsumerSettings(can_upgrade=False, can_downgrade=False))
    driver.enter("m1", instance_id="i")
    for fields in ({}, {"instance_id": "another"}, {"instance_id": "i"}):
        refused = driver.joined(driver.join(**fields))
        assert (refused.error, refused.member_id) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    assert list(driver.group.members) == ["m1"]
    driver.beat("m1", -1, instance_id="i")
    assert driver.joined(driver.join()).error is ErrorCode.MEMBER_ID_REQUIRED, "an empty group gives way"


@pytest.mark.parametrize("upgrades", [True, False])
def test_a_classic_member_joins_where_one_way_of_migration_is_allowed(upgrades: bool) -> None:
    driver = ConsumerDriver(ConsumerSettings(can_upgrade=upgrades, can_downgrade=not upgrades))
    driver.enter("m1")
    assert driver.joined(driver.join()).error is ErrorCode.MEMBER_ID_REQUIRED


def test_a_classic_member_syncs_before_the_next_target_is_due_and_then_rejoins_for_it() -> None:
    driver = ConsumerDriver(ConsumerSettings(assignment_interval_ms=1_000))
    driver.enter("m1")
    member = driver.joined(driver.join()).member_id
    generation = driver.joined(driver.join(member)).generation
    assert (generation, driver.group.epoch) == (2, 3), "the target is still that of the first member"
    assert driver.synced_partitions(member, generation) == []
    assert driver.heartbeat(member, generation) is ErrorCode.NONE
    driver.wait(1_000)
    assert driver.heartbeat(member, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.joined(driver.join(member)).generation == 3


def mixed_static_group(driver: ConsumerDriver) -> tuple[str, str]:
    """Instance a with the classic protocol, b with the new one; two partitions each, settled."""
    token = driver.join(instance_id="a")
    driver.wait(1)
    joined = driver.joined(token)
    driver.sync(joined.member_id, joined.generation, {joined.member_id: assignment(t=[0, 1, 2, 3])}, instance_id="a")
    driver.enter("b1", instance_id="b")
    a = joined.member_id
    for _ in range(2):
        assert driver.heartbeat(a, driver.group.current[a].epoch, "a") is ErrorCode.REBALANCE_IN_PROGRESS
        held = sorted(driver.group.target[a][driver.topics.id_of("t")])
        driver.join(a, instance_id="a", protocols=(("range", owning("t", t=held)),))
        driver.sync(a, driver.group.current[a].epoch, instance_id="a")
        if driver.group.is_reconciled(a):
            break
    driver.beat("b1", driver.group.current["b1"].epoch, instance_id="b")
    return a, "b1"


def test_the_last_consumer_that_comes_back_with_the_classic_protocol_finds_what_it_had(driver: ConsumerDriver) -> None:
    a, b = mixed_static_group(driver)
    assert driver.group.state is ConsumerState.STABLE
    epoch = driver.group.epoch
    had = driver.group.current[b].assigned[driver.topics.id_of("t")]
    joined = driver.joined(driver.join(instance_id="b"))
    assert (joined.error, joined.generation, joined.protocol_name) == (ErrorCode.NONE, epoch, "range")
    driver.wait(1)
    assert driver.state is State.STABLE, "nobody has to join again"
    assert driver.synced_partitions(joined.member_id, epoch) == sorted(had)
    assert driver.heartbeat(a, epoch, "a") is ErrorCode.NONE
    driver.wait(46_000)
    assert driver.state is State.EMPTY, "their sessions are watched"


def test_it_rebalances_if_somebody_has_not_reached_the_target(driver: ConsumerDriver) -> None:
    a, b = mixed_static_group(driver)
    driver.topics.set("t", 6)
    driver.beat(b, driver.group.current[b].epoch, instance_id="b")
    assert driver.group.state is ConsumerState.RECONCILING
    joined = driver.joined(driver.join(instance_id="b"))
    assert joined.error is ErrorCode.NONE
    driver.wait(1)
    assert driver.state is State.PREPARING
    assert driver.heartbeat(a, 99, "a") is ErrorCode.ILLEGAL_GENERATION
