"""Offsets that a producer commits for a group in its transaction: fencing, visibility, removal, and another load."""

from __future__ import annotations

import pytest
from group_driver import GROUP, NO_DELAY, Driver
from hypothesis import given, settings
from hypothesis import strategies as st
from test_consumer_group import FakeTopics

from penstock.coordination.loading import Latest
from penstock.core.group import shard as group_shard
from penstock.core.group.exchange import (
    CommitReply,
    CommitRequest,
    Committed,
    DeleteGroupReply,
    DeleteOffsetsReply,
    DeleteOffsetsRequest,
    EndTransactionReply,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    OffsetToCommit,
    TransactionalCommitRequest,
    Unstable,
)
from penstock.core.group.settings import GroupSettings
from penstock.core.group.shard import GroupShard
from penstock.core.group.states import State
from penstock.core.shard.exchange import Marker, Outcome, Producer
from penstock.model.errors import ErrorCode
from penstock.records.batch import HEADER_SIZE, TRANSACTIONAL_BIT, read_header
from penstock.records.builder import Record, build_batch

MINUTE_MS = 60_000
RETENTION = NO_DELAY._replace(offsets_retention_ms=60 * MINUTE_MS, offsets_retention_check_interval_ms=MINUTE_MS)
A, B = 1, 2


class TransactionalDriver(Driver):
    """Its log has batches of transactions and markers, and is loaded as a coordinator does it."""

    def __init__(self, settings: GroupSettings = NO_DELAY, topics: FakeTopics | None = None) -> None:
        self.topics = topics or FakeTopics(t=3, other=3)
        self.batches: list[tuple[int, bytes | Marker]] = []
        self.end = 0
        super().__init__(settings)
        self.restart()

    def take(self, outcome: Outcome) -> None:
        if outcome.marker is not None:
            assert not outcome.records
            self.batches.append((self.end, outcome.marker))
            self.end += 1
            self.shard.replay_marker(outcome.marker.producer_id, is_commit=outcome.marker.is_commit)
        if outcome.records:
            self._append(outcome)
        super().take(outcome)

    def _append(self, outcome: Outcome) -> None:
        records = [Record(one.encode_key(), one.encode_value(), (), self.now_ms) for one in outcome.records]
        producer = outcome.producer
        if producer is None:
            self.batches.append((self.end, build_batch(records)))
        else:
            data = build_batch(records, producer_id=producer.producer_id, attributes=TRANSACTIONAL_BIT)
            self.batches.append((self.end, data))
            # What the driver does with records knows nothing of transactions.
            for one in outcome.records:
                self.shard.replay(one)
            outcome.records.clear()
        self.end += len(records)

    def loaded_shard(self) -> GroupShard:
        latest = Latest()
        for offset, one in self.batches:
            if isinstance(one, Marker):
                latest.end_transaction(one.producer_id, is_commit=one.is_commit)
            else:
                latest.add_batch(read_header(one)._replace(base_offset=offset), one[HEADER_SIZE:])
        shard = GroupShard(self.settings, self.topics)
        for key, value in latest.records.items():
            record = shard.decode(key, value)
            assert record is not None
            shard.replay(record)
        for producer_id, key, value in latest.still_open():
            record = shard.decode_pending(producer_id, key, value)
            assert record is not None
            shard.replay(record)
        return shard

    def restart(self) -> None:
        self.shard = self.loaded_shard()
        self.take(self.shard.loaded(self.now_ms))

    # -- requests -----------------------------------------------------------------------

    def commit_in(
        self,
        producer_id: int,
        offset: int,
        member: str = "",
        generation: int = -1,
        *,
        topic: str = "t",
        partition: int = 0,
        metadata: str = "",
        group: str = GROUP,
        instance_id: str | None = None,
    ) -> ErrorCode:
        token = self.token()
        commit = CommitRequest(
            group, member, instance_id, generation, (OffsetToCommit(topic, partition, offset, -1, metadata),)
        )
        request = TransactionalCommitRequest(commit, Producer(producer_id, 0))
        self.take(self.shard.commit_transactional(request, token, self.now_ms))
        reply = self.replies[token]
        assert isinstance(reply, CommitReply)
        return reply.error or reply.errors[0]

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        token = self.token()
        marker = Marker(producer_id, 0, commit, 0, 0)
        self.take(self.shard.end_transaction(marker, token, self.now_ms))
        assert self.replies[token] == EndTransactionReply()

    def stable(self, *partitions: int, topic: str = "t", group: str = GROUP) -> list[int | str | None]:
        """As a consumer asks that reads committed: the offset of each partition, or "unstable"."""
        reply = self.fetch({topic: partitions or (0,)}, group)
        found: list[int | str | None] = []
        for one in reply.topics[topic].values():
            found.append(one.offset if isinstance(one, Committed) else None if one is None else one.value)
        return found

    def fetch(self, topics: dict[str, tuple[int, ...]] | None, group: str = GROUP) -> FetchOffsetsReply:
        token = self.token()
        request = FetchOffsetsRequest(group, topics, require_stable=True)
        self.take(self.shard.fetch_offsets(request, token, self.now_ms))
        reply = self.replies[token]
        assert isinstance(reply, FetchOffsetsReply)
        return reply

    def delete_group(self, group: str = GROUP) -> ErrorCode:
        token = self.token()
        self.take(self.shard.delete_group(group, token, self.now_ms))
        reply = self.replies[token]
        assert isinstance(reply, DeleteGroupReply)
        return reply.error

    def delete_offset(self, topic: str, partition: int, group: str = GROUP) -> None:
        token = self.token()
        request = DeleteOffsetsRequest(group, ((topic, partition),))
        self.take(self.shard.delete_offsets(request, token, self.now_ms))
        assert isinstance(self.replies[token], DeleteOffsetsReply)

    def delete_topic(self, name: str) -> None:
        self.topics.delete(name)
        self.take(self.shard.topics_deleted([name], self.now_ms))


# -- visibility -------------------------------------------------------------------------


def test_offsets_count_when_their_transaction_commits() -> None:
    driver = TransactionalDriver()
    driver.commit(3)
    assert driver.commit_in(A, 5) is ErrorCode.NONE
    assert driver.committed() == 3
    driver.restart()
    assert driver.committed() == 3
    driver.end_transaction(A, commit=True)
    assert driver.committed() == 5
    driver.restart()
    assert driver.committed() == 5


def test_offsets_of_an_aborted_transaction_never_count() -> None:
    driver = TransactionalDriver()
    driver.commit_in(A, 5)
    assert driver.committed() is None
    driver.end_transaction(A, commit=False)
    assert (driver.committed(), driver.stable()) == (None, [None])
    driver.restart()
    assert (driver.committed(), driver.stable()) == (None, [None])


def test_whoever_wants_what_is_stable_is_told_to_wait() -> None:
    driver = TransactionalDriver()
    driver.commit(3)
    driver.commit(4, partition=1)
    driver.commit_in(A, 5)
    driver.commit_in(B, 6, partition=2)
    assert driver.stable(0, 1, 2) == ["unstable", 4, "unstable"]
    assert driver.stable(0, topic="other") == [None]
    everything = driver.fetch(None).topics
    assert everything["t"][0] is Unstable.OFFSET
    assert everything["t"][2] is Unstable.OFFSET, "also where nothing was committed before"
    assert isinstance(everything["t"][1], Committed)
    driver.end_transaction(A, commit=True)
    driver.end_transaction(B, commit=False)
    assert driver.stable(0, 1, 2) == [5, 4, None]


def test_a_commit_outside_of_transactions_stands_when_an_earlier_one_ends() -> None:
    driver = TransactionalDriver()
    driver.commit_in(A, 5)
    driver.commit(7)
    assert driver.stable() == [7]
    driver.end_transaction(A, commit=True)
    assert driver.committed() == 7
    driver.restart()
    assert driver.committed() == 7


def test_the_end_of_a_transaction_without_offsets_here_changes_nothing() -> None:
    driver = TransactionalDriver()
    driver.commit(3)
    for commit in (True, False):
        driver.end_transaction(B, commit=commit)
    assert driver.committed() == 3


# -- who may ----------------------------------------------------------------------------


def test_a_group_that_nobody_has_joined_is_made_by_the_commit() -> None:
    driver = TransactionalDriver()
    assert driver.commit_in(A, 5, group="new") is ErrorCode.NONE
    assert driver.shard.groups["new"].state is State.EMPTY
    assert driver.commit_in(A, 5, "m", 3, group="newer") is ErrorCode.ILLEGAL_GENERATION
    assert "newer" not in driver.shard.groups
    assert driver.commit_in(A, 5, group="") is ErrorCode.INVALID_GROUP_ID


def test_a_member_is_checked_and_a_producer_that_names_none_is_not() -> None:
    """As before KIP-447, whose requests (before version 3) say nothing of a member."""
    driver = TransactionalDriver()
    (member,), generation = Driver.stable(driver, 1)
    assert driver.commit_in(A, 1) is ErrorCode.NONE
    assert driver.commit_in(A, 2, member, generation) is ErrorCode.NONE
    assert driver.commit_in(A, 3, member, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit_in(A, 3, "stranger", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit_in(A, 3, member, generation, instance_id="i") is ErrorCode.UNKNOWN_MEMBER_ID
    driver.end_transaction(A, commit=True)
    assert driver.committed() == 2


def test_a_static_member_that_was_replaced_is_fenced() -> None:
    driver = TransactionalDriver()
    first = driver.joined(driver.join(instance_id="i"))
    Driver.settle(driver, {first.member_id: driver.join(first.member_id, instance_id="i")})
    generation = driver.shard.groups[GROUP].generation
    second = driver.joined(driver.join(instance_id="i"))
    assert second.member_id != first.member_id
    code = driver.commit_in(A, 1, first.member_id, generation, instance_id="i")
    assert code is ErrorCode.FENCED_INSTANCE_ID


def test_while_a_group_rebalances_a_producer_may_still_commit() -> None:
    driver = TransactionalDriver()
    (member, other), generation = Driver.stable(driver, 2)
    driver.leave(other)
    assert driver.state is State.PREPARING
    assert driver.commit_in(A, 1, member, generation) is ErrorCode.NONE
    token = driver.join(member)
    generation = driver.joined(token).generation
    assert driver.state is State.COMPLETING
    assert driver.commit_in(A, 2, member, generation) is ErrorCode.NONE


def test_a_commit_in_a_transaction_keeps_no_session_alive() -> None:
    driver = TransactionalDriver()
    (member,), generation = Driver.stable(driver, 1)
    driver.wait(9_000)
    assert driver.commit_in(A, 1, member, generation) is ErrorCode.NONE
    driver.wait(2_000)
    assert driver.heartbeat(member, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_note_that_is_too_long_is_refused_and_not_written() -> None:
    driver = TransactionalDriver()
    size = driver.settings.offset_metadata_max_bytes
    assert driver.commit_in(A, 1, metadata="x" * (size + 1)) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert not driver.shard.pending
    assert driver.commit_in(A, 1, metadata="x" * size) is ErrorCode.NONE


# -- removal ----------------------------------------------------------------------------


def test_a_deleted_group_does_not_come_back_with_a_commit() -> None:
    driver = TransactionalDriver()
    driver.commit(3)
    driver.commit_in(A, 5)
    driver.commit_in(A, 6, partition=1)
    assert driver.delete_group() is ErrorCode.NONE
    assert (driver.stable(0, 1), GROUP in driver.shard.groups) == ([None, None], False)
    for again in (False, True):
        if again:
            driver.restart()
        driver.end_transaction(A, commit=True)
        assert (driver.stable(0, 1), GROUP in driver.shard.groups) == ([None, None], False)


def test_what_is_committed_after_the_deletion_of_the_group_counts() -> None:
    driver = TransactionalDriver()
    driver.commit_in(A, 5)
    driver.delete_group()
    driver.commit_in(A, 7)
    driver.end_transaction(A, commit=True)
    assert driver.committed() == 7
    driver.restart()
    assert driver.committed() == 7


def test_offsets_of_a_deleted_topic_do_not_come_back_with_a_commit() -> None:
    driver = TransactionalDriver()
    driver.commit_in(A, 5)
    driver.commit_in(A, 6, topic="other")
    driver.delete_topic("t")
    assert driver.fetch(None).topics == {"other": {0: Unstable.OFFSET}}
    driver.restart()
    driver.end_transaction(A, commit=True)
    assert driver.committed("other") == 6
    assert driver.shard.offsets.of_group(GROUP).keys() == {"other"}
    driver.topics.set("t", 3)
    assert driver.committed() is None


def test_offsets_of_a_topic_that_was_deleted_before_a_load_are_forgotten() -> None:
    driver = TransactionalDriver()
    driver.commit_in(A, 5)
    driver.topics.delete("t")
    driver.restart()
    driver.take(driver.shard.forget_earlier_topics(driver.now_ms, lambda name: name == "other"))
    assert not driver.shard.pending
    driver.end_transaction(A, commit=True)
    assert driver.shard.offsets.get(GROUP, "t", 0) is None


def test_an_offset_for_the_topic_made_anew_is_not_taken_for_one_of_the_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk over the offsets comes to the group after the topic was made again."""
    monkeypatch.setattr(group_shard, "PIECE", 1)
    driver = TransactionalDriver()
    for number in range(5):
        driver.commit_in(A, number, group=f"g{number}")
    driver.commit(5, group_id="g3")
    driver.delete_topic("t")
    driver.topics.set("t", 3)
    for group in ("g3", "g4"):
        assert driver.commit_in(B, 77, group=group) is ErrorCode.NONE
    driver.wait(60)
    driver.end_transaction(A, commit=True)
    for group in ("g0", "g3", "g4"):
        assert driver.committed(group_id=group) is None
    driver.end_transaction(B, commit=True)
    assert [driver.committed(group_id=group) for group in ("g0", "g3", "g4")] == [None, 77, 77]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_offset_that_is_deleted_while_it_is_pending_does_not_come_back(is_restarted: bool) -> None:
    driver = TransactionalDriver()
    driver.commit_in(A, 5)
    driver.commit_in(A, 6, partition=1)
    driver.delete_offset("t", 0)
    if is_restarted:
        driver.restart()
    assert driver.stable(0, 1) == [None, "unstable"]
    driver.end_transaction(A, commit=True)
    assert driver.stable(0, 1) == [None, 6]


def test_a_group_with_pending_offsets_does_not_expire() -> None:
    driver = TransactionalDriver(RETENTION)
    driver.commit(3)
    driver.commit(4, partition=1)
    driver.commit_in(A, 5)
    driver.wait(120 * MINUTE_MS)
    assert GROUP in driver.shard.groups
    assert (driver.committed(), driver.committed(partition=1)) == (3, None), "the pending one keeps its own alone"
    driver.end_transaction(A, commit=True)
    assert driver.committed() == 5
    driver.wait(2 * MINUTE_MS)
    assert GROUP not in driver.shard.groups, "by the time of the commit it is old"


def test_a_group_that_only_an_aborted_transaction_made_is_forgotten() -> None:
    driver = TransactionalDriver(RETENTION)
    driver.commit_in(A, 5)
    driver.end_transaction(A, commit=False)
    driver.wait(2 * MINUTE_MS)
    assert GROUP not in driver.shard.groups


# -- histories --------------------------------------------------------------------------

GROUPS, TOPICS = ("g", "h"), ("t", "other")
actions = st.tuples(
    st.sampled_from(
        [
            *["commit in", "commit in", "commit in", "commit", "end with commit", "end with abort"],
            *["delete group", "delete offset", "delete topic", "make topic", "wait", "long wait", "restart"],
        ]
    ),
    st.sampled_from([A, B]),
    st.sampled_from(GROUPS),
    st.sampled_from(TOPICS),
    st.integers(0, 1),
)


def act(driver: TransactionalDriver, number: int, action: tuple[str, int, str, str, int]) -> None:
    what, producer_id, group, topic, partition = action
    match what:
        case "commit in":
            driver.commit_in(producer_id, number, group=group, topic=topic, partition=partition)
        case "commit":
            driver.commit(number, group_id=group, topic=topic, partition=partition)
        case "end with commit":
            driver.end_transaction(producer_id, commit=True)
        case "end with abort":
            driver.end_transaction(producer_id, commit=False)
        case "delete group":
            driver.delete_group(group)
        case "delete offset":
            driver.delete_offset(topic, partition, group)
        case "delete topic" if driver.topics.find(topic) is not None:
            driver.delete_topic(topic)
        case "make topic":
            driver.topics.set(topic, 3)
        case "wait":
            driver.wait(MINUTE_MS)
        case "long wait":
            driver.wait(40 * MINUTE_MS)
        case "restart":
            driver.restart()


def state_of(shard: GroupShard) -> tuple[object, ...]:
    """All that lasts. A group without offsets that an aborted transaction has left behind is gone after a load."""
    kept = {group for group in shard.groups if shard.offsets.of_group(group) or shard.pending.has_group(group)}
    return (
        kept,
        {group: shard.offsets.of_group(group) for group in GROUPS if shard.offsets.of_group(group)},
        {group: set(shard.pending.of_group(group)) for group in GROUPS},
        len(shard.pending),
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(actions, max_size=40))
def test_the_log_tells_what_was_lived_through(history: list[tuple[str, int, str, str, int]]) -> None:
    driver = TransactionalDriver(RETENTION)
    for number, action in enumerate(history):
        act(driver, number, action)
        assert state_of(driver.loaded_shard()) == state_of(driver.shard)
    for producer_id, is_commit in ((A, True), (B, False)):
        loaded = driver.loaded_shard()
        loaded.replay_marker(producer_id, is_commit=is_commit)
        driver.end_transaction(producer_id, commit=is_commit)
        assert state_of(loaded) == state_of(driver.shard)
    assert not driver.shard.pending
