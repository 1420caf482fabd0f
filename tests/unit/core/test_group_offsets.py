"""Committed offsets: who may commit, what is kept and for how long, deletion, listing and describing."""

from __future__ import annotations

import pytest
from group_driver import GROUP, NO_DELAY, Driver, assignment, subscription
from test_consumer_group import FakeTopics

from penstock.core.group import shard
from penstock.core.group.exchange import (
    DeleteGroupReply,
    DeleteOffsetsReply,
    DeleteOffsetsRequest,
    DescribeGroupReply,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    ListGroupsReply,
)
from penstock.core.group.records import GroupTombstone, OffsetTombstone
from penstock.core.group.settings import GroupSettings
from penstock.core.group.shard import GroupShard
from penstock.core.group.states import State
from penstock.model.errors import ErrorCode

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
RETENTION = NO_DELAY._replace(offsets_retention_ms=60 * MINUTE_MS, offsets_retention_check_interval_ms=MINUTE_MS)


def delete_offsets(driver: Driver, *partitions: tuple[str, int]) -> DeleteOffsetsReply:
    token = driver.token()
    driver.take(driver.shard.delete_offsets(DeleteOffsetsRequest(GROUP, partitions), token, driver.now_ms))
    reply = driver.replies[token]
    assert isinstance(reply, DeleteOffsetsReply)
    return reply


def delete_group(driver: Driver, group: str = GROUP) -> ErrorCode:
    token = driver.token()
    driver.take(driver.shard.delete_group(group, token, driver.now_ms))
    reply = driver.replies[token]
    assert isinstance(reply, DeleteGroupReply)
    return reply.error


def test_a_consumer_without_a_group_commits() -> None:
    driver = Driver()
    assert driver.commit(5) is ErrorCode.NONE
    assert driver.committed() == 5
    assert driver.committed(partition=1) is None
    driver.restart()
    assert driver.committed() == 5
    assert driver.state is State.EMPTY


def test_only_members_commit_to_a_group_that_has_some() -> None:
    driver = Driver()
    (member, other), generation = driver.stable(2)
    assert driver.commit(1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit(1, "stranger", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit(1, member, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit(1, member, -1) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit(1, member, generation) is ErrorCode.NONE
    driver.leave(other)
    # While the others rejoin a member may still commit what it has done.
    assert driver.commit(2, member, generation) is ErrorCode.NONE
    token = driver.join(member)
    assert driver.commit(3, member, driver.joined(token).generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.committed() == 2


def test_committing_to_a_group_that_does_not_exist() -> None:
    driver = Driver()
    assert driver.commit(1, "m", 3) is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.commit(1, "m", 3, knows_group_not_found=False) is ErrorCode.ILLEGAL_GENERATION
    assert driver.shard.groups == {}


def test_a_note_that_is_too_long_is_refused_alone() -> None:
    driver = Driver()
    assert driver.commit(1, metadata="x" * 4097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert driver.commit(1, metadata="x" * 4096) is ErrorCode.NONE


def test_what_no_record_can_hold_is_refused() -> None:
    driver = Driver(NO_DELAY._replace(offset_metadata_max_bytes=100_000))
    assert driver.commit(1, metadata="x" * 32_768) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert driver.commit(1, metadata="x" * 32_767) is ErrorCode.NONE
    assert driver.commit(1, group_id="g" * 32_768) is ErrorCode.INVALID_GROUP_ID


def test_fetching_all() -> None:
    driver = Driver()
    driver.commit(1, topic="a")
    driver.commit(2, topic="b", partition=3)
    token = driver.token()
    driver.take(driver.shard.fetch_offsets(FetchOffsetsRequest(GROUP, None), token, driver.now_ms))
    reply = driver.replies[token]
    assert isinstance(reply, FetchOffsetsReply)
    found = {
        (topic, partition): committed.offset
        for topic, partitions in reply.topics.items()
        for partition, committed in partitions.items()
        if committed is not None
    }
    assert found == {("a", 0): 1, ("b", 3): 2}
    driver.take(driver.shard.fetch_offsets(FetchOffsetsRequest("nobody", None), token + 1, driver.now_ms))
    assert driver.replies[token + 1] == FetchOffsetsReply(ErrorCode.NONE, {})


def test_deleting_offsets() -> None:
    driver = Driver()
    assert delete_offsets(driver, ("t", 0)).error is ErrorCode.GROUP_ID_NOT_FOUND
    (member,), generation = driver.stable(1)
    driver.commit(1, member, generation)
    driver.commit(1, member, generation, topic="old")
    reply = delete_offsets(driver, ("t", 0), ("old", 0), ("old", 1))
    assert reply.errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE)
    assert (driver.committed(), driver.committed("old")) == (1, None)
    driver.leave(member)
    assert delete_offsets(driver, ("t", 0)).errors == (ErrorCode.NONE,)
    assert driver.committed() is None


def test_offsets_of_members_of_another_kind_are_not_deleted() -> None:
    driver = Driver()
    changes: dict[str, object] = {"protocol_type": "connect", "protocols": (("default", b""),)}
    driver.new_member(**changes)
    assert delete_offsets(driver, ("t", 0)).error is ErrorCode.NON_EMPTY_GROUP


def test_deleting_a_group() -> None:
    driver = Driver()
    assert delete_group(driver) is ErrorCode.GROUP_ID_NOT_FOUND
    (member,), generation = driver.stable(1)
    driver.commit(1, member, generation)
    assert delete_group(driver) is ErrorCode.NON_EMPTY_GROUP
    driver.leave(member)
    assert delete_group(driver) is ErrorCode.NONE
    assert (driver.shard.groups, driver.committed()) == ({}, None)
    driver.restart()
    assert (driver.shard.groups, driver.committed()) == ({}, None)


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    driver = Driver()
    driver.commit(1)
    driver.commit(2, topic="kept")
    driver.take(driver.shard.topics_deleted(["t"], driver.now_ms))
    assert (driver.committed(), driver.committed("kept")) == (None, 2)


def test_a_topic_made_anew_under_the_same_name_inherits_nothing() -> None:
    """Although nobody could write down that the first one was deleted."""
    driver = Driver()
    topics = FakeTopics(t=1, other=1)
    driver.shard = GroupShard(driver.settings, topics)
    driver.commit(1)
    driver.commit(2, topic="other")
    topics.delete("t")
    topics.set("t", 1)
    everything = FetchOffsetsRequest(GROUP, None)
    driver.take(driver.shard.fetch_offsets(everything, driver.token(), driver.now_ms))
    reply = driver.replies[driver.tokens]
    assert isinstance(reply, FetchOffsetsReply)
    assert {topic: list(found) for topic, found in reply.topics.items() if found} == {"other": [0]}
    assert (driver.committed(), driver.committed("other")) == (None, 2)
    driver.take(driver.shard.forget_earlier_topics(driver.now_ms))
    assert list(driver.shard.offsets.of_group(GROUP)) == ["other"]
    driver.commit(3)
    driver.take(driver.shard.forget_earlier_topics(driver.now_ms))
    assert driver.committed() == 3


def test_offsets_of_an_earlier_topic_go_when_offsets_expire() -> None:
    driver = Driver(RETENTION)
    topics = FakeTopics(t=1)
    driver.shard = GroupShard(driver.settings, topics)
    driver.take(driver.shard.loaded(driver.now_ms))
    (member,), generation = driver.stable(1)
    driver.commit(1, member, generation)
    topics.delete("t")
    topics.set("t", 1)
    driver.wait(driver.settings.offsets_retention_check_interval_ms + 1)
    assert driver.shard.offsets.of_group(GROUP) == {}


# -- walks over everything that is committed ------------------------------------------------


def many_groups(topics: FakeTopics, *, count: int = 10) -> Driver:
    driver = Driver(RETENTION)
    driver.shard = GroupShard(driver.settings, topics)
    driver.take(driver.shard.loaded(driver.now_ms))
    for number in range(count):
        for partition in range(3):
            driver.commit(number, group_id=f"g{number}", partition=partition)
            driver.commit(number, group_id=f"g{number}", partition=partition, topic="kept")
    return driver


def test_a_walk_over_all_offsets_gives_the_loop_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PIECE", 8)
    topics = FakeTopics(t=3, kept=3)
    driver = many_groups(topics)
    topics.delete("t")
    first = driver.shard.topics_deleted(["t"], driver.now_ms)
    assert 0 < len(first.records) <= 9, "two or three groups of ten"
    driver.take(first)
    pieces = 0
    while driver.shard.offsets.of_group("g9").get("t"):
        driver.now_ms += 1
        out = driver.shard.tick(driver.now_ms)
        assert len(out.records) <= 9
        driver.take(out)
        pieces += 1
    assert pieces >= 3
    for number in range(10):
        assert list(driver.shard.offsets.of_group(f"g{number}")) == ["kept"]


def test_what_a_walk_has_not_reached_yet_does_not_count_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PIECE", 1)
    topics = FakeTopics(t=3, kept=3)
    driver = many_groups(topics)
    for committed in driver.shard.offsets.of_group("g8")["t"], driver.shard.offsets.of_group("g9")["t"]:
        for partition, one in committed.items():
            committed[partition] = one._replace(topic_id=b"")  # as others write it
    topics.delete("t")
    driver.take(driver.shard.topics_deleted(["t"], driver.now_ms))
    topics.set("t", 3)
    assert driver.committed(group_id="g9") is None
    driver.commit(77, group_id="g9", partition=1)
    assert driver.committed(group_id="g9", partition=1) == 77
    driver.take(driver.shard.delete_group("g5", driver.token(), driver.now_ms))
    driver.wait(30)
    for number in (0, 4, 6, 8):
        assert list(driver.shard.offsets.of_group(f"g{number}")) == ["kept"]
    assert "g5" not in driver.shard.groups
    assert driver.committed(group_id="g9", partition=1) == 77
    assert list(driver.shard.offsets.of_group("g9")["t"]) == [1]


def test_topics_deleted_while_a_walk_is_under_way_are_walked_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PIECE", 1)
    topics = FakeTopics(t=3, kept=3)
    driver = many_groups(topics)
    for name in ("t", "kept"):
        topics.delete(name)
        driver.take(driver.shard.topics_deleted([name], driver.now_ms))
    assert driver.committed(group_id="g0", topic="kept") is None
    driver.wait(60)
    assert not any(driver.shard.offsets.of_group(f"g{number}") for number in range(10))


def test_after_a_load_offsets_of_topics_that_are_gone_go_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PIECE", 8)
    driver = many_groups(FakeTopics(t=3, kept=3))
    first = driver.shard.forget_earlier_topics(driver.now_ms, lambda name: name == "kept")
    assert 0 < len(first.records) <= 9
    driver.take(first)
    driver.wait(30)
    for number in range(10):
        assert list(driver.shard.offsets.of_group(f"g{number}")) == ["kept"]


def test_offsets_expire_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "PIECE", 8)
    driver = many_groups(FakeTopics(t=3, kept=3))
    driver.now_ms += driver.settings.offsets_retention_ms + 1
    expired = driver.shard.tick(driver.now_ms)
    assert 0 < len(expired.records) <= 2 * 7, "two groups of ten and their offsets"
    driver.take(expired)
    driver.commit(5, group_id="g9")
    driver.wait(30)
    assert list(driver.shard.groups) == ["g9"]
    assert driver.shard.offsets.of_group("g9").keys() == {"t"}


# -- retention ----------------------------------------------------------------------------


def test_offsets_outlive_the_last_member_by_the_retention() -> None:
    driver = Driver(RETENTION)
    (member,), generation = driver.stable(1)
    driver.commit(1, member, generation)
    for _ in range(90 * 12):
        driver.wait(5_000)
        driver.heartbeat(member, generation)
    assert driver.committed() == 1  # old, but the group lives
    driver.leave(member)
    driver.wait(59 * MINUTE_MS)
    assert driver.committed() == 1
    driver.wait(2 * MINUTE_MS)
    assert driver.committed() is None
    assert driver.shard.groups == {}
    driver.restart()
    assert driver.shard.groups == {}


def test_offsets_of_topics_nobody_subscribes_to_any_more_expire_by_their_commit() -> None:
    driver = Driver(RETENTION)
    (member,), generation = driver.stable(1)
    driver.commit(1, member, generation)
    driver.commit(1, member, generation, topic="former")
    for _ in range(61 * 12):
        driver.wait(5_000)
        driver.heartbeat(member, generation)
    assert (driver.committed(), driver.committed("former")) == (1, None)


def test_offsets_without_members_expire_by_their_commit() -> None:
    driver = Driver(RETENTION)
    driver.commit(1)
    driver.wait(40 * MINUTE_MS)
    driver.commit(2, partition=1)
    driver.wait(21 * MINUTE_MS)
    assert (driver.committed(), driver.committed(partition=1)) == (None, 2)
    driver.wait(60 * MINUTE_MS)
    assert driver.shard.groups == {}


def test_a_retention_of_the_clients_own() -> None:
    driver = Driver(RETENTION)
    driver.commit(1, retention_time_ms=5 * MINUTE_MS)
    driver.restart()
    driver.wait(4 * MINUTE_MS)
    assert driver.committed() == 1
    driver.wait(2 * MINUTE_MS)
    assert driver.committed() is None


def test_the_clock_of_retention_survives_a_restart() -> None:
    driver = Driver(RETENTION)
    (member,), generation = driver.stable(1)
    driver.commit(1, member, generation)
    driver.leave(member)
    driver.wait(40 * MINUTE_MS)
    driver.restart()
    driver.wait(21 * MINUTE_MS)
    assert driver.committed() is None


# -- what compaction leaves ---------------------------------------------------------------


def test_tombstones_alone_mean_nothing() -> None:
    shard = GroupShard(GroupSettings())
    shard.replay(OffsetTombstone("g", "t", 0))
    shard.replay(GroupTombstone("g"))
    assert shard.groups == {}


def test_the_last_value_of_every_key_is_enough() -> None:
    driver = Driver()
    members, generation = driver.stable(3)
    for offset in range(10):
        driver.commit(offset, members[0], generation)
    driver.leave(members[2])
    driver.form(*members[:2])
    latest: dict[bytes, bytes | None] = {}
    for key, value in driver.log:
        latest.pop(key, None)
        latest[key] = value
    driver.log = list(latest.items())
    driver.restart()
    assert driver.committed() == 9
    assert [driver.heartbeat(member, generation + 1) for member in members[:2]] == [ErrorCode.NONE] * 2


# -- looking ------------------------------------------------------------------------------


def test_listing_with_filters() -> None:
    driver = Driver()
    driver.stable(1)
    driver.commit(1, group_id="simple")

    def listed(states: list[str], types: list[str]) -> list[tuple[str, ...]]:
        token = driver.token()
        driver.take(driver.shard.list_groups(states, types, token, driver.now_ms))
        reply = driver.replies[token]
        assert isinstance(reply, ListGroupsReply)
        return [tuple(group) for group in reply.groups]

    stable, simple = ("g", "consumer", "Stable", "classic"), ("simple", "", "Empty", "classic")
    assert listed([], []) == [stable, simple]
    assert listed(["stable"], []) == [stable]
    assert listed(["EMPTY", "Dead"], ["Classic"]) == [simple]
    assert listed([], ["consumer"]) == []


def test_describing() -> None:
    driver = Driver()
    (member,), _ = driver.stable(1)

    def described(group: str) -> DescribeGroupReply:
        token = driver.token()
        driver.take(driver.shard.describe_group(group, token, driver.now_ms))
        reply = driver.replies[token]
        assert isinstance(reply, DescribeGroupReply)
        return reply

    reply = described(GROUP)
    assert (reply.state, reply.protocol_type, reply.protocol_name) == ("Stable", "consumer", "range")
    assert [tuple(each) for each in reply.members] == [
        (member, None, "c", "/127.0.0.1", subscription("t"), assignment(t=[0]))
    ]
    driver.new_member()
    assert (described(GROUP).state, described(GROUP).members[0].assignment) == ("PreparingRebalance", b"")
    assert described("nobody") == DescribeGroupReply(ErrorCode.GROUP_ID_NOT_FOUND, "nobody", "Dead")


def test_retention_counts_in_the_time_of_day() -> None:
    driver = Driver()
    driver.commit(5)
    driver.shard.wall.ahead_ms = 6 * DAY_MS  # the machine slept
    driver.wait(30 * MINUTE_MS)
    assert driver.committed() == 5
    driver.commit(6)
    driver.shard.wall.ahead_ms = 8 * DAY_MS
    driver.wait(30 * MINUTE_MS)
    assert driver.committed() == 6, "committed two days ago"
    driver.shard.wall.ahead_ms = 14 * DAY_MS
    driver.wait(30 * MINUTE_MS)
    assert driver.committed() is None


def test_a_retention_time_without_end() -> None:
    driver = Driver()
    assert driver.commit(5, retention_time_ms=2**63 - 1) is ErrorCode.NONE
    driver.wait(30 * DAY_MS)
    driver.restart()
    assert driver.committed() == 5
