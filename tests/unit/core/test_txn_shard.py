"""The transaction coordinator's shard: decisions, their records, and what they look like after another load."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.shard.exchange import Outcome, Token
from penstock.core.txn.exchange import (
    NEEDS_PRODUCER_ID,
    AddReply,
    AddRequest,
    DescribeReply,
    EndReply,
    EndRequest,
    InitReply,
    InitRequest,
    ListFilter,
    ListReply,
    MarkersDue,
    VerifyReply,
)
from penstock.core.txn.settings import TransactionSettings
from penstock.core.txn.shard import PARKED_MS, PARKED_PER_ID, TransactionShard
from penstock.core.txn.states import State
from penstock.core.txn.transaction import LARGEST_EPOCH
from penstock.model.errors import ErrorCode

WALL_MS = 1_700_000_000_000
TIMEOUT_MS = 10_000
P0, P1, P2 = ("orders", 0), ("orders", 1), ("bills", 0)


class World:
    """A shard, its log, and a broker that appends what it decides."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.now_ms = 0
        self.next_producer_id = 1000
        self.markers: list[MarkersDue] = []
        self.notices: list[str] = []
        self.refuses_appends = False
        self.wall_ahead_ms = WALL_MS
        self.load()

    def load(self) -> None:
        self.shard = TransactionShard(self.settings)
        self.shard.wall.ahead_ms = self.wall_ahead_ms
        for key, value in self.log:
            record = self.shard.decode(key, value)
            assert record is not None
            self.shard.replay(record)
        self.markers.clear()
        self.apply(self.shard.loaded(self.now_ms))

    def apply(self, out: Outcome) -> list[tuple[Token, object]]:
        if out.records and self.refuses_appends:
            return []
        for record in out.records:
            self.log.append((record.encode_key(), record.encode_value()))
            decoded = self.shard.decode(*self.log[-1])
            assert decoded == record
            self.shard.replay(record)
        self.markers += (deed for deed in out.deeds if isinstance(deed, MarkersDue))
        self.notices += out.notices
        return out.replies

    def ask(self, operation: Callable[[Token], Outcome]) -> object:
        """A request that waits is asked for until its time is over."""
        replies = self.apply(operation(7))
        if not replies:
            self.now_ms += PARKED_MS
            replies = self.apply(self.shard.tick(self.now_ms))
        assert [token for token, _ in replies] == [7]
        return replies[0][1]

    def init(self, name: str = "t", **options: int) -> InitReply:
        request = InitRequest(name, options.pop("timeout_ms", TIMEOUT_MS), **options)  # type: ignore[arg-type]
        reply = self.ask(lambda token: self.shard.init_producer_id(request, token, self.now_ms))
        if reply is NEEDS_PRODUCER_ID:
            self.next_producer_id += 1
            request = request._replace(spare_producer_id=self.next_producer_id)
            reply = self.ask(lambda token: self.shard.init_producer_id(request, token, self.now_ms))
        assert isinstance(reply, InitReply)
        return reply

    def add(self, producer: InitReply | EndReply, *partitions: tuple[str, int], version: int = 0) -> ErrorCode:
        request = AddRequest("t", producer.producer_id, producer.epoch, frozenset(partitions), version)
        reply = self.ask(lambda token: self.shard.add_partitions(request, token, self.now_ms))
        assert isinstance(reply, AddReply)
        return reply.code

    def verify(self, producer: InitReply, *partitions: tuple[str, int]) -> VerifyReply:
        request = AddRequest("t", producer.producer_id, producer.epoch, frozenset(partitions))
        reply = self.ask(lambda token: self.shard.verify_partitions(request, token, self.now_ms))
        assert isinstance(reply, VerifyReply)
        return reply

    def end(self, producer: InitReply | EndReply, *, commit: bool = True, version: int = 0) -> EndReply:
        request = EndRequest("t", producer.producer_id, producer.epoch, commit, version)
        reply = self.ask(lambda token: self.shard.end(request, token, self.now_ms))
        if reply is NEEDS_PRODUCER_ID:
            self.next_producer_id += 1
            request = request._replace(spare_producer_id=self.next_producer_id)
            reply = self.ask(lambda token: self.shard.end(request, token, self.now_ms))
        assert isinstance(reply, EndReply)
        return reply

    def write_markers(self) -> None:
        due, self.markers = self.markers, []
        for one in due:
            self.apply(self.shard.markers_written(one, one.partitions, self.now_ms))

    def tick_now(self) -> list[tuple[Token, object]]:
        """Does everything that is due, as the host does."""
        replies: list[tuple[Token, object]] = []
        for _ in range(100):
            deadline_ms = self.shard.next_deadline()
            if deadline_ms is None or deadline_ms > self.now_ms + 1:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            replies += self.apply(self.shard.tick(self.now_ms))
        return replies

    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (deadline_ms := self.shard.next_deadline()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.apply(self.shard.tick(self.now_ms))
        self.now_ms = end_ms

    @property
    def state(self) -> State:
        return self.shard.transactions["t"].state


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_from_its_first_partition_to_its_last_marker(commit: bool, version: int) -> None:
    world = World()
    producer = world.init()
    assert producer == InitReply(ErrorCode.NONE, 1001, 0)
    assert world.add(producer, P0, P1, version=version) is ErrorCode.NONE
    assert world.add(producer, P2, version=version) is ErrorCode.NONE
    ended = world.end(producer, commit=commit, version=version)
    epoch = 1 if version == 2 else 0
    assert ended == EndReply(ErrorCode.NONE, 1001, epoch)
    assert world.markers == [MarkersDue("t", 1001, epoch, commit, version, frozenset((P0, P1, P2)))]
    due = world.markers[0]
    world.apply(world.shard.markers_written(due, frozenset((P0, P2)), 0))
    assert world.state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
    world.apply(world.shard.markers_written(due, frozenset((P1,)), 0))
    assert world.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert not world.shard.transactions["t"].partitions


@pytest.mark.parametrize("version", [0, 2])
def test_what_is_asked_while_a_transaction_ends_is_to_be_asked_again(version: int) -> None:
    world = World()
    producer = world.init()
    world.add(producer, P0, version=version)
    ended = world.end(producer, version=version)
    assert world.init().code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.add(ended, P1, version=version) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.end(producer, version=version).code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.end(producer, commit=False, version=version).code is ErrorCode.INVALID_TXN_STATE
    world.write_markers()
    assert world.add(ended, P1, version=version) is ErrorCode.NONE


def test_the_same_end_again_is_confirmed_and_the_other_one_refused() -> None:
    world = World()
    for version in (0, 2):
        producer = world.init()
        world.add(producer, P0, version=version)
        ended = world.end(producer, version=version)
        world.write_markers()
        assert world.end(producer, version=version) == ended
        assert world.end(producer, commit=False, version=version).code is ErrorCode.INVALID_TXN_STATE


def test_a_late_end_does_not_end_the_next_transaction() -> None:
    """KAFKA-17754: under version 2 the epoch tells the two apart."""
    world = World()
    producer = world.init()
    world.add(producer, P0, version=2)
    following = world.end(producer, version=2)
    world.write_markers()
    assert world.add(following, P1, version=2) is ErrorCode.NONE
    assert world.end(producer, version=2).code is ErrorCode.PRODUCER_FENCED
    assert world.end(producer, commit=False, version=2).code is ErrorCode.PRODUCER_FENCED
    assert world.state is State.ONGOING


def test_another_producer_ends_what_the_first_left_open() -> None:
    world = World()
    first = world.init()
    world.add(first, P0)
    assert world.init().code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.state is State.PREPARE_ABORT
    assert [(one.is_commit, one.epoch) for one in world.markers] == [(False, 1)]
    assert world.init().code is ErrorCode.CONCURRENT_TRANSACTIONS
    world.write_markers()
    second = world.init()
    assert second == InitReply(ErrorCode.NONE, first.producer_id, 2)
    assert world.add(first, P0) is ErrorCode.PRODUCER_FENCED
    assert world.end(first).code is ErrorCode.PRODUCER_FENCED
    assert world.init(producer_id=first.producer_id, epoch=first.epoch).code is ErrorCode.PRODUCER_FENCED


def test_a_fence_that_cannot_be_stored_raises_no_epoch() -> None:
    """KAFKA-9666."""
    world = World()
    first = world.init()
    world.add(first, P0)
    world.refuses_appends = True
    for _ in range(3):
        world.apply(world.shard.init_producer_id(InitRequest("t", TIMEOUT_MS), 7, 0))
    world.pass_time(3 * TIMEOUT_MS)
    world.refuses_appends = False
    assert world.shard.transactions["t"].epoch == first.epoch
    world.pass_time(1_000)
    assert (world.state, world.shard.transactions["t"].epoch) == (State.PREPARE_ABORT, first.epoch + 1)


def test_a_producer_that_goes_on_after_an_error_keeps_its_id() -> None:
    """KIP-360, and the same request once more because its answer was lost (KAFKA-19367)."""
    world = World()
    first = world.init()
    again = world.init(producer_id=first.producer_id, epoch=first.epoch)
    assert again == InitReply(ErrorCode.NONE, first.producer_id, 1)
    assert world.init(producer_id=first.producer_id, epoch=first.epoch) == again
    world.load()
    assert world.init(producer_id=first.producer_id, epoch=first.epoch) == again
    assert world.init(producer_id=first.producer_id, epoch=again.epoch).epoch == 2
    assert world.init(producer_id=first.producer_id, epoch=0).code is ErrorCode.PRODUCER_FENCED
    assert world.init(producer_id=77, epoch=2).code is ErrorCode.PRODUCER_FENCED


def worn(world: World, epoch: int, **options: int) -> InitReply:
    """A producer that works with this epoch."""
    world.init(**options)
    known = world.shard.transactions["t"]
    out = Outcome()
    world.shard._store(known._replace(epoch=epoch), out)
    world.apply(out)
    return InitReply(ErrorCode.NONE, known.producer_id, epoch)


def test_used_up_epochs_bring_a_new_producer_id_at_the_beginning() -> None:
    world = World()
    old = worn(world, LARGEST_EPOCH - 1)
    fresh = world.init(producer_id=old.producer_id, epoch=old.epoch)
    assert (fresh.epoch, fresh.producer_id > old.producer_id) == (0, True)
    for _ in range(3):  # answers may be lost more than once
        assert world.init(producer_id=old.producer_id, epoch=old.epoch) == fresh
    assert world.add(old, P0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_used_up_epochs_bring_a_new_producer_id_at_the_end() -> None:
    """KAFKA-18660, KAFKA-20090: the markers have the last epoch, and the answer the new id, also the second time."""
    world = World()
    old = worn(world, LARGEST_EPOCH - 1)
    world.add(old, P0, version=2)
    ended = world.end(old, version=2)
    assert (ended.code, ended.epoch, ended.producer_id > old.producer_id) == (ErrorCode.NONE, 0, True)
    assert [(one.producer_id, one.epoch) for one in world.markers] == [(old.producer_id, LARGEST_EPOCH)]
    world.load()
    assert [(one.producer_id, one.epoch) for one in world.markers] == [(old.producer_id, LARGEST_EPOCH)]
    world.write_markers()
    assert world.end(old, version=2) == ended
    assert world.end(old, commit=False, version=2).code is ErrorCode.INVALID_TXN_STATE
    assert world.add(ended, P1, version=2) is ErrorCode.NONE


@pytest.mark.parametrize("epoch", [0, LARGEST_EPOCH - 1])
def test_the_next_transaction_begins_while_the_markers_of_this_one_are_missing(epoch: int) -> None:
    """KAFKA-18660. The client has its next epoch, or its next producer id, and may give up the next transaction."""
    world = World()
    producer = worn(world, epoch)
    world.add(producer, P0, version=2)
    following = world.end(producer, version=2)
    assert world.add(following, P1, version=2) is ErrorCode.CONCURRENT_TRANSACTIONS
    for is_commit in (False, True):
        assert world.end(following, commit=is_commit, version=2).code is ErrorCode.CONCURRENT_TRANSACTIONS
    again = world.init(producer_id=following.producer_id, epoch=following.epoch)
    assert again.code is ErrorCode.CONCURRENT_TRANSACTIONS
    late = following._replace(epoch=following.epoch + 1)
    assert world.end(late, version=2).code is ErrorCode.PRODUCER_FENCED
    assert world.add(late, P1, version=2) is ErrorCode.PRODUCER_FENCED
    world.write_markers()
    following = world.end(following, commit=False, version=2)
    assert following.code is ErrorCode.NONE
    assert world.add(following, P1, version=2) is ErrorCode.NONE


def test_a_fence_with_the_last_epoch_does_not_overflow() -> None:
    world = World()
    old = worn(world, LARGEST_EPOCH - 1)
    world.add(old, P0)
    world.init()
    assert [one.epoch for one in world.markers] == [LARGEST_EPOCH]
    world.write_markers()
    fresh = world.init()
    assert (fresh.epoch, fresh.producer_id > old.producer_id) == (0, True)


def test_a_transaction_that_is_open_for_too_long_is_aborted() -> None:
    world = World()
    producer = world.init()
    world.pass_time(5_000)
    world.add(producer, P0)
    world.pass_time(TIMEOUT_MS - 1)
    world.add(producer, P1)
    assert world.state is State.ONGOING
    world.pass_time(1)
    assert world.state is State.PREPARE_ABORT
    assert world.markers[0].partitions == frozenset((P0, P1))
    assert "timeout of 10000 ms" in world.notices[0]
    assert world.end(producer).code is ErrorCode.PRODUCER_FENCED


def test_the_time_out_counts_over_a_change_of_coordinators() -> None:
    world = World()
    world.add(world.init(), P0)
    world.pass_time(TIMEOUT_MS - 500)
    world.load()
    world.pass_time(499)
    assert world.state is State.ONGOING
    world.pass_time(1)
    assert world.state is State.PREPARE_ABORT


@pytest.mark.parametrize("is_loaded", [True, False], ids=["another coordinator", "the same coordinator"])
def test_a_clock_that_is_set_back_keeps_no_transaction_open(is_loaded: bool) -> None:
    """The beginning of a transaction is stored as a time of day, and brokers disagree about that."""
    world = World()
    producer = world.init()
    world.add(producer, P0)
    world.wall_ahead_ms = world.shard.wall.ahead_ms = WALL_MS - 5 * 86_400_000
    if is_loaded:
        world.load()
    else:
        world.add(producer, P1)
    world.pass_time(TIMEOUT_MS)
    assert world.state is State.PREPARE_ABORT


def test_a_transaction_that_is_decided_outside_never_times_out() -> None:
    world = World()
    producer = world.init(timeout_ms=1, is_decided_outside=True)
    world.add(producer, P0)
    world.pass_time(10 * 86_400_000)
    world.load()
    world.pass_time(10 * 86_400_000)
    assert world.state is State.ONGOING
    assert world.end(producer).code is ErrorCode.NONE


def test_two_phase_commit_is_refused_where_it_is_off() -> None:
    refusing = World(TransactionSettings(allows_two_phase_commit=False))
    assert refusing.init(is_decided_outside=True).code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    code = refusing.init(is_decided_outside=True, keeps_prepared=True).code
    assert code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert not refusing.shard.transactions


@pytest.mark.parametrize("is_decided_outside", [True, False])
def test_a_prepared_transaction_is_not_handed_over(is_decided_outside: bool) -> None:
    """As in Kafka 4.3. The transaction stays open: whoever has its producer id and epoch can still end it."""
    world = World()
    producer = world.init(is_decided_outside=True)
    world.add(producer, P0)
    asked = world.init(is_decided_outside=is_decided_outside, keeps_prepared=True)
    assert asked == InitReply(ErrorCode.UNSUPPORTED_VERSION)
    assert world.state is State.ONGOING
    assert world.end(producer).code is ErrorCode.NONE


def test_a_known_id_takes_up_two_phase_commit_and_drops_it() -> None:
    world = World()
    world.init()
    outside = world.init(is_decided_outside=True, timeout_ms=1)
    world.add(outside, P0)
    world.pass_time(10 * TIMEOUT_MS)
    assert world.state is State.ONGOING
    assert world.end(outside).code is ErrorCode.NONE
    world.write_markers()
    inside = world.init(timeout_ms=TIMEOUT_MS)
    world.add(inside, P0)
    world.pass_time(TIMEOUT_MS)
    assert world.state is State.PREPARE_ABORT


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("epoch", [0, LARGEST_EPOCH - 1])
def test_a_decision_from_outside_is_confirmed_each_time_that_it_is_told(epoch: int, commit: bool) -> None:
    """By (transactional id, producer id, epoch) alone, also where the end has used up the epochs of the id."""
    world = World()
    producer = worn(world, epoch, is_decided_outside=True)
    world.add(producer, P0, version=2)
    decided = world.end(producer, commit=commit, version=2)
    assert decided.code is ErrorCode.NONE
    assert world.end(producer, commit=commit, version=2).code is ErrorCode.CONCURRENT_TRANSACTIONS
    world.write_markers()
    for _ in range(2):
        assert world.end(producer, commit=commit, version=2) == decided
        world.load()
    assert world.end(producer, commit=not commit, version=2).code is ErrorCode.INVALID_TXN_STATE
    following = InitReply(ErrorCode.NONE, decided.producer_id, decided.epoch)
    assert world.add(following, P1, version=2) is ErrorCode.NONE
    assert world.shard.transactions["t"].is_decided_outside


def test_markers_are_due_again_after_a_change_of_coordinators() -> None:
    world = World()
    producer = world.init()
    world.add(producer, P0, P1)
    world.end(producer)
    due = world.markers[0]
    world.apply(world.shard.markers_written(due, frozenset((P0,)), 0))
    world.load()
    assert world.markers == [due]
    world.write_markers()
    assert world.state is State.COMPLETE_COMMIT


def test_markers_of_an_earlier_end_complete_nothing() -> None:
    world = World()
    producer = world.init()
    world.add(producer, P0, version=2)
    following = world.end(producer, version=2)
    late = world.markers[0]
    world.write_markers()
    world.add(following, P0, version=2)
    world.end(following, version=2)
    world.apply(world.shard.markers_written(late, late.partitions, 0))
    assert world.state is State.PREPARE_COMMIT


def test_a_completion_that_cannot_be_stored_is_tried_again() -> None:
    world = World()
    producer = world.init()
    world.add(producer, P0)
    world.end(producer)
    world.refuses_appends = True
    world.write_markers()
    world.pass_time(2_000)
    assert world.state is State.PREPARE_COMMIT
    world.refuses_appends = False
    world.pass_time(500)
    assert world.state is State.COMPLETE_COMMIT


def test_an_abort_without_partitions_only_raises_the_epoch() -> None:
    world = World()
    producer = world.init()
    assert world.end(producer, commit=False).code is ErrorCode.INVALID_TXN_STATE
    assert world.end(producer, version=2).code is ErrorCode.INVALID_TXN_STATE
    ended = world.end(producer, commit=False, version=2)
    assert (ended, world.markers, world.state) == (EndReply(ErrorCode.NONE, 1001, 1), [], State.COMPLETE_ABORT)
    assert world.end(producer, commit=False, version=2) == ended
    again = world.end(ended, commit=False, version=2)
    assert again.epoch == 2
    world.load()
    assert world.end(again, commit=False, version=2).epoch == 3


def test_partitions_are_verified_without_being_added() -> None:
    world = World()
    producer = world.init()
    assert world.verify(producer, P0) == VerifyReply(ErrorCode.NONE, frozenset((P0,)))
    world.add(producer, P0)
    assert world.verify(producer, P0, P1) == VerifyReply(ErrorCode.NONE, frozenset((P1,)))
    assert world.verify(producer._replace(epoch=5), P0).code is ErrorCode.PRODUCER_FENCED
    assert world.verify(producer._replace(producer_id=5), P0).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    world.end(producer)
    assert world.verify(producer, P0).code is ErrorCode.CONCURRENT_TRANSACTIONS


def test_ids_that_nobody_uses_are_forgotten() -> None:
    world = World()
    busy = world.init("busy")
    world.init("idle")
    request = AddRequest("busy", busy.producer_id, busy.epoch, frozenset((P0,)))
    two_phase = world.init("outside", is_decided_outside=True)
    world.ask(lambda token: world.shard.add_partitions(request, token, world.now_ms))
    kept = AddRequest("outside", two_phase.producer_id, two_phase.epoch, frozenset((P0,)))
    world.ask(lambda token: world.shard.add_partitions(kept, token, world.now_ms))
    world.pass_time(world.settings.id_expiration_ms - 3_600_000)
    world.write_markers()
    world.pass_time(3 * 3_600_000)
    assert set(world.shard.transactions) == {"busy", "outside"}
    world.load()
    assert set(world.shard.transactions) == {"busy", "outside"}


def test_what_is_described_and_listed() -> None:
    world = World()
    producer = world.init()
    world.init("other")
    world.pass_time(1_000)
    world.add(producer, P1, P0)
    world.pass_time(2_000)
    described = world.ask(lambda token: world.shard.describe("t", token, world.now_ms))
    assert isinstance(described, DescribeReply)
    assert described.transaction is not None
    assert described.transaction.partitions == (P0, P1)
    assert described.transaction.start_ms == WALL_MS + 1_000
    missing = world.ask(lambda token: world.shard.describe("nobody", token, world.now_ms))
    assert missing == DescribeReply(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)

    def listed(which: ListFilter) -> set[str]:
        reply = world.ask(lambda token: world.shard.list_transactions(which, token, world.now_ms))
        assert isinstance(reply, ListReply)
        return {one.transactional_id for one in reply.transactions}

    assert listed(ListFilter()) == {"t", "other"}
    assert listed(ListFilter(states=frozenset((State.EMPTY,)))) == {"other"}
    assert listed(ListFilter(producer_ids=frozenset((producer.producer_id,)))) == {"t"}
    assert listed(ListFilter(longer_than_ms=1_999)) == {"t"}
    assert listed(ListFilter(longer_than_ms=2_000)) == set()


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (InitRequest("", 1), ErrorCode.INVALID_REQUEST),
        (InitRequest("x" * 40_000, 1), ErrorCode.INVALID_REQUEST),
        (InitRequest("t", 0), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (InitRequest("t", 900_001), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_bad_input_is_refused(request_: InitRequest, code: ErrorCode) -> None:
    world = World()
    reply = world.ask(lambda token: world.shard.init_producer_id(request_, token, 0))
    assert reply == InitReply(code)
    assert not world.log


def test_unknown_ids_are_refused() -> None:
    world = World()
    stranger = InitReply(ErrorCode.NONE, 5, 0)
    assert world.add(stranger, P0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.end(stranger).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.verify(stranger, P0).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_the_next_producer_waits_for_the_markers_and_not_for_its_next_try() -> None:
    world = World()
    first = world.init()
    world.add(first, P0)
    request = InitRequest("t", TIMEOUT_MS)
    assert world.apply(world.shard.init_producer_id(request, 8, world.now_ms)) == []
    assert world.apply(world.shard.init_producer_id(request, 9, world.now_ms)) == []
    world.write_markers()
    replies = dict(world.tick_now())
    assert replies == {
        8: InitReply(ErrorCode.NONE, first.producer_id, 2),
        9: InitReply(ErrorCode.NONE, first.producer_id, 3),
    }


def test_the_next_transaction_waits_for_the_markers_of_the_last_one() -> None:
    world = World()
    producer = world.init()
    world.add(producer, P0, version=2)
    following = world.end(producer, version=2)
    request = AddRequest("t", following.producer_id, following.epoch, frozenset((P1,)), 2)
    assert world.apply(world.shard.add_partitions(request, 8, world.now_ms)) == []
    world.write_markers()
    assert world.tick_now() == [(8, AddReply(ErrorCode.NONE))]
    assert world.state is State.ONGOING


def test_only_so_many_requests_wait_and_none_for_ever() -> None:
    world = World()
    producer = world.init()
    world.add(producer, P0)
    world.end(producer)
    request = AddRequest("t", producer.producer_id, producer.epoch, frozenset((P1,)))
    replies = [world.apply(world.shard.add_partitions(request, token, 0)) for token in range(PARKED_PER_ID + 1)]
    busy = AddReply(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert replies == [[]] * PARKED_PER_ID + [[(PARKED_PER_ID, busy)]]
    world.now_ms = PARKED_MS
    assert world.tick_now() == [(token, busy) for token in range(PARKED_PER_ID)]


def test_the_last_epoch_is_never_given_to_a_producer() -> None:
    """Its transaction timed out: the abort that it asks for is done, with an epoch that has no next one."""
    world = World()
    old = worn(world, LARGEST_EPOCH - 1)
    world.add(old, P0, version=2)
    world.pass_time(TIMEOUT_MS)
    world.write_markers()
    assert world.shard.transactions["t"].epoch == LARGEST_EPOCH
    assert world.end(old, commit=False, version=2).code is ErrorCode.PRODUCER_FENCED
    assert world.init().epoch == 0


@pytest.mark.parametrize("version", [0, 2])
def test_an_earlier_producer_does_not_abort_the_transaction_of_its_successor(version: int) -> None:
    """It goes on after an error and does not know yet that it is fenced."""
    world = World()
    first = world.init()
    second = world.init()
    world.add(second, P0, version=version)
    assert world.init(producer_id=first.producer_id, epoch=first.epoch).code is ErrorCode.PRODUCER_FENCED
    assert (world.state, world.markers) == (State.ONGOING, [])
    assert world.end(second, version=version).code is ErrorCode.NONE


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_producer_that_goes_on_does_not_get_the_last_epoch_either(is_fenced: bool) -> None:
    """The coordinator aborted its transaction with that epoch. It gets another id, also if it asks again."""
    world = World()
    old = worn(world, LARGEST_EPOCH - 1)
    world.add(old, P0, version=2)
    if is_fenced:
        assert world.init(producer_id=old.producer_id, epoch=old.epoch).code is ErrorCode.CONCURRENT_TRANSACTIONS
    else:
        world.pass_time(TIMEOUT_MS)
    assert [one.epoch for one in world.markers] == [LARGEST_EPOCH]
    world.write_markers()
    fresh = world.init(producer_id=old.producer_id, epoch=old.epoch)
    assert (fresh.code, fresh.epoch, fresh.producer_id > old.producer_id) == (ErrorCode.NONE, 0, True)
    world.load()
    assert world.init(producer_id=old.producer_id, epoch=old.epoch) == fresh
    assert world.add(fresh, P1, version=2) is ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 2])
def test_whoever_comes_with_the_last_epoch_is_refused(version: int) -> None:
    """Nobody was given it, and there is none to raise it to."""
    world = World()
    old = worn(world, LARGEST_EPOCH - 1)
    world.add(old, P0, version=version)
    world.pass_time(TIMEOUT_MS)
    world.write_markers()
    guessed = old._replace(epoch=LARGEST_EPOCH)
    assert world.end(guessed, commit=False, version=version).code is ErrorCode.PRODUCER_FENCED
    assert world.add(guessed, P0, version=version) is ErrorCode.PRODUCER_FENCED
    assert world.state is State.COMPLETE_ABORT


def test_a_late_end_does_not_bring_the_epoch_of_another_producer() -> None:
    """The other one speaks version 0, so its epoch stays the next one after that of the late request."""
    world = World()
    first = world.init()
    second = world.init()
    assert second.epoch == first.epoch + 1
    world.add(second, P0)
    world.end(second)
    world.write_markers()
    assert world.end(first, version=2).code is ErrorCode.PRODUCER_FENCED
    assert world.end(first, commit=False, version=2).code is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_was_too_slow_may_abort_and_go_on() -> None:
    world = World()
    producer = world.init()
    world.add(producer, P0, version=2)
    world.pass_time(TIMEOUT_MS)
    world.write_markers()
    ended = world.end(producer, commit=False, version=2)
    assert ended == EndReply(ErrorCode.NONE, producer.producer_id, producer.epoch + 1)
    assert world.add(ended, P0, version=2) is ErrorCode.NONE
    other = world.init()
    assert other.code is ErrorCode.CONCURRENT_TRANSACTIONS
