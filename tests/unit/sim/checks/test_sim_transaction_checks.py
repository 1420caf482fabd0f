"""The judges of transactions: what they accept, and what they name."""

from __future__ import annotations

import pytest

from penstock.core.shard.exchange import Marker
from penstock.core.txn.records import TransactionStored
from penstock.core.txn.states import State
from penstock.core.txn.transaction import Transaction
from penstock.records.batch import TRANSACTIONAL_BIT, read_header
from penstock.records.builder import Record, build_batch
from penstock.records.control import ABORT, COMMIT, build_marker
from penstock.sim.checks.marked import MARKED, Markers
from penstock.sim.checks.markers import ALONE, ENDLESS, FOLLOWS, RISES, UNDER_WAY, WAITS, MarkerChecker
from penstock.sim.checks.transactions import ABORTED, KEPT, OFFSETS, ONCE, STAYS, WHOLE, check_transactions
from penstock.sim.judges.history import Place, Violation
from penstock.sim.judges.transactions import Attempt, Begun, Delivered, Ending, SourceRead, TransactionHistory
from penstock.sim.workload.reading.committed import AbortedRecords, Ended, RecordOutcomes
from penstock.wire.messages.fetch import AbortedTransaction

SOURCE, LEFT, RIGHT = Place("rows", 0), Place("made", 0), Place("made", 1)
TOPIC, STATES = (b"made", 0), (b"states", 0)


class Story:
    """Attempts of one transactional id, and the logs that come of them."""

    def __init__(self) -> None:
        self.time = 0.0
        self.history = TransactionHistory(lambda: self.time)
        self.final: dict[Place, list[Ended]] = {LEFT: [], RIGHT: []}
        self.read = 0

    def attempt(self, ending: Ending, rows: range, *, lies: dict[Place, bool], instance: int = 1) -> Attempt:
        """`lies`: in which places its records lie, and whether they are committed there."""
        self.time += 1
        one = self.history.begin("id", instance, (7, 0), SOURCE)
        one.rows, one.ending, one.asked_s = rows, ending, self.time
        self.time += 1
        one.ended_s = self.time
        for number, place in enumerate((LEFT, RIGHT)):
            sent = one.send(place, 10 * len(self.history.attempts) + number, -1)
            if place in lies:
                sent.offset = len(self.final[place])
                self.final[place].append(Ended(sent.offset, sent.value, lies[place]))
        if ending is Ending.COMMITTED and rows:
            self.read = rows.stop
        return one

    def committed(self, rows: range) -> Attempt:
        return self.attempt(Ending.COMMITTED, rows, lies={LEFT: True, RIGHT: True})

    def check(self) -> None:
        check_transactions(self.history, self.final, {SOURCE: self.read})


def test_what_was_promised_is_accepted() -> None:
    story = Story()
    story.committed(range(2))
    story.attempt(Ending.ABORTED, range(2, 3), lies={LEFT: False, RIGHT: False})
    story.attempt(Ending.OPEN, range(2, 3), lies={LEFT: False})
    story.attempt(Ending.UNKNOWN, range(2, 3), lies={LEFT: False, RIGHT: False})
    story.attempt(Ending.UNKNOWN, range(2, 4), lies={LEFT: True, RIGHT: True})
    story.history.source_reads.append(SourceRead(SOURCE, 4, story.time + 1, story.time + 2))
    story.committed(range(4, 5))
    story.check()


@pytest.mark.parametrize(
    ("ending", "lies", "promise"),
    [
        (Ending.COMMITTED, {LEFT: True, RIGHT: False}, WHOLE),
        (Ending.UNKNOWN, {LEFT: True}, WHOLE),
        (Ending.COMMITTED, {LEFT: False, RIGHT: False}, STAYS),
        (Ending.ABORTED, {LEFT: True, RIGHT: True}, ABORTED),
        (Ending.OPEN, {LEFT: True, RIGHT: True}, ABORTED),
    ],
)
def test_an_ending_that_was_not_promised_is_named(ending: Ending, lies: dict[Place, bool], promise: str) -> None:
    story = Story()
    story.attempt(ending, range(0), lies=lies)
    with pytest.raises(Violation, match=promise):
        story.check()


@pytest.mark.parametrize("second", [range(1, 3), range(3, 4)], ids=["twice", "left out"])
def test_a_row_comes_out_once(second: range) -> None:
    story = Story()
    story.committed(range(2))
    story.committed(second)
    with pytest.raises(Violation, match=ONCE):
        story.check()


def test_rows_and_their_offset_are_one() -> None:
    story = Story()
    story.committed(range(2))
    story.read = 0
    with pytest.raises(Violation, match=ONCE):
        story.check()


@pytest.mark.parametrize("told", [0, 1])
def test_an_offset_that_nobody_committed_or_an_older_one_is_named(told: int) -> None:
    story = Story()
    story.committed(range(2))
    story.history.source_reads.append(SourceRead(SOURCE, told, story.time + 1, story.time + 2))
    with pytest.raises(Violation, match=OFFSETS):
        story.check()


def test_a_coordinator_that_was_replaced_may_return_an_older_offset() -> None:
    """The output of the instance comes twice, and takes the offset back; nothing else may."""
    story = Story()
    story.committed(range(2))
    story.committed(range(2, 4))
    story.history.source_reads.append(SourceRead(SOURCE, 2, story.time + 1, story.time + 2, is_excused=True))
    story.check()
    story.time += 2
    story.committed(range(2, 3))
    story.history.source_reads.append(SourceRead(SOURCE, 3, story.time + 1, story.time + 2))
    story.time += 2
    story.committed(range(3, 5))
    story.check()
    story.committed(range(4, 5))
    with pytest.raises(Violation, match=ONCE):
        story.check()


@pytest.mark.parametrize("told", [0, 2])
def test_an_excuse_covers_no_other_reader(told: int) -> None:
    story = Story()
    story.committed(range(2))
    story.committed(range(2, 4))
    story.history.source_reads.append(SourceRead(SOURCE, 2, story.time + 1, story.time + 2, is_excused=True))
    story.time += 2
    if told:
        story.committed(range(4, 6))
    story.history.source_reads.append(SourceRead(SOURCE, told, story.time + 1, story.time + 2))
    with pytest.raises(Violation, match=OFFSETS):
        story.check()


def test_what_was_delivered_stays_committed() -> None:
    story = Story()
    aborted = story.attempt(Ending.ABORTED, range(0), lies={LEFT: False})
    story.history.delivered[LEFT] = {0: Delivered(aborted.sent[0].value, "reader", 1.0)}
    with pytest.raises(Violation, match="records read as committed stay committed"):
        story.check()


def test_records_lie_where_their_sender_was_told_and_in_order() -> None:
    story = Story()
    story.committed(range(2)).sent[0].offset = 5
    with pytest.raises(Violation, match=KEPT):
        story.check()
    story = Story()
    first, second = story.committed(range(1)), story.committed(range(1, 2))
    story.final[LEFT] = [Ended(0, second.sent[0].value, True), Ended(1, first.sent[0].value, True)]
    with pytest.raises(Violation, match="a lane is in order"):
        story.check()


def test_a_commit_that_was_made_is_confirmed() -> None:
    story = Story()
    one = story.attempt(Ending.UNKNOWN, range(0), lies={LEFT: True, RIGHT: True})
    one.refusal = "INVALID_PRODUCER_ID_MAPPING"
    with pytest.raises(Violation, match="a commit that is asked for again is confirmed"):
        story.check()
    asked = story.history.asks_to_begin("id", 2)
    asked.at_s, asked.until_s = 0.5, 1.5
    story.check()
    asked.until_s = 0.9  # it was answered before the commit was asked for
    with pytest.raises(Violation, match="a commit that is asked for again is confirmed"):
        story.check()


@pytest.mark.parametrize("is_refused_at_once", [True, False])
def test_a_prepared_transaction_waits_for_its_decision(is_refused_at_once: bool) -> None:
    story = Story()
    one = story.attempt(
        Ending.ABORTED if is_refused_at_once else Ending.UNKNOWN, range(0), lies={LEFT: False, RIGHT: False}
    )
    one.prepared_s, one.is_decided_to_commit = one.begun_s + 0.5, True
    one.refusal = "" if is_refused_at_once else "INVALID_TXN_STATE"
    own = story.history.asks_to_begin("id", 1)
    own.at_s, own.until_s = 0.5, one.begun_s
    with pytest.raises(Violation, match="a prepared transaction waits for its decision"):
        story.check()
    one.is_decided_to_commit = False
    story.check()
    one.is_decided_to_commit = True
    rival = story.history.asks_to_begin("id", 2)
    rival.at_s, rival.until_s = 1.2, 1.3
    story.check()


def test_what_is_committed_is_read_in_the_end() -> None:
    story = Story()
    one = story.committed(range(0))
    story.history.audited[LEFT] = frozenset((one.sent[0].offset,))
    story.check()
    story.history.audited[LEFT] = frozenset()
    with pytest.raises(Violation, match="committed records are read"):
        story.check()


def test_an_epoch_belongs_to_one_producer() -> None:
    story = Story()
    for instance in (1, 2):
        story.history.begins(Begun("id", instance, 7, 3, 0.0, 1.0))
    with pytest.raises(Violation, match="an epoch belongs to one producer"):
        story.check()


# -- while they run -----------------------------------------------------------------------


def batch(offset: int, epoch: int = 0, producer_id: int = 7) -> bytes:
    return build_batch(
        [Record(None, b"value", (), 1)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        attributes=TRANSACTIONAL_BIT,
        base_offset=offset,
    )


def transaction(state: State, epoch: int = 0, producer_id: int = 7) -> Transaction:
    return Transaction("id", producer_id, epoch, 1000, state, frozenset(), 0)


def feed(checker: MarkerChecker, data: bytes) -> None:
    checker.committed(TOPIC, "made", read_header(data), data)


def write_state(checker: MarkerChecker, written: Transaction) -> None:
    stored = TransactionStored(written)
    data = build_batch([Record(stored.encode_key(), stored.encode_value(), (), 1)])
    checker.committed(STATES, "__transaction_state", read_header(data), data)


def under_way(producer_id: int = 7) -> Transaction:
    return transaction(State.ONGOING, producer_id=producer_id)._replace(partitions=frozenset((("made", 0),)))


def test_a_last_stable_offset_waits_for_the_marker() -> None:
    checker = MarkerChecker()
    write_state(checker, under_way())
    feed(checker, batch(0))
    checker.is_stable(1, "made-0", TOPIC, 1, 0)
    checker.is_stable(1, "made-0", TOPIC, 5, 5)  # nobody has seen what is committed there
    with pytest.raises(Violation, match=WAITS):
        checker.is_stable(1, "made-0", TOPIC, 1, 1)
    feed(checker, build_marker(7, 1, ABORT, 0, 1))
    assert not checker.has_open(TOPIC)


def test_a_marker_follows_its_decision() -> None:
    checker = MarkerChecker()
    write_state(checker, transaction(State.PREPARE_COMMIT, 1))
    checker.marker_appended("made-0", Marker(7, 1, True, 0, 2))
    for marker in (Marker(7, 1, False, 0, 2), Marker(7, 2, True, 0, 2)):
        with pytest.raises(Violation, match=FOLLOWS):
            checker.marker_appended("made-0", marker)


def test_nobody_writes_after_its_successor_has_begun() -> None:
    checker = MarkerChecker()
    write_state(checker, under_way())
    write_state(checker, under_way(8))
    checker.begun(Begun("id", 1, 7, 1, 0.0, 1.0))
    feed(checker, batch(0, epoch=1))
    checker.begun(Begun("id", 2, 7, 2, 2.0, 3.0))
    with pytest.raises(Violation, match="nobody writes after its successor has begun"):
        feed(checker, batch(1, epoch=1))
    checker.begun(Begun("id", 3, 8, 0, 4.0, 5.0))
    with pytest.raises(Violation, match="nobody writes after its successor has begun"):
        feed(checker, batch(1, epoch=30_000))
    feed(checker, batch(1, producer_id=8))


def test_a_batch_is_part_of_a_transaction_under_way() -> None:
    checker = MarkerChecker()
    write_state(checker, under_way())
    header = read_header(batch(0))
    checker.opened(TOPIC, "made", header, 0, 0)
    feed(checker, batch(0))
    write_state(checker, transaction(State.COMPLETE_ABORT))
    checker.opened(TOPIC, "made", header, 1, 0)
    with pytest.raises(Violation, match=UNDER_WAY):
        feed(checker, batch(1))


def test_what_is_committed_may_be_heard_of_late() -> None:
    """A broker that begins to lead has it all committed at once."""
    checker = MarkerChecker()
    checker.catch_up = lambda: write_state(checker, under_way())
    checker.opened(TOPIC, "made", read_header(batch(0)), 0, 0)
    feed(checker, batch(0))
    checker.catch_up = lambda: write_state(checker, transaction(State.PREPARE_ABORT, 1))
    checker.marker_appended("made-0", Marker(7, 1, False, 0, 2))


@pytest.mark.parametrize(
    ("before", "after", "promise"),
    [
        (transaction(State.EMPTY, 1), transaction(State.ONGOING, 1), None),
        (transaction(State.ONGOING, 1), transaction(State.PREPARE_ABORT, 2), None),
        (transaction(State.COMPLETE_COMMIT, 32_766), transaction(State.EMPTY, 0, 8), None),
        (transaction(State.ONGOING, 1), transaction(State.PREPARE_ABORT, 3), RISES),
        (transaction(State.ONGOING, 1), transaction(State.PREPARE_ABORT, 0), RISES),
        (transaction(State.EMPTY, 32_767), transaction(State.EMPTY, 32_768), ENDLESS),
        (transaction(State.EMPTY, 5), transaction(State.EMPTY, 0, 8), "a producer id is used up"),
        (transaction(State.EMPTY), transaction(State.PREPARE_COMMIT), "a transaction moves along its table"),
    ],
)
def test_a_transaction_takes_one_step(before: Transaction, after: Transaction, promise: str | None) -> None:
    checker = MarkerChecker()
    if promise is None:
        checker.replays("shard", before, after)
    else:
        with pytest.raises(Violation, match=promise):
            checker.replays("shard", before, after)


def test_a_transaction_changes_with_its_log_alone() -> None:
    checker = MarkerChecker()
    checker.replays("shard", None, transaction(State.EMPTY))
    checker.replays("another", transaction(State.EMPTY, 1), transaction(State.EMPTY, 2))
    with pytest.raises(Violation, match=ALONE):
        checker.replays("shard", transaction(State.EMPTY, 1), transaction(State.EMPTY, 2))


def test_records_are_decided_by_their_marker() -> None:
    decided, found = RecordOutcomes(), []
    for data in (batch(0), batch(1, producer_id=8), build_marker(7, 1, COMMIT, 0, 1)):
        found += decided.add(read_header(data), memoryview(data))
    assert found == [Ended(0, b"value", True)]
    assert decided.undecided == {8: 1}


def test_a_reader_drops_what_is_listed_as_aborted() -> None:
    listed = [AbortedTransaction(producer_id=7, first_offset=1), AbortedTransaction(producer_id=8, first_offset=4)]
    aborted = AbortedRecords(listed)
    log = (
        (batch(0), False),  # of an earlier transaction of the same producer
        (batch(1), True),
        (batch(2, producer_id=9), False),
        (build_marker(7, 1, ABORT, 0, 1), True),
        (batch(4, epoch=1), False),
        (batch(5, producer_id=8), True),
    )
    dropped = [
        aborted.has(read_header(data)._replace(base_offset=offset), memoryview(data))
        for offset, (data, _) in enumerate(log)
    ]
    assert dropped == [is_dropped for _, is_dropped in log]


# -- compacted logs -----------------------------------------------------------------------


def test_records_of_a_transaction_keep_their_marker() -> None:
    log = (batch(0), batch(1, producer_id=8), build_marker(7, 1, COMMIT, 0, 1), batch(3))
    first, other, marker, last = (read_header(data)._replace(base_offset=offset) for offset, data in enumerate(log))
    markers = Markers()
    markers.add(1, first)
    markers.add(2, other)
    assert markers.marked(3, marker) == [1]
    markers.add(4, last)
    assert markers.undecided == {2, 4}
    markers.check("a replica", (first, other, marker, last), 4)
    markers.check("a replica", (other, marker, last), 4)
    markers.check("a replica", (first, other), 2)  # it has not come that far
    for held in ((first, other, last), (first, other, marker._replace(record_count=0), last)):
        with pytest.raises(Violation, match=rf"{MARKED}.*at offset 0, and not its marker at 2"):
            markers.check("a replica", held, 4)
