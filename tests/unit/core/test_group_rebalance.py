"""The classic protocol on a shard, one rule of Kafka's at a time."""

from __future__ import annotations

import pytest
from group_driver import GROUP, NO_DELAY, RANGE, Driver, assignment, subscription

from penstock.core.group.exchange import HeartbeatReply, JoinedMember, LeavingMember
from penstock.core.group.records import GroupMetadata, StoredMember
from penstock.core.group.settings import GroupSettings
from penstock.core.group.states import State
from penstock.core.group.story import What
from penstock.model.errors import ErrorCode

STATIC = {"instance_id": "i1"}


def test_a_new_member_is_given_an_id_first() -> None:
    driver = Driver()
    reply = driver.joined(driver.join())
    assert (reply.error, reply.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "c-1")
    token = driver.join("c-1")
    reply = driver.joined(token)
    assert reply == reply._replace(
        error=ErrorCode.NONE,
        member_id="c-1",
        generation=1,
        protocol_type="consumer",
        protocol_name="range",
        leader="c-1",
        members=(JoinedMember("c-1", None, subscription("t")),),
    )


def test_old_versions_are_taken_in_at_once() -> None:
    driver = Driver()
    assert driver.joined(driver.join(requires_known_member_id=False)).generation == 1


def test_an_id_that_is_not_used_in_time_is_forgotten() -> None:
    driver = Driver()
    driver.join()
    driver.wait(10_001)
    assert driver.joined(driver.join("c-1")).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_first_rebalance_waits_for_more_members() -> None:
    driver = Driver(GroupSettings())
    first, token = driver.new_member()
    driver.wait(2_000)
    second, other = driver.new_member()
    driver.wait(1_000)  # the delay of the first: somebody came meanwhile, so it is extended
    assert token not in driver.replies
    driver.wait(3_000)
    assert driver.joined(token).generation == driver.joined(other).generation == 1
    assert driver.joined(token).leader == first
    assert [member.member_id for member in driver.joined(token).members] == [first, second]
    assert driver.joined(other).members == ()


def test_members_that_keep_coming_delay_at_most_the_rebalance_timeout() -> None:
    driver = Driver(GroupSettings())
    _, token = driver.new_member(rebalance_timeout_ms=10_000)
    started = driver.now_ms
    while token not in driver.replies:
        driver.new_member(rebalance_timeout_ms=10_000)
        driver.wait(500)
    assert driver.now_ms - started <= 13_000


def test_sync_gives_everybody_his_part_and_is_stored() -> None:
    driver = Driver()
    members, generation = driver.stable(3)
    assert driver.state is State.STABLE
    assert len(driver.log) == 1
    # Asked again it is told again.
    assert driver.synced(driver.sync(members[1], generation)).assignment == assignment(t=[1])


def test_followers_wait_for_the_leader() -> None:
    driver = Driver()
    first, _ = driver.new_member()
    second, token = driver.new_member()
    again = driver.join(first)
    generation = driver.joined(again).generation
    assert driver.joined(token).leader == first
    waiting = driver.sync(second, generation)
    assert waiting not in driver.replies
    driver.sync(first, generation, {second: b"two"})
    assert driver.synced(waiting).assignment == b"two"


def test_a_newcomer_starts_a_rebalance_that_members_hear_of() -> None:
    driver = Driver()
    members, generation = driver.stable(2)
    newcomer, token = driver.new_member()
    assert driver.state is State.PREPARING
    assert [driver.heartbeat(member, generation) for member in members] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    assert driver.synced(driver.sync(members[0], generation)).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert token not in driver.replies
    generation_after = driver.settle({**{member: driver.join(member) for member in members}, newcomer: token})
    assert generation_after == generation + 1
    assert driver.heartbeat(newcomer, generation_after) is ErrorCode.NONE


def test_a_rebalance_waits_until_the_coming_and_going_is_over() -> None:
    driver = Driver(NO_DELAY._replace(settle_ms=250))
    first, token = driver.new_member()
    assert token not in driver.replies
    driver.wait(100)  # a group without members and without a delay
    driver.settle({first: token})
    second, joined = driver.new_member()
    again = driver.join(first)
    driver.wait(200)
    third, also_joined = driver.new_member()  # the quiet begins anew
    driver.wait(249)
    assert not {joined, again, also_joined} & set(driver.replies)
    driver.wait(1)
    assert driver.settle({first: again, second: joined, third: also_joined}) == 2
    # Those who only ask for a new assignment do not wait.
    tokens = {first: driver.join(first), second: driver.join(second), third: driver.join(third)}
    assert driver.settle(tokens) == 3


def test_endless_coming_and_going_is_not_waited_for() -> None:
    driver = Driver(NO_DELAY._replace(settle_ms=250))
    first, token = driver.new_member()
    driver.wait(100)
    driver.settle({first: token})
    driver.new_member()
    again = driver.join(first)
    for _ in range(9):
        driver.wait(110)
        assert again not in driver.replies
        driver.new_member()
    driver.wait(10)
    assert driver.joined(again).generation == 2


def test_somebody_who_was_given_an_id_is_waited_for_while_settling() -> None:
    driver = Driver(NO_DELAY._replace(settle_ms=250))
    first, token = driver.new_member()
    driver.wait(100)
    driver.settle({first: token})
    driver.new_member()
    again = driver.join(first)
    third = driver.joined(driver.join()).member_id
    driver.wait(5_000)
    assert again not in driver.replies
    driver.join(third)
    assert driver.joined(again).generation == 2


def test_members_that_come_together_to_an_empty_group_are_one_generation() -> None:
    driver = Driver(NO_DELAY._replace(settle_ms=250))
    driver.join()  # given an id, and gone: not waited for
    first, token = driver.new_member()
    driver.wait(200)
    second, other = driver.new_member()
    driver.wait(249)
    assert not {token, other} & set(driver.replies)
    driver.wait(1)
    assert driver.settle({first: token, second: other}) == 1


def test_members_that_leave_together_are_one_rebalance_after_a_shorter_quiet() -> None:
    driver = Driver(NO_DELAY._replace(settle_ms=250))
    members = [driver.new_member() for _ in range(4)]
    driver.wait(250)
    driver.settle(dict(members))
    driver.wait(1_000)
    first, second, third, fourth = (member for member, _ in members)
    driver.leave(third)
    tokens = {first: driver.join(first), second: driver.join(second)}
    driver.wait(60)
    driver.leave(fourth)  # the quiet begins anew
    driver.wait(99)
    assert not set(tokens.values()) & set(driver.replies)
    driver.wait(1)
    assert driver.settle(tokens) == 2


def test_the_last_one_to_leave_is_not_waited_for() -> None:
    driver = Driver(NO_DELAY._replace(settle_ms=250))
    first, token = driver.new_member()
    driver.wait(100)
    driver.settle({first: token})
    driver.leave(first)
    assert driver.state is State.EMPTY


def test_a_rebalance_tells_those_who_wait_for_their_assignment() -> None:
    driver = Driver()
    first, _ = driver.new_member()
    second, _ = driver.new_member()
    generation = driver.joined(driver.join(first)).generation
    waiting = driver.sync(second, generation)
    driver.new_member()
    assert driver.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_who_does_not_rejoin_in_time_is_out() -> None:
    driver = Driver()
    (first, second), generation = driver.stable(2)
    newcomer, token = driver.new_member(rebalance_timeout_ms=5_000)
    again = driver.join(first)
    driver.shard.groups[GROUP].members[second].rebalance_timeout_ms = 60_000
    for _ in range(12):  # the second only sends heartbeats
        driver.heartbeat(second, generation)
        driver.wait(5_001)
    assert driver.joined(again).generation == generation + 1
    assert {member.member_id for member in driver.joined(again).members} == {first, newcomer}
    assert driver.heartbeat(second, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(token).error is ErrorCode.NONE


def test_a_silent_member_times_out() -> None:
    driver = Driver()
    (first, second), generation = driver.stable(2)
    driver.wait(6_000)
    driver.heartbeat(first, generation)
    driver.wait(4_001)
    assert driver.state is State.PREPARING
    assert driver.heartbeat(second, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.form(first) == generation + 1


def test_commits_count_as_heartbeats() -> None:
    driver = Driver()
    (member,), generation = driver.stable(1)
    for offset in range(5):
        driver.wait(9_000)
        assert driver.commit(offset, member, generation) is ErrorCode.NONE
    assert driver.state is State.STABLE


def test_a_heartbeat_that_may_wait_hears_of_a_rebalance_when_it_begins() -> None:
    driver = Driver()
    (first, second), generation = driver.stable(2)
    held = driver.hold_heartbeat(first, generation)
    assert held not in driver.replies
    driver.new_member()
    assert driver.replies[held] == HeartbeatReply(ErrorCode.REBALANCE_IN_PROGRESS)
    # In a rebalance there is something to tell already.
    assert driver.replies[driver.hold_heartbeat(second, generation)] == HeartbeatReply(ErrorCode.REBALANCE_IN_PROGRESS)


def test_a_member_that_asks_for_its_assignment_is_alive() -> None:
    driver = Driver()
    members, generation = driver.stable(2)
    driver.restart()  # as another coordinator finds it: sessions begin when the log is loaded
    driver.wait(9_000)
    for member in members:
        assert driver.synced(driver.sync(member, generation)).error is ErrorCode.NONE
    driver.wait(9_000)
    assert [driver.heartbeat(member, generation) for member in members] == [ErrorCode.NONE] * 2


def test_a_held_heartbeat_is_answered_in_time_and_a_silent_member_gets_no_longer_session() -> None:
    driver = Driver()
    (member,), generation = driver.stable(1)
    for _ in range(10):
        held = driver.hold_heartbeat(member, generation)
        driver.wait(2_999)
        assert held not in driver.replies
        driver.wait(1)
        assert driver.replies[held] == HeartbeatReply(ErrorCode.NONE)
    assert driver.state is State.STABLE
    driver.wait(6_999)
    assert driver.state is State.STABLE
    driver.wait(1)
    assert driver.state is State.EMPTY, "ten seconds after the last heartbeat came"


def test_a_held_heartbeat_makes_way() -> None:
    driver = Driver()
    (first, second), generation = driver.stable(2)
    held = driver.hold_heartbeat(first, generation)
    driver.take(driver.shard.release_heartbeat(GROUP, first, driver.now_ms))
    assert driver.replies[held] == HeartbeatReply(ErrorCode.NONE)
    # Another one, or the end of the member, does not leave it waiting either.
    held, other = driver.hold_heartbeat(first, generation), driver.hold_heartbeat(second, generation)
    driver.heartbeat(first, generation)
    assert driver.replies[held] == HeartbeatReply(ErrorCode.NONE)
    driver.leave(second)
    assert driver.replies[other] == HeartbeatReply(ErrorCode.UNKNOWN_MEMBER_ID)


def test_heartbeats_are_held_for_a_third_of_a_short_session_or_not_at_all() -> None:
    driver = Driver()
    member, token = driver.new_member(session_timeout_ms=6_000)
    driver.settle({member: token})
    held = driver.hold_heartbeat(member, 1)
    driver.wait(2_000)
    assert held in driver.replies
    driver.shard.configure(NO_DELAY._replace(heartbeat_hold_ms=0))
    assert driver.hold_heartbeat(member, 1) in driver.replies


def test_who_never_asks_for_his_assignment_is_removed() -> None:
    driver = Driver()
    first, _ = driver.new_member(session_timeout_ms=600_000)
    second, _ = driver.new_member(session_timeout_ms=600_000)
    generation = driver.joined(driver.join(first, session_timeout_ms=600_000)).generation
    driver.sync(first, generation, {})
    assert driver.state is State.STABLE
    driver.wait(60_001)
    assert driver.heartbeat(second, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(first, generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_leaving_rebalances_at_once_and_the_last_one_empties_the_group() -> None:
    driver = Driver()
    (first, second), generation = driver.stable(2)
    assert driver.leave(second).errors == (ErrorCode.NONE,)
    assert driver.heartbeat(first, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.form(first)
    assert driver.leave(first).errors == (ErrorCode.NONE,)
    assert driver.state is State.EMPTY
    assert driver.shard.groups[GROUP].generation == 4
    driver.restart()
    assert (driver.state, driver.shard.groups[GROUP].generation) == (State.EMPTY, 4)


def test_leaving_by_strangers() -> None:
    driver = Driver()
    assert driver.leave("nobody").errors == (ErrorCode.UNKNOWN_MEMBER_ID,)
    driver.stable(1)
    errors = driver.leave("nobody", LeavingMember("", "no such instance"), LeavingMember("", None)).errors
    assert errors == (ErrorCode.UNKNOWN_MEMBER_ID,) * 3
    assert driver.state is State.STABLE


def test_a_parked_join_of_a_member_that_leaves_is_answered() -> None:
    driver = Driver()
    members, _ = driver.stable(2)
    newcomer, token = driver.new_member()
    driver.leave(newcomer)
    assert driver.joined(token).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.form(*members) == 3


def test_a_parked_join_makes_way_for_leaving() -> None:
    driver = Driver()
    members, _ = driver.stable(2)
    newcomer, token = driver.new_member()
    driver.take(driver.shard.step_aside(GROUP, newcomer, driver.now_ms))
    assert driver.joined(token).error is ErrorCode.REBALANCE_IN_PROGRESS
    tokens = {member: driver.join(member) for member in members}
    assert not set(tokens.values()) & set(driver.replies), "until it has left it is waited for"
    driver.leave(newcomer)
    assert driver.settle(tokens) == 3


def test_asking_twice_answers_the_older_request() -> None:
    driver = Driver()
    driver.stable(2)
    newcomer, token = driver.new_member()
    driver.join(newcomer)
    assert driver.joined(token).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_rejoining_without_news() -> None:
    driver = Driver()
    (leader, follower), generation = driver.stable(2)
    reply = driver.joined(driver.join(follower))
    assert (reply.error, reply.generation, reply.leader) == (ErrorCode.NONE, generation, leader)
    assert driver.state is State.STABLE
    driver.join(leader)  # it wants a new assignment, say because the topic has grown
    assert driver.state is State.PREPARING


def test_a_changed_subscription_rebalances() -> None:
    driver = Driver()
    (_, follower), _ = driver.stable(2)
    driver.join(follower, protocols=(("range", subscription("t", "u")),))
    assert driver.state is State.PREPARING
    assert driver.shard.story(GROUP)[-1].what is What.CHANGED


def test_metadata_that_only_says_what_a_member_holds_is_no_other_subscription() -> None:
    driver = Driver()
    (_, follower), _ = driver.stable(2)
    driver.join(follower, protocols=(("range", subscription("t") + b"owned"),))
    assert driver.state is State.PREPARING
    assert driver.shard.story(GROUP)[-1].what is What.REJOINED


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "g" * 32_768}, ErrorCode.INVALID_GROUP_ID),
        ({"instance_id": "\u00e9" * 16_384}, ErrorCode.INVALID_REQUEST),
        ({"new_member_id": "m" * 32_768}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("other", b""),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance_id": "i", "member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_refused_joins(changes: dict[str, object], error: ErrorCode) -> None:
    driver = Driver()
    driver.stable(1)
    assert driver.joined(driver.join(**changes)).error is error
    assert driver.state is State.STABLE


def test_a_refused_first_join_leaves_no_group_behind() -> None:
    driver = Driver()
    assert driver.joined(driver.join(protocols=())).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.shard.groups == {}


def test_the_protocol_is_the_one_all_have_and_most_prefer() -> None:
    driver = Driver(GroupSettings())
    votes = [("a", "b", "x"), ("b", "a", "y"), ("b", "a", "z")]
    tokens = [driver.new_member(protocols=tuple((name, b"") for name in names))[1] for names in votes]
    driver.wait(10_000)
    assert {driver.joined(token).protocol_name for token in tokens} == {"b"}


def test_generation_and_protocol_are_checked() -> None:
    driver = Driver()
    (member,), generation = driver.stable(1)
    assert driver.heartbeat(member, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert driver.heartbeat("stranger", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.synced(driver.sync(member, generation + 1)).error is ErrorCode.ILLEGAL_GENERATION
    assert driver.synced(driver.sync("stranger", generation)).error is ErrorCode.UNKNOWN_MEMBER_ID
    wrong = driver.sync(member, generation, protocol_type="consumer", protocol_name="roundrobin")
    assert driver.synced(wrong).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    right = driver.sync(member, generation, protocol_type="consumer", protocol_name="range")
    assert driver.synced(right).error is ErrorCode.NONE


def test_group_max_size() -> None:
    driver = Driver(NO_DELAY._replace(max_size=2))
    members, _ = driver.stable(2)
    refused = driver.joined(driver.join())
    assert (refused.error, refused.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert driver.joined(driver.join(members[1])).error is ErrorCode.NONE


def test_a_loaded_group_above_its_size_shrinks() -> None:
    driver = Driver()
    members, generation = driver.stable(3)
    driver.settings = NO_DELAY._replace(max_size=2)
    driver.restart()
    tokens = [driver.join(member) for member in members]
    assert driver.joined(tokens[2]).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.joined(tokens[0]).generation == generation + 1


# -- static members -----------------------------------------------------------------------


def static_group(driver: Driver) -> tuple[str, str, int]:
    """A dynamic leader and a static follower, stable."""
    leader, _ = driver.new_member()
    token = driver.join(**STATIC)
    member = driver.shard.groups[GROUP].instances["i1"]
    return leader, member, driver.settle({leader: driver.join(leader), member: token})


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    driver = Driver()
    leader, old, generation = static_group(driver)
    reply = driver.joined(driver.join(**STATIC))
    new = reply.member_id
    assert new != old
    assert (reply.error, reply.generation, reply.leader, reply.members) == (ErrorCode.NONE, generation, leader, ())
    assert driver.state is State.STABLE
    assert driver.synced(driver.sync(new, generation, instance_id="i1")).assignment == assignment(t=[1])
    assert driver.heartbeat(old, generation, "i1") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.heartbeat(new, generation, "i1") is ErrorCode.NONE
    assert driver.joined(driver.join(old, **STATIC)).error is ErrorCode.FENCED_INSTANCE_ID
    driver.restart()
    assert driver.heartbeat(new, generation, "i1") is ErrorCode.NONE
    assert driver.heartbeat(leader, generation) is ErrorCode.NONE


@pytest.mark.parametrize("can_skip", [True, False])
def test_a_static_leader_comes_back(can_skip: bool) -> None:
    driver = Driver()
    token = driver.join(**STATIC)
    old = driver.shard.groups[GROUP].instances["i1"]
    driver.settle({old: token})
    reply = driver.joined(driver.join(can_skip_assignment=can_skip, **STATIC))
    assert driver.state is State.STABLE
    assert reply.skip_assignment is can_skip
    if can_skip:
        # It leads, knows the members, and leaves the assignment as it is.
        assert reply.leader == reply.member_id
        assert [member.member_id for member in reply.members] == [reply.member_id]
    else:
        assert (reply.leader, reply.members) == (old, ())


def test_a_static_member_with_another_protocol_rebalances() -> None:
    driver = Driver(GroupSettings())
    both = (("range", subscription("t")), ("roundrobin", subscription("t")))
    token = driver.join(protocols=both, **STATIC)
    driver.wait(10_000)
    driver.settle({driver.shard.groups[GROUP].instances["i1"]: token})
    driver.join(protocols=tuple(reversed(both)), **STATIC)
    assert driver.state is not State.STABLE


def test_a_parked_predecessor_is_fenced() -> None:
    driver = Driver()
    leader, old, _ = static_group(driver)
    driver.new_member()
    parked = driver.join(old, **STATIC)
    successor = driver.join(**STATIC)
    assert driver.joined(parked).error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.joined(parked).member_id == old
    driver.join(leader)
    assert driver.joined(successor).error is ErrorCode.NONE


def test_static_members_leave_by_instance_id_and_are_not_missed_until_then() -> None:
    driver = Driver()
    leader, member, generation = static_group(driver)
    driver.wait(9_000)
    driver.heartbeat(leader, generation)
    # A rebalance does not throw out a static member that is away, but its session does.
    newcomer, token = driver.new_member()
    driver.join(leader)
    assert token not in driver.replies
    assert driver.leave(LeavingMember("wrong", "i1")).errors == (ErrorCode.FENCED_INSTANCE_ID,)
    assert driver.leave(LeavingMember("", "i1", "scaled down")).errors == (ErrorCode.NONE,)
    assert driver.joined(token).generation == generation + 1
    assert member not in driver.shard.groups[GROUP].members
    assert newcomer in driver.shard.groups[GROUP].members


@pytest.mark.parametrize("rebalance_timeout_ms", [0, -1, -(2**31)])
def test_static_members_without_time_to_rebalance_are_waited_for_in_peace(rebalance_timeout_ms: int) -> None:
    driver = Driver()
    members = tuple(
        StoredMember(f"m{n}", f"i{n}", "c", "/h", rebalance_timeout_ms, n * 10_000, RANGE[0][1], b"") for n in (1, 2)
    )
    record = GroupMetadata(GROUP, "consumer", 1, "range", "m1", driver.now_ms, members)
    driver.log.append((record.encode_key(), record.encode_value()))
    driver.restart()
    ticks = 0
    while driver.shard.groups[GROUP].instances:
        deadline_ms = driver.shard.next_deadline()
        assert deadline_ms is not None
        driver.now_ms = max(driver.now_ms, deadline_ms)
        driver.take(driver.shard.tick(driver.now_ms))
        ticks += 1
        assert ticks < 100
    assert driver.state is State.EMPTY


# -- restarts and stories -----------------------------------------------------------------


def test_members_live_through_a_restart() -> None:
    driver = Driver()
    members, generation = driver.stable(2)
    driver.commit(7, members[0], generation)
    driver.wait(8_000)
    driver.restart()
    driver.wait(9_000)  # a fresh session for everybody
    assert [driver.heartbeat(member, generation) for member in members] == [ErrorCode.NONE] * 2
    assert driver.state is State.STABLE
    assert driver.committed() == 7
    assert driver.synced(driver.sync(members[1], generation)).assignment == assignment(t=[1])


def test_a_rebalance_in_progress_is_forgotten_by_a_restart() -> None:
    driver = Driver()
    members, generation = driver.stable(2)
    newcomer, _ = driver.new_member()
    driver.restart()
    assert driver.heartbeat(members[0], generation) is ErrorCode.NONE
    assert driver.joined(driver.join(newcomer)).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_story_says_who_why_and_what() -> None:
    driver = Driver()
    (first, second), _ = driver.stable(2)
    driver.leave(LeavingMember(second, None, "the consumer is being closed"))
    driver.form(first)
    driver.wait(10_001)
    story = driver.shard.story(GROUP)
    assert [(event.what, event.member) for event in story] == [
        (What.JOINED, first),
        (What.JOINED, second),
        (What.ASSIGNED, first),
        (What.LEFT, second),
        (What.ASSIGNED, first),
        (What.TIMED_OUT, first),
        (What.EMPTY, None),
    ]
    assert story[2].assigned == ((first, 1), (second, 1))
    assert story[3].why == "the consumer is being closed"
    assert [event.generation for event in story] == [0, 1, 2, 2, 3, 3, 3]
    assert driver.notices[1] == (
        f"group g is stable at generation 3: 1 member (range), 1 partition, 1 to 1 each; "
        f"because {second} left (the consumer is being closed)"
    )


def test_stories_are_bounded_and_go_with_their_group() -> None:
    driver = Driver()
    for _ in range(300):
        member, token = driver.new_member()
        driver.settle({member: token})
        driver.leave(member)
    assert len(driver.shard.story(GROUP)) == 256
    driver.take(driver.shard.delete_group(GROUP, driver.token(), driver.now_ms))
    assert driver.shard.story(GROUP) == ()


def test_other_protocol_types_have_members_too() -> None:
    """Kafka Connect's workers, whose assignments nobody here can read."""
    driver = Driver()
    changes: dict[str, object] = {"protocol_type": "connect", "protocols": (("default", b"opaque"),)}
    member, token = driver.new_member(**changes)
    generation = driver.joined(token).generation
    reply = driver.synced(driver.sync(member, generation, {member: b"opaque"}))
    assert (reply.error, reply.assignment) == (ErrorCode.NONE, b"opaque")
    assert driver.notices == ["group g is stable at generation 1: 1 member (default); because c-1 joined"]


def test_reasons_are_bounded_in_number_and_length() -> None:
    driver = Driver()
    member, _ = driver.new_member()
    for number in range(100):  # the leader asks for another generation before the last one is assigned
        topics = (("range", subscription("t", f"u{number}")),)
        token = driver.join(member, protocols=topics, reason="r" * 10_000)
    generation = driver.joined(token).generation
    driver.sync(member, generation, {member: assignment(t=[0])})
    (notice,) = [text for text in driver.notices if "is stable" in text]
    assert notice.endswith("and 93 more")
    assert notice.count("r" * 255 + ")") == 7
    assert "r" * 256 not in notice
    assert max(len(event.why) for event in driver.shard.story(GROUP)) == 255
