"""A partition with followers: who counts for the high watermark, who is in sync, and what a change of role does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.topic import TopicConfig
from penstock.core.metadata.image import PartitionState
from penstock.core.metadata.requests import IsrAnswer, IsrChange, ReplicaEpoch
from penstock.model.errors import ApiError, CorruptBatch, ErrorCode, LogOffline
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.replica import isr
from penstock.replica.divergence import batch_around_start, begin_below, truncation_point
from penstock.replica.host import BrokerStanding
from penstock.replica.isr import IsrKeeper, change_of, consider_shrinking, go_on_without, take_answer
from penstock.replica.partition import Partition
from penstock.sim.machine.disk import SimDisk
from penstock.storage.group_commit import GroupCommit, flush_blocking
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from support.worlds.hosted import HeldFlusher
from support.worlds.hosts import Listening, lone_host

NOW_MS = 1_700_000_000_000
NEVER = str(2**63 - 1)
TOPIC_ID = b"t" * 16


class Clock:
    ms = 100_000

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return self.ms / 1000


class Told:
    """A parked fetch."""

    def __init__(self) -> None:
        self.count = 0

    def notify(self, source: Partition) -> None:
        self.count += 1


class Replica:
    """One broker's partition; broker 1 unless said otherwise."""

    def __init__(self, overrides: dict[str, str] | None = None, node_id: int = 1, *, is_durable: bool = False) -> None:
        self.disk = SimDisk(Random(node_id))
        self.disk.make_directory("/data")
        self.disk.sync_directory("")
        self.clock = Clock()
        self.alive = {1: 101, 2: 102, 3: 103}
        self.host = lone_host(node_id, self.clock, BrokerStanding(lambda: self.alive[node_id], None), self.alive.get)
        self.proposed: list[Partition] = []
        self.host.events = Listening(isr_proposed=self.proposed.append)
        log = Log.open(
            self.disk,
            "/data/t-0",
            LogConfig(),
            now_ms=NOW_MS,
        )
        flush = {} if is_durable else {"flush.messages": NEVER}
        self.broker = BrokerConfig.load(None, {"log.dirs": "/data"})[0]
        config = TopicConfig.resolve({**flush, **(overrides or {})}, self.broker)
        self.flusher = HeldFlusher(self.disk)
        commit = GroupCommit(lambda callback: callback(), self.flusher)
        self.partition = Partition("t", TOPIC_ID, 0, log, config, commit, self.host, high_watermark=0)
        self.told: list[ErrorCode] = []
        self.epochs = (-1, -1)

    def state(
        self, leader: int = 1, isr: Sequence[int] = (1, 2, 3), replicas: Sequence[int] = (1, 2, 3), *, epoch: int = -1
    ) -> None:
        """Every call is a newer decision of the controller; `epoch`: a new one of the leader."""
        leader_epoch = epoch if epoch >= 0 else max(self.partition.leader_epoch, 0)
        state = PartitionState(0, tuple(replicas), leader, leader_epoch, tuple(isr), self.partition.partition_epoch + 1)
        self.partition.apply_state(state)

    def append(self, value: bytes = b"v") -> int:
        data = build_batch([Record(None, value, (), NOW_MS)])
        offset = self.partition.append(read_header(data), data, NOW_MS)
        if offset + 1 > self.partition.high_watermark:
            self.partition.when_committed(offset + 1, self.told.append)
        return offset

    def fetched(self, replica: int, offset: int, log_start: int = 0) -> None:
        epoch = {2: 102, 3: 103}[replica]
        self.partition.follower_fetched(replica, offset, log_start, self.host.now_ms(), epoch)

    def claimed(self, replica: int, offset: int, broker_epoch: int) -> None:
        self.partition.follower_claimed(replica, offset, 0, self.host.now_ms(), broker_epoch)

    def become_durable(self) -> None:
        self.partition.apply_config(TopicConfig.resolve({"flush.messages": "1"}, self.broker))

    def pass_ms(self, ms: int) -> None:
        self.clock.ms += ms


def leading(overrides: dict[str, str] | None = None, *, is_durable: bool = False) -> Replica:
    replica = Replica(overrides, is_durable=is_durable)
    replica.state(epoch=1)
    return replica


def refused(action: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as info:
        action()
    return info.value.code


class TestHighWatermark:
    def test_it_is_what_the_slowest_in_sync_replica_has(self) -> None:
        replica = leading()
        replica.append()
        replica.append()
        assert replica.partition.high_watermark == 0
        assert replica.partition.read(0, 1000) is None
        replica.fetched(2, 2)
        assert replica.partition.high_watermark == 0
        replica.fetched(3, 1)
        assert replica.partition.high_watermark == 1
        assert replica.told == [ErrorCode.NONE]
        replica.fetched(3, 2)
        assert replica.partition.high_watermark == 2
        assert replica.told == [ErrorCode.NONE] * 2
        found = replica.partition.read(0, 1000)
        assert found is not None
        assert found.next_offset == 2

    def test_readers_see_nothing_beyond_it(self) -> None:
        replica = leading()
        for _ in range(3):
            replica.append()
        replica.fetched(2, 3)
        replica.fetched(3, 1)
        found = replica.partition.read(0, 1000)
        assert found is not None
        assert found.next_offset == 1
        for_follower = replica.partition.read_to_end(1, 1000)
        assert for_follower is not None
        assert for_follower.next_offset == 3

    def test_it_never_goes_back(self) -> None:
        replica = leading()
        replica.append()
        replica.fetched(2, 1)
        replica.fetched(3, 1)
        replica.fetched(3, 0)
        assert replica.partition.high_watermark == 1

    def test_on_durable_topics_the_leader_counts_by_what_it_flushed(self) -> None:
        replica = leading(is_durable=True)
        replica.append()
        replica.fetched(2, 1)
        replica.fetched(3, 1)
        assert replica.partition.high_watermark == 0
        replica.flusher.let_go()
        assert replica.partition.high_watermark == 1
        assert replica.told == [ErrorCode.NONE]

    def test_a_pending_expansion_counts_already_and_a_pending_shrink_not_yet(self) -> None:
        replica = leading()
        replica.state(isr=(1, 2))
        replica.fetched(3, 0)
        assert replica.proposed == [replica.partition]
        del replica.alive[3]  # fenced meanwhile: it would not be asked for any more
        replica.append()
        replica.fetched(2, 1)
        assert replica.partition.high_watermark == 0, "3 may be in sync by now"
        replica.alive[3] = 103
        replica.state(isr=(1, 2, 3))
        replica.fetched(3, 1)
        assert replica.partition.high_watermark == 1
        replica.append()
        replica.fetched(2, 2)
        replica.pass_ms(40_000)
        replica.fetched(2, 2)
        consider_shrinking(replica.partition)
        assert replica.partition.followers is not None
        assert replica.partition.followers.pending_isr == (1, 2)
        assert replica.partition.high_watermark == 1, "3 is in sync until the controller says otherwise"
        replica.state(isr=(1, 2))
        assert replica.partition.high_watermark == 2

    def test_no_more_replicas_are_asked_for_than_there_are(self) -> None:
        replica = leading({"min.insync.replicas": "9"})
        replica.partition.check_min_isr()
        replica.state(isr=(1, 2))
        assert refused(replica.partition.check_min_isr) is ErrorCode.NOT_ENOUGH_REPLICAS

    def test_it_does_not_move_below_min_insync_replicas(self) -> None:
        replica = leading({"min.insync.replicas": "2"})
        replica.append()
        replica.state(isr=(1,))
        assert replica.told == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
        assert replica.partition.high_watermark == 0
        assert refused(replica.partition.check_min_isr) is ErrorCode.NOT_ENOUGH_REPLICAS
        replica.append()
        assert replica.partition.high_watermark == 0
        replica.fetched(2, 2)
        replica.state(isr=(1, 2))
        assert replica.partition.high_watermark == 2

    def test_alone_in_sync_a_leader_goes_on(self) -> None:
        replica = leading()
        replica.state(isr=(1,))
        replica.append()
        assert replica.partition.high_watermark == 1


class TestRoles:
    def test_whoever_waits_when_leadership_ends_is_told(self) -> None:
        replica = leading()
        replica.append()
        parked, tail = Told(), Told()
        replica.partition.waiters[parked] = None
        replica.partition.tail_waiters[tail] = None
        replica.state(leader=2, epoch=2)
        assert replica.told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert parked.count == 1
        assert tail.count == 1
        assert refused(replica.append) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert refused(lambda: replica.fetched(3, 1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_older_metadata_changes_nothing(self) -> None:
        replica = leading()
        replica.state(leader=2, epoch=2)
        replica.partition.apply_state(PartitionState(0, (1, 2, 3), 1, 1, (1, 2, 3), replica.partition.partition_epoch))
        assert not replica.partition.is_leader
        assert replica.partition.leader_epoch == 2

    def test_without_the_lease_nothing_is_appended(self) -> None:
        replica = Replica()
        may_lead = True
        replica.host.lease = lambda: may_lead
        replica.state(epoch=1)
        replica.append()
        may_lead = False
        assert refused(replica.append) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert replica.partition.log.log_end_offset == 1

    def test_epochs_are_fenced_on_both_sides(self) -> None:
        replica = leading()
        assert refused(lambda: replica.partition.check_leader_epoch(0)) is ErrorCode.FENCED_LEADER_EPOCH
        assert refused(lambda: replica.partition.check_leader_epoch(2)) is ErrorCode.UNKNOWN_LEADER_EPOCH
        replica.partition.check_leader_epoch(1)

    def test_a_stranger_is_no_follower(self) -> None:
        replica = leading()
        replica.partition.check_follower(2, 1)
        assert refused(lambda: replica.partition.check_follower(4, 1)) is ErrorCode.UNKNOWN_LEADER_EPOCH
        assert refused(lambda: replica.partition.check_follower(4, -1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_a_broker_of_an_earlier_life_is_not_believed(self) -> None:
        replica = leading()
        replica.append()
        replica.alive[2] = 202
        assert refused(lambda: replica.fetched(2, 1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_a_leader_that_does_not_know_its_log_says_nothing_of_epochs(self) -> None:
        replica = leading()
        replica.partition.log.offline = OSError(5, "it could not be opened")
        with pytest.raises(LogOffline):
            replica.partition.end_of_epoch(0)

    def test_epochs_end_where_the_next_leader_took_over_although_it_wrote_nothing(self) -> None:
        replica = leading()
        replica.append()
        replica.state(epoch=5)
        assert replica.partition.epoch_start_offset == 1
        assert replica.partition.end_of_epoch(5) == (5, 1)
        assert replica.partition.end_of_epoch(3) == (1, 1)
        assert replica.partition.end_of_epoch(1) == (1, 1)
        assert replica.partition.end_of_epoch(0) == (0, 0)
        replica.append()
        assert replica.partition.end_of_epoch(5) == (5, 2)
        assert replica.partition.end_of_epoch(3) == (1, 1)

    def test_a_new_leader_forgets_what_followers_had(self) -> None:
        replica = leading()
        replica.append()
        replica.fetched(2, 1)
        replica.fetched(3, 1)
        replica.state(epoch=2)
        replica.append()
        assert replica.partition.high_watermark == 1
        replica.fetched(2, 2)
        assert replica.partition.high_watermark == 1, "3 has not shown itself in this epoch"
        replica.fetched(3, 2)
        assert replica.partition.high_watermark == 2

    def test_appends_wake_followers_and_only_the_high_watermark_wakes_consumers(self) -> None:
        replica = leading()
        consumer, follower = Told(), Told()
        replica.partition.waiters[consumer] = None
        replica.partition.tail_waiters[follower] = None
        replica.append()
        assert (consumer.count, follower.count) == (0, 1)
        replica.fetched(2, 1)
        replica.fetched(3, 1)
        assert (consumer.count, follower.count) == (1, 1)


class TestWaiting:
    def test_whoever_asks_a_deposed_leader_is_told_at_once_and_is_in_nobodys_way_later(self) -> None:
        replica = leading()
        for _ in range(3):
            replica.append()
        replica.state(leader=2, epoch=2)
        early: list[ErrorCode] = []
        replica.partition.when_committed(3, early.append)
        assert early == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        replica.partition.truncate_to(1)
        replica.state(leader=1, epoch=3)
        late: list[ErrorCode] = []
        replica.partition.when_committed(1, late.append)
        replica.fetched(2, 1)
        assert late == []
        replica.fetched(3, 1)
        assert late == [ErrorCode.NONE]


class TestInSyncReplicas:
    def test_one_that_keeps_pace_stays_although_the_log_is_always_ahead(self) -> None:
        replica = leading()
        for _ in range(20):
            replica.append()
            end = replica.partition.log.log_end_offset
            replica.pass_ms(10_000)
            replica.fetched(2, end - 1)
            replica.fetched(3, end - 1)
            consider_shrinking(replica.partition)
        assert replica.proposed == []

    def test_one_that_falls_behind_is_left_out(self) -> None:
        replica = leading()
        replica.append()
        replica.fetched(2, 1)
        replica.pass_ms(30_000)
        consider_shrinking(replica.partition)
        assert replica.proposed == []
        replica.pass_ms(1)
        consider_shrinking(replica.partition)
        change = change_of(replica.partition)
        assert change is not None
        assert change == IsrChange(TOPIC_ID, 0, 1, 0, (ReplicaEpoch(1, 101), ReplicaEpoch(2, 102)))
        consider_shrinking(replica.partition)
        assert len(replica.proposed) == 1, "one change at a time"

    def test_idle_followers_are_not_late_with_the_first_record_after_a_long_time(self) -> None:
        replica = leading()
        replica.fetched(2, 0)
        replica.fetched(3, 0)
        for _ in range(10):
            replica.pass_ms(15_000)
            consider_shrinking(replica.partition)
        replica.append()
        replica.pass_ms(1)
        consider_shrinking(replica.partition)
        assert replica.proposed == []

    @pytest.mark.parametrize("reason", ["fenced", "behind", "another life", "pending", "before the epoch's start"])
    def test_who_may_not_join(self, reason: str) -> None:
        replica = leading()
        replica.append()
        replica.state(isr=(1, 2))
        replica.fetched(2, 1)
        if reason == "before the epoch's start":
            replica.append()
            replica.state(isr=(1, 2), epoch=2)
            assert replica.partition.high_watermark == 1
            replica.fetched(3, 1)
            assert replica.proposed == []
            replica.fetched(3, 2)
        elif reason == "fenced":
            del replica.alive[3]
            replica.fetched(3, 1)
            assert replica.proposed == []
            replica.alive[3] = 103
            replica.fetched(3, 1)
        elif reason == "behind":
            replica.fetched(3, 0)
            assert replica.proposed == []
            replica.fetched(3, 1)
        elif reason == "another life":
            replica.alive[3] = 99  # what we know is older than what it says
            replica.fetched(3, 1)
            assert replica.proposed == []
            replica.alive[3] = 103
            replica.fetched(3, 1)
        else:
            replica.fetched(3, 1)
            replica.fetched(3, 1)
        assert replica.proposed == [replica.partition]

    def answer(self, replica: Replica, code: ErrorCode = ErrorCode.NONE, epoch: int = 1) -> bool:
        change = change_of(replica.partition)
        assert change is not None
        isr = tuple(one.broker_id for one in change.new_isr)
        answer = IsrAnswer(TOPIC_ID, 0, code, 1, epoch, isr, change.partition_epoch + 1)
        return take_answer(replica.partition, change, answer)

    def proposing(self) -> Replica:
        replica = leading()
        replica.state(isr=(1, 2))
        replica.fetched(3, 0)
        return replica

    def test_what_the_controller_agrees_to_holds_at_once(self) -> None:
        replica = self.proposing()
        assert self.answer(replica)
        assert replica.partition.isr == (1, 2, 3)
        assert replica.partition.partition_epoch == 2
        assert change_of(replica.partition) is None

    def test_who_joins_does_so_in_the_life_that_has_caught_up(self) -> None:
        """It came back with an empty disk while the controller was away: the controller is to refuse it."""
        replica = self.proposing()
        replica.alive[3] = 203
        replica.partition.follower_fetched(3, 0, 0, replica.host.now_ms(), 203)
        replica.alive[1], replica.alive[2] = 201, 202
        replica.partition.follower_fetched(2, 0, 0, replica.host.now_ms(), 202)
        change = change_of(replica.partition)
        assert change is not None
        assert change.new_isr == (ReplicaEpoch(1, 201), ReplicaEpoch(2, 202), ReplicaEpoch(3, 103))
        assert self.answer(replica, ErrorCode.INELIGIBLE_REPLICA)
        replica.pass_ms(1000)
        replica.partition.consider_returns()
        change = change_of(replica.partition)
        assert change is not None
        assert change.new_isr[2] == ReplicaEpoch(3, 203)

    def test_a_refusal_is_final_for_a_while(self) -> None:
        replica = self.proposing()
        assert self.answer(replica, ErrorCode.INELIGIBLE_REPLICA)
        assert replica.partition.isr == (1, 2)
        replica.fetched(3, 0)
        assert len(replica.proposed) == 1
        replica.pass_ms(1000)
        replica.fetched(3, 0)
        assert len(replica.proposed) == 2

    def test_what_was_decided_otherwise_stays_pending_until_the_metadata_comes(self) -> None:
        replica = self.proposing()
        assert self.answer(replica, ErrorCode.INVALID_UPDATE_VERSION)
        assert change_of(replica.partition) is not None
        replica.state(isr=(1, 2))
        assert change_of(replica.partition) is None

    def test_an_answer_that_is_slower_than_the_metadata_says_nothing(self) -> None:
        replica = self.proposing()
        change = change_of(replica.partition)
        assert change is not None
        replica.state(isr=(1,))
        assert take_answer(replica.partition, change, IsrAnswer(TOPIC_ID, 0, ErrorCode.NONE, 1, 1, (1, 2, 3), 2))
        assert replica.partition.isr == (1,)

    def test_the_metadata_of_a_change_that_was_answered_leaves_the_next_one_pending(self) -> None:
        """The answer came first, and by the time the metadata says the same, another follower has asked to return."""
        replica = leading()
        replica.state(isr=(1,))
        replica.append()
        replica.fetched(2, 1)
        assert self.answer(replica)  # (1, 2), in an epoch that the metadata has not spoken of
        replica.append()
        replica.fetched(3, 1)  # all that is committed
        asked = change_of(replica.partition)
        assert asked is not None
        assert [one.broker_id for one in asked.new_isr] == [1, 2, 3]
        late = PartitionState(0, (1, 2, 3), 1, 1, (1, 2), replica.partition.partition_epoch)
        replica.partition.apply_state(late)
        assert change_of(replica.partition) == asked
        # The controller may have taken 3 in by now, and elect it next.
        replica.fetched(2, 2)
        assert replica.partition.high_watermark == 1
        assert self.answer(replica)
        assert replica.partition.high_watermark == 1
        replica.fetched(3, 2)
        assert replica.partition.high_watermark == 2

    def test_fewer_count_only_when_the_metadata_says_so(self) -> None:
        """The controller knows of a new minimum by which the one that leaves may lead next; this leader does not."""
        replica = leading()
        replica.state(isr=(1, 2))
        replica.append()
        replica.pass_ms(31_000)
        consider_shrinking(replica.partition)
        assert self.answer(replica)
        assert replica.partition.high_watermark == 0
        replica.partition.apply_config(TopicConfig.resolve({"min.insync.replicas": "2"}, replica.broker))
        replica.state(isr=(1,))
        assert replica.partition.high_watermark == 0
        assert replica.told == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]

    def test_any_other_error_is_asked_again(self) -> None:
        replica = self.proposing()
        assert not self.answer(replica, ErrorCode.UNKNOWN_SERVER_ERROR)
        assert not self.answer(replica, ErrorCode.NOT_CONTROLLER)


class TestDisowning:
    """Broker 3 cannot store what it is sent."""

    def full(self, offset: int = 1) -> Replica:
        """It holds one record of three and has left; broker 2 has them all."""
        replica = leading()
        for _ in range(3):
            replica.append()
        replica.fetched(3, offset)
        go_on_without(replica.partition, 3, offset)
        assert self.pending(replica) == (1, 2)
        replica.state(isr=(1, 2))
        replica.fetched(2, 3)
        replica.proposed.clear()
        return replica

    def pending(self, replica: Replica) -> tuple[int, ...] | None:
        assert replica.partition.followers is not None
        return replica.partition.followers.pending_isr

    def looks(self, replica: Replica) -> bool:
        """Whether its return is asked for."""
        replica.partition.consider_returns()
        return self.pending(replica) == (1, 2, 3)

    def return_of(self, replica: Replica) -> None:
        replica.fetched(2, replica.partition.log.log_end_offset)
        replica.fetched(3, replica.partition.log.log_end_offset)
        assert self.looks(replica)
        replica.state(isr=(1, 2, 3))

    def leaves_again(self, replica: Replica) -> None:
        offset = replica.partition.log.log_end_offset
        replica.append()
        go_on_without(replica.partition, 3, offset)
        replica.state(isr=(1, 2))
        replica.fetched(2, offset + 1)

    def test_the_high_watermark_goes_on_without_it(self) -> None:
        replica = self.full()
        assert replica.partition.high_watermark == 3
        replica.fetched(3, 3)  # it had room for a moment, and was at the end of the log
        replica.append()
        replica.fetched(2, 4)
        assert replica.partition.high_watermark == 4

    def test_a_return_that_was_asked_for_before_is_withdrawn(self) -> None:
        """The controller was away, so the question is asked again; by then the follower has found its log damaged."""
        replica = leading()
        for _ in range(3):
            replica.append()
        replica.state(isr=(1, 2))
        replica.fetched(2, 1)
        replica.fetched(3, 1)
        assert self.pending(replica) == (1, 2, 3)
        go_on_without(replica.partition, 3, 0)
        change = change_of(replica.partition)
        assert change is not None
        assert [one.broker_id for one in change.new_isr] == [1, 2]
        # It may be a member by an earlier question whose answer was lost, so it counts until this one is answered.
        replica.fetched(2, 3)
        assert replica.partition.high_watermark == 1
        answer = IsrAnswer(TOPIC_ID, 0, ErrorCode.NONE, 1, 1, (1, 2), change.partition_epoch)
        assert take_answer(replica.partition, change, answer)
        assert self.pending(replica) is None
        replica.fetched(2, 3)
        replica.partition.apply_config(replica.partition.config)
        assert replica.partition.high_watermark == 3

    def test_it_does_not_return_with_what_it_had_however_long_it_waits(self) -> None:
        replica = leading({"min.insync.replicas": "3"})
        for _ in range(3):
            replica.append()
        replica.fetched(2, 1)
        replica.fetched(3, 1)
        go_on_without(replica.partition, 3, 1)
        replica.state(isr=(1, 2))
        assert replica.partition.high_watermark == 1, "what it holds is all that is committed"
        replica.proposed.clear()
        for _ in range(5):
            replica.pass_ms(100_000)
            replica.fetched(3, 1)
            assert not self.looks(replica)
        replica.fetched(3, 2)
        assert not self.looks(replica), "one of the two that it could not store"
        replica.fetched(3, 3)
        assert self.looks(replica)

    def test_it_returns_when_it_has_caught_up_and_a_second_has_passed(self) -> None:
        replica = self.full()
        replica.pass_ms(999)
        replica.fetched(3, 3)
        assert not self.looks(replica)
        replica.pass_ms(1)
        assert self.looks(replica)

    def test_the_pause_doubles_up_to_a_minute_and_is_forgiven(self) -> None:
        replica = self.full()
        pauses: list[int] = []
        for _ in range(8):
            replica.fetched(3, replica.partition.log.log_end_offset)
            waited_ms = 0
            while not self.looks(replica):
                replica.pass_ms(500)
                waited_ms += 500
            pauses.append(waited_ms)
            self.return_of(replica)
            self.leaves_again(replica)
        assert pauses == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]
        replica.pass_ms(60_000)
        self.return_of(replica)
        replica.pass_ms(60_001)
        self.leaves_again(replica)
        replica.pass_ms(1000)
        self.return_of(replica)

    def test_tries_that_store_nothing_start_the_pause_again_and_do_not_lengthen_it(self) -> None:
        replica = self.full()
        for _ in range(20):
            replica.pass_ms(500)
            go_on_without(replica.partition, 3, 1)
        replica.fetched(3, 3)
        replica.pass_ms(999)
        assert not self.looks(replica)
        replica.pass_ms(1)
        assert self.looks(replica)

    def test_another_life_of_the_broker_is_no_way_around_it(self) -> None:
        replica = self.full()
        replica.alive[3] = 203
        replica.partition.follower_fetched(3, 3, 0, replica.host.now_ms(), 203)
        assert not self.looks(replica)
        replica.pass_ms(1000)
        assert self.looks(replica)

    def test_one_whose_log_went_offline_returns_with_everything(self) -> None:
        replica = self.full(-1)
        replica.pass_ms(1000)
        assert not self.looks(replica)
        replica.fetched(3, 3)
        assert self.looks(replica)

    @pytest.mark.parametrize(
        ("offset", "said"),
        [
            (2, "broker 3 cannot store records from offset 2 on"),
            (1, "broker 3 has no intact records from offset 1 on"),
            (-1, "broker 3 cannot use its log"),
        ],
    )
    def test_a_full_disk_is_not_called_damage(self, caplog: pytest.LogCaptureFixture, offset: int, said: str) -> None:
        replica = leading()
        for _ in range(3):
            replica.append()
        replica.fetched(3, 2)
        for _ in range(3):
            go_on_without(replica.partition, 3, offset)
        assert caplog.messages == [f"t-0: {said}; requesting an ISR without it"]
        assert replica.proposed == [replica.partition]

    def test_of_strangers_and_where_it_does_not_lead_nothing_follows(self) -> None:
        replica = leading()
        go_on_without(replica.partition, 7, 0)
        replica.state(leader=2, epoch=2)
        go_on_without(replica.partition, 3, 0)
        assert replica.proposed == []


class TestKeeper:
    @pytest.mark.parametrize(("said_again_after_s", "lines"), [(600.0, 1), (0.0, 4)])
    async def test_a_return_is_told_once_a_broker_and_waiting_now_and_then(
        self,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        said_again_after_s: float,
        lines: int,
    ) -> None:
        monkeypatch.setattr(isr, "SAID_AGAIN_AFTER_S", said_again_after_s)
        caplog.set_level(logging.INFO)
        replicas = [leading() for _ in range(3)]
        tries = 0
        settled = asyncio.Event()

        async def alter(changes: Sequence[IsrChange]) -> list[IsrAnswer]:
            nonlocal tries
            tries += 1
            if tries < 5:
                raise ApiError(ErrorCode.NOT_CONTROLLER)
            settled.set()
            return [IsrAnswer(TOPIC_ID, one.index, ErrorCode.INELIGIBLE_REPLICA, 1, 1, (1, 2), 1) for one in changes]

        loop = asyncio.get_running_loop()
        keeper = IsrKeeper([one.partition for one in replicas], replicas[0].host, alter, loop)
        for index, replica in enumerate(replicas):
            replica.partition.index = index
            replica.host.events = Listening(isr_proposed=keeper.ask_for)
            replica.state(isr=(1, 2))
            replica.fetched(3, 0)
        await asyncio.wait_for(settled.wait(), 30)
        returns = [line for line in caplog.messages if "caught up" in line]
        assert returns == ["broker 3 has caught up with 3 partitions: requesting its return to the in-sync replicas"]
        waits = [line for line in caplog.messages if "must wait" in line]
        assert waits == ["3 changes of in-sync replicas must wait: NOT_CONTROLLER"] * lines
        keeper.stop()

    async def test_a_turn_is_one_request_and_failures_are_tried_again(self) -> None:
        first, second = leading(), leading()
        first.state(isr=(1, 2))
        second.state(isr=(1, 2))
        asked: list[list[IsrChange]] = []
        settled = asyncio.Event()
        second.partition.index = 1

        async def alter(changes: Sequence[IsrChange]) -> list[IsrAnswer]:
            asked.append(list(changes))
            if len(asked) == 1:
                raise ApiError(ErrorCode.NOT_CONTROLLER)
            if len(asked) == 3:
                settled.set()
            return [
                IsrAnswer(
                    change.topic_id,
                    change.index,
                    ErrorCode.UNKNOWN_SERVER_ERROR if len(asked) == 2 and change.index == 1 else ErrorCode.NONE,
                    1,
                    1,
                    (1, 2, 3),
                    change.partition_epoch + 1,
                )
                for change in changes
            ]

        loop = asyncio.get_running_loop()
        keeper = IsrKeeper([first.partition, second.partition], first.host, alter, loop)
        first.host.events = second.host.events = Listening(isr_proposed=keeper.ask_for)
        first.fetched(3, 0)
        second.fetched(3, 0)
        await asyncio.wait_for(settled.wait(), 30)
        assert [[change.index for change in changes] for changes in asked] == [[0, 1], [0, 1], [1]]
        assert first.partition.isr == second.partition.isr == (1, 2, 3)
        keeper.stop()

    async def test_what_falls_behind_is_noticed_without_a_fetch(self) -> None:
        replica = leading()
        replica.host.lag_time_max_ms = 20
        asked = asyncio.Event()

        async def alter(changes: Sequence[IsrChange]) -> list[IsrAnswer]:
            asked.set()
            return [IsrAnswer(TOPIC_ID, 0, ErrorCode.NONE, 1, 1, (1,), changes[0].partition_epoch + 1)]

        keeper = IsrKeeper([replica.partition], replica.host, alter, asyncio.get_running_loop())
        replica.host.events = Listening(isr_proposed=keeper.ask_for)
        keeper.start()
        replica.append()
        replica.pass_ms(21)
        await asyncio.wait_for(asked.wait(), 30)
        await asyncio.sleep(0)
        keeper.stop()
        assert replica.partition.followers is not None
        assert replica.partition.followers.pending_isr == (1,)
        replica.state(isr=(1,))
        assert replica.told == [ErrorCode.NONE]

    async def test_many_partitions_are_looked_at_some_a_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(isr, "LOOKED_AT_PER_TURN", 2)
        replicas = [leading() for _ in range(5)]
        looked_at: list[Partition] = []
        monkeypatch.setattr(isr, "consider_shrinking", looked_at.append)

        async def alter(changes: Sequence[IsrChange]) -> list[IsrAnswer]:
            return []

        partitions = [one.partition for one in replicas]
        keeper = IsrKeeper(partitions, replicas[0].host, alter, asyncio.get_running_loop())
        replicas[0].host.events = Listening(isr_proposed=keeper.ask_for)
        keeper._tick()
        counts = [len(looked_at)]
        for _ in range(2):
            await asyncio.sleep(0)
            counts.append(len(looked_at))
        assert counts == [2, 4, 5]
        assert looked_at == partitions
        keeper._shrink_at_s = 0.0
        keeper._tick()
        keeper.stop()
        await asyncio.sleep(0)
        assert len(looked_at) == 7


class TestFollowing:
    def copy(self, leader: Replica, offset: int = 0) -> bytes:
        found = leader.partition.read_to_end(offset, 1 << 20)
        assert found is not None
        return found.read()

    def following(self, *, is_durable: bool = False) -> tuple[Replica, Replica]:
        leader = leading(is_durable=is_durable)
        follower = Replica(node_id=2, is_durable=is_durable)
        follower.state(epoch=1)
        return leader, follower

    def test_what_was_fetched_is_there_and_visible_up_to_the_leaders_high_watermark(self) -> None:
        leader, follower = self.following()
        leader.append()
        leader.append()
        parked = Told()
        follower.partition.waiters[parked] = None
        follower.partition.append_fetched(self.copy(leader), 1, 1, 0, NOW_MS)
        assert follower.partition.log.log_end_offset == 2
        assert follower.partition.claimed_offset() == 2
        assert follower.partition.high_watermark == 1
        assert parked.count == 1
        found = follower.partition.read(0, 1000)
        assert found is not None
        assert found.next_offset == 1
        follower.partition.append_fetched(b"", 1, 9, 1, NOW_MS)
        assert follower.partition.high_watermark == 2, "no more than it has"
        assert follower.partition.log.log_start_offset == 1
        assert follower.partition.end_of_epoch(1) == (1, 2)

    def test_on_durable_topics_it_claims_what_it_flushed(self) -> None:
        leader, follower = self.following(is_durable=True)
        leader.append()
        claimed: list[int] = []
        follower.partition.when_claimed = lambda partition: claimed.append(partition.claimed_offset())
        follower.partition.append_fetched(self.copy(leader), 1, 0, 0, NOW_MS)
        assert follower.partition.claimed_offset() == 0
        assert claimed == []
        follower.flusher.let_go()
        assert claimed == [1]

    def test_damage_is_refused_and_nothing_written(self) -> None:
        leader, follower = self.following()
        leader.append()
        data = bytearray(self.copy(leader))
        data[-1] ^= 1
        with pytest.raises(CorruptBatch):
            follower.partition.append_fetched(data, 1, 0, 0, NOW_MS)
        assert follower.partition.log.log_end_offset == 0

    def test_what_was_fetched_in_another_role_comes_too_late(self) -> None:
        leader, follower = self.following()
        leader.append()
        data = self.copy(leader)
        follower.state(leader=3, epoch=2)
        assert (
            refused(lambda: follower.partition.append_fetched(data, 1, 0, 0, NOW_MS)) is ErrorCode.FENCED_LEADER_EPOCH
        )
        follower.state(leader=2, epoch=3)
        assert (
            refused(lambda: follower.partition.append_fetched(data, 3, 0, 0, NOW_MS)) is ErrorCode.FENCED_LEADER_EPOCH
        )

    def test_what_the_new_leader_does_not_have_is_cut(self) -> None:
        old, new = self.following()
        old.append(b"shared")
        new.partition.append_fetched(self.copy(old), 1, 0, 0, NOW_MS)
        old.append(b"lost")
        new.state(leader=2, epoch=2)
        new.append(b"kept")
        old.state(leader=2, epoch=2)
        epoch, end = new.partition.end_of_epoch(1)
        assert (epoch, end) == (1, 1)
        old.partition.truncate_to(truncation_point(old.partition, epoch, end))
        assert old.partition.log.log_end_offset == 1
        old.partition.append_fetched(self.copy(new, 1), 2, 0, 0, NOW_MS)
        assert self.copy(old) == self.copy(new)
        assert old.partition.log.epochs.entries() == new.partition.log.epochs.entries()

    @pytest.mark.parametrize("is_whole", [False, True])
    def test_a_cut_is_told_to_whoever_waits_behind_it(self, is_whole: bool) -> None:
        leader, follower = self.following()
        leader.append()
        leader.append()
        follower.partition.append_fetched(self.copy(leader), 1, 2, 0, NOW_MS)
        parked, tail = Told(), Told()
        follower.partition.waiters[parked] = None
        follower.partition.tail_waiters[tail] = None
        if is_whole:
            follower.partition.truncate_fully_and_start_at(1)
        else:
            follower.partition.truncate_to(1)
        assert (parked.count, tail.count) == (1, 1)
        assert refused(lambda: follower.partition.read(2, 1000)) is ErrorCode.OFFSET_OUT_OF_RANGE

    def test_a_flush_of_what_was_cut_claims_nothing(self) -> None:
        leader, follower = self.following(is_durable=True)
        leader.append()
        claimed: list[int] = []
        follower.partition.when_claimed = lambda partition: claimed.append(partition.claimed_offset())
        follower.partition.append_fetched(self.copy(leader), 1, 0, 0, NOW_MS)
        follower.partition.truncate_to(0)
        follower.partition.append_fetched(self.copy(leader), 1, 0, 0, NOW_MS)
        follower.flusher.let_go()
        assert follower.partition.claimed_offset() == 0
        assert claimed == []
        follower.flusher.let_go()
        assert follower.partition.claimed_offset() == 1

    @pytest.mark.parametrize("leader", [2, 3])
    def test_what_a_cut_left_is_flushed_although_nothing_is_appended(self, leader: int) -> None:
        """The flush under way was made void: a leader would never commit what is left, a follower never claim it."""
        old, cut = self.following(is_durable=True)
        old.append()
        old.append()
        claimed: list[int] = []
        cut.partition.when_claimed = lambda partition: claimed.append(partition.claimed_offset())
        cut.partition.append_fetched(self.copy(old), 1, 0, 0, NOW_MS)
        cut.partition.truncate_to(1)
        cut.state(leader=leader, isr=(leader,), epoch=2)
        cut.flusher.let_go()
        assert cut.partition.log.stable_offset == 0
        cut.flusher.let_go()
        assert cut.partition.log.stable_offset == 1
        assert cut.partition.high_watermark == (1 if leader == 2 else 0)
        assert claimed == ([] if leader == 2 else [1])
        assert cut.flusher.held == []

    def test_a_flush_under_way_when_flushing_is_left_to_the_system_still_claims(self) -> None:
        """The fetch that said how far it had written was not counted by a leader that waits for its disk."""
        leader, follower = self.following(is_durable=True)
        leader.append()
        claimed: list[int] = []
        follower.partition.when_claimed = lambda partition: claimed.append(partition.claimed_offset())
        follower.partition.append_fetched(self.copy(leader), 1, 0, 0, NOW_MS)
        follower.partition.apply_config(TopicConfig.resolve({"flush.messages": NEVER}, follower.broker))
        follower.flusher.let_go()
        assert claimed == [1]

    def test_what_follows_a_cut_is_read_to_where_it_ends_and_not_to_where_the_log_ended_before(self) -> None:
        """The high watermark was below the cut, and the end of the log was known from when it was opened."""
        leader, follower = self.following()
        for _ in range(3):
            leader.append(b"a long value that nobody committed")
        partition = follower.partition
        partition.append_fetched(self.copy(leader), 1, 0, 0, NOW_MS)
        partition._end = partition.log.end_position()  # as after a restart
        partition.truncate_to(1)
        other, _ = self.following()
        other.append(b"a long value that nobody committed")
        other.append()
        other.append()
        partition.append_fetched(self.copy(other, 1), 1, 3, 0, NOW_MS)
        assert partition.high_watermark == 3
        piece = partition.read(2, 10_000)
        assert piece is not None
        assert piece.position + piece.size == partition.log.segments[0].size

    def starting_inside(self) -> tuple[Replica, Replica]:
        leader, follower = self.following()
        data = build_batch([Record(None, b"v", (), NOW_MS) for _ in range(5)])
        leader.partition.append(read_header(data), data, NOW_MS)
        leader.fetched(2, 5)
        leader.fetched(3, 5)
        leader.partition.delete_records(3)
        follower.partition.truncate_fully_and_start_at(3)
        return leader, follower

    def test_a_batch_that_begins_before_the_start_comes_whole(self) -> None:
        leader, follower = self.starting_inside()
        partition = follower.partition
        batch = batch_around_start(partition, self.copy(leader, 3))
        assert batch is not None
        cut = begin_below(partition, batch, 1, NOW_MS)
        assert cut is not None
        cut.run()
        partition.end_cut(cut)
        log = partition.log
        assert (log.log_start_offset, partition.high_watermark, log.log_end_offset) == (3, 3, 5)
        assert log.epochs.entries() == [(1, 3)]
        partition.append_fetched(b"", 1, 5, 3, NOW_MS)
        found = partition.read(3, 1000)
        assert found is not None
        assert found.next_offset == 5

    def test_only_an_empty_log_begins_inside_a_batch(self) -> None:
        leader, follower = self.starting_inside()
        partition, data = follower.partition, self.copy(leader, 3)
        assert batch_around_start(partition, b"") is None
        batch = batch_around_start(partition, data)
        assert batch is not None
        assert begin_below(partition, batch, 2, NOW_MS) is None, "sent by another leader"
        for start in (0, 5, 6):
            partition.truncate_fully_and_start_at(start)
            assert batch_around_start(partition, data) is None
            assert begin_below(partition, batch, 1, NOW_MS) is None
        partition.truncate_fully_and_start_at(0)
        partition.append_fetched(data, 1, 5, 3, NOW_MS)
        assert batch_around_start(partition, data) is None


class TestDeletedRecords:
    def test_the_low_watermark_is_that_of_the_slowest_replica_alive(self) -> None:
        replica = leading()
        replica.append()
        replica.append()
        replica.fetched(2, 2)
        replica.fetched(3, 2)
        assert replica.partition.delete_records(2) == 2
        done: list[ErrorCode] = []
        replica.partition.when_deleted(2, done.append)
        replica.fetched(2, 2, log_start=2)
        assert done == []
        assert replica.partition.low_watermark == 0
        del replica.alive[3]
        assert replica.partition.low_watermark == 2
        replica.alive[3] = 103
        replica.fetched(3, 2, log_start=2)
        assert done == [ErrorCode.NONE]


class TestBecomingDurable:
    """`flush.messages` goes to 1. A life that began after the change is trusted after a crash, so what it is counted
    with must be stable. The leader may hear of the change when such a follower has fetched already."""

    def test_what_a_follower_out_of_sync_fetched_before_does_not_bring_it_back(self) -> None:
        replica = leading()
        replica.append()
        replica.state(isr=(1, 3))
        replica.fetched(3, 1)
        del replica.alive[2]  # fenced; the leader has not heard of its new life yet
        replica.partition.follower_fetched(2, 1, 0, replica.host.now_ms(), 202)
        replica.become_durable()
        replica.alive[2] = 202
        replica.partition.consider_returns()
        assert replica.proposed == [], "it may not have flushed what it fetched"
        replica.claimed(2, 1, 202)
        assert replica.proposed == [replica.partition]

    def test_nor_does_it_count_in_sync_in_a_life_that_the_leader_has_not_heard_of(self) -> None:
        replica = leading()
        replica.append()
        replica.append()
        replica.fetched(3, 1)
        replica.partition.follower_fetched(2, 2, 0, replica.host.now_ms(), 202)
        assert replica.partition.high_watermark == 1
        replica.become_durable()
        replica.flusher.let_go()
        replica.claimed(3, 2, 103)
        assert replica.partition.high_watermark == 1, "it never goes back, and does not go on"
        replica.claimed(2, 2, 202)
        assert replica.partition.high_watermark == 2

    def test_what_it_claimed_before_counts(self) -> None:
        replica = leading()
        replica.append()
        replica.state(isr=(1, 3))
        replica.fetched(3, 1)
        del replica.alive[2]
        replica.claimed(2, 1, 202)
        replica.become_durable()
        replica.alive[2] = 202
        replica.partition.consider_returns()
        assert replica.proposed == [replica.partition], "where nobody writes it says nothing more"

    def test_an_empty_follower_has_nothing_to_claim(self) -> None:
        replica = leading()
        replica.state(isr=(1, 3))
        del replica.alive[2]
        replica.partition.follower_fetched(2, 0, 0, replica.host.now_ms(), 202)
        replica.become_durable()
        replica.alive[2] = 202
        replica.partition.consider_returns()
        assert replica.proposed == [replica.partition]

    def test_what_members_in_sync_fetched_before_goes_on_to_count(self) -> None:
        replica = leading()
        replica.append()
        replica.fetched(3, 1)
        replica.become_durable()
        replica.flusher.let_go()
        replica.claimed(2, 1, 102)
        assert replica.partition.high_watermark == 1


def test_a_follower_with_nothing_to_flush_claims_when_its_topic_becomes_durable() -> None:
    leader, follower = Replica(), Replica(node_id=2)
    leader.state()
    leader.append()
    follower.state(leader=1, isr=(1, 3))
    piece = leader.partition.log.reader.read(0, 1 << 20)
    assert piece is not None
    follower.partition.append_fetched(piece.read(), follower.partition.leader_epoch, 1, 0, NOW_MS)
    flush_blocking(follower.disk, follower.partition.log)
    claims: list[Partition] = []
    follower.partition.when_claimed = claims.append
    follower.become_durable()
    assert claims == [follower.partition]
