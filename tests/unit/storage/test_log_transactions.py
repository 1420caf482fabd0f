"""Transactions as one log sees them: what is unstable, which markers are taken, which batches may begin one."""

from __future__ import annotations

from random import Random

import pytest

from penstock.model.errors import ApiError, ErrorCode
from penstock.records.batch import TRANSACTIONAL_BIT, BatchHeader, read_header
from penstock.records.builder import Record, build_batch
from penstock.records.control import ABORT, COMMIT, build_marker
from penstock.storage.producers.producer_state import MAX_EPOCH, ProducerStates
from penstock.storage.producers.transactions import MOST_DECIDED, AbortedTransaction, MarkerCheck, Transactions
from penstock.storage.producers.verification import MOST_GUARDS

PRODUCER = 7


def batch(sequence: int, *, epoch: int = 0, producer_id: int = PRODUCER, attributes: int = TRANSACTIONAL_BIT) -> bytes:
    return build_batch(
        [Record(None, b"v", (), 1000)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=attributes,
    )


def header(sequence: int, *, epoch: int = 0, attributes: int = TRANSACTIONAL_BIT) -> BatchHeader:
    return read_header(batch(sequence, epoch=epoch, attributes=attributes))


class Appends:
    """A leader that appends whatever passes its checks."""

    def __init__(self) -> None:
        self.producers = ProducerStates()
        self.end = 100

    def data(self, sequence: int, *, epoch: int = 0, producer_id: int = PRODUCER, attributes: int = 0x10) -> int:
        data = batch(sequence, epoch=epoch, producer_id=producer_id, attributes=attributes)
        assert self.producers.check(read_header(data)) is None
        assert self._update(data) is None
        return self.end - 1

    def marker(
        self, kind: int, *, epoch: int = 0, producer_id: int = PRODUCER, coordinator_epoch: int = 1, version: int = 1
    ) -> AbortedTransaction | None:
        checked = self.producers.check_marker(producer_id, epoch, coordinator_epoch, version)
        assert checked is MarkerCheck.APPEND
        return self._update(build_marker(producer_id, epoch, kind, coordinator_epoch, 1000))

    def _update(self, data: bytes) -> AbortedTransaction | None:
        self.end += 1
        return self.producers.update(read_header(data), self.end - 1, data)

    def unstable(self, high_watermark: int | None = None) -> int | None:
        return self.producers.first_unstable_offset(self.end if high_watermark is None else high_watermark)

    def refusal(self, checked: BatchHeader) -> ErrorCode:
        with pytest.raises(ApiError) as caught:
            self.producers.check(checked)
        return caught.value.code

    def marker_refusal(self, epoch: int, coordinator_epoch: int, version: int) -> ErrorCode:
        with pytest.raises(ApiError) as caught:
            self.producers.check_marker(PRODUCER, epoch, coordinator_epoch, version)
        return caught.value.code


# -- the last stable offset ----------------------------------------------------------------------------------


def test_a_decided_transaction_holds_back_until_its_marker_is_replicated() -> None:
    log = Appends()
    log.data(0)  # 100
    log.data(0, producer_id=8)  # 101
    log.marker(COMMIT)  # 102
    assert [log.unstable(watermark) for watermark in (101, 102, 103)] == [100, 100, 101]
    log.marker(ABORT, producer_id=8)  # 103
    assert [log.unstable(watermark) for watermark in (103, 104)] == [101, None]


def test_unstable_offsets_are_those_of_a_plain_list() -> None:
    for seed in range(200):
        random = Random(seed)
        found, plain = Transactions(), []  # type: ignore[var-annotated]
        opened: dict[int, int] = {}
        watermark = 0
        for offset in range(100):
            producer = random.randrange(6)
            if producer in opened and random.random() < 0.6:
                first = opened.pop(producer)
                assert found.end(first, offset) == min(opened.values(), default=offset + 1)
                plain.append((offset, first))
            elif producer not in opened:
                opened[producer] = offset
                found.begin(offset, producer)
            if random.random() < 0.4:
                watermark = random.randint(watermark, offset + 1)
                expected = [*opened.values(), *(first for marker, first in plain if marker >= watermark)]
                assert found.first_unstable_offset(watermark) == min(expected, default=None)
                assert bool(found) == bool(expected), "nothing is kept that holds nothing back"


def test_decided_transactions_are_bounded_where_nobody_asks() -> None:
    transactions = Transactions()
    count = MOST_DECIDED + 10
    for number in range(count):
        transactions.begin(2 * number, 7)
        transactions.end(2 * number, 2 * number + 1)
    assert len(transactions.decided) == MOST_DECIDED
    assert transactions.first_unstable_offset(0) == 0
    assert transactions.first_unstable_offset(2 * count - 3) == 2 * count - 4
    assert transactions.first_unstable_offset(2 * count) is None


def test_what_an_abort_says() -> None:
    log = Appends()
    log.data(0)
    log.data(0, producer_id=8)
    log.data(1)
    assert log.marker(ABORT) == AbortedTransaction(PRODUCER, 100, 103, 101)
    assert log.marker(ABORT, producer_id=8) == AbortedTransaction(8, 101, 104, 105)
    assert log.marker(ABORT, producer_id=8) is None, "of nothing"
    log.data(2)
    assert log.marker(COMMIT) is None


def test_a_snapshot_keeps_what_is_open_and_what_may_not_be_replicated() -> None:
    log = Appends()
    log.data(0)
    log.data(0, producer_id=8)
    log.marker(COMMIT)  # 102
    encoded = log.producers.encode_snapshot()
    assert log.producers.freeze().encode() == encoded
    restored = ProducerStates.decode_snapshot(encoded)
    assert restored is not None
    assert restored.has_earlier_batches
    assert restored.encode_snapshot() == encoded
    assert [restored.first_unstable_offset(watermark) for watermark in (102, 103)] == [100, 101]
    assert ProducerStates.decode_snapshot(encoded[:-1]) is None


def test_a_snapshot_with_an_open_transaction_of_kafkas_bytes() -> None:
    log = Appends()
    log.data(0, epoch=2)
    encoded = log.producers.encode_snapshot()
    assert encoded[10:56].hex() == (
        "0000000000000007" "0002" "00000000" "0000000000000064" "00000000" "00000000000003e8" "ffffffff"
        "0000000000000064"
    )  # fmt: skip


# -- data ----------------------------------------------------------------------------------------------------


def test_a_batch_outside_of_the_open_transaction() -> None:
    log = Appends()
    log.data(0)
    assert log.refusal(header(1, attributes=0)) == ErrorCode.INVALID_TXN_STATE
    assert log.refusal(header(0, epoch=1, attributes=0)) == ErrorCode.INVALID_TXN_STATE
    assert log.producers.check(header(0)) == 100, "a repeat is one"
    log.marker(COMMIT)
    log.data(1, attributes=0)


def test_an_older_epoch() -> None:
    log = Appends()
    log.data(0, epoch=3)
    assert log.refusal(header(1, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_marker_that_raises_the_epoch_begins_sequences_anew() -> None:
    log = Appends()
    log.data(0)
    log.data(1)
    log.marker(COMMIT, epoch=1, version=2)
    assert log.refusal(header(2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.refusal(header(2, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.data(0, epoch=1)
    log.data(1, epoch=1)


def test_a_producer_known_by_a_marker_alone_begins_with_0() -> None:
    log = Appends()
    log.marker(ABORT, epoch=4)
    assert log.refusal(header(5, epoch=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.refusal(header(5, epoch=5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.data(0, epoch=4)


def test_what_a_coordinator_appends_has_no_sequence() -> None:
    log = Appends()
    first = log.data(-1)
    log.data(-1)
    assert log.refusal(header(-1, attributes=0)) == ErrorCode.INVALID_TXN_STATE
    assert log.unstable() == first
    restored = ProducerStates.decode_snapshot(log.producers.encode_snapshot())
    assert restored is not None
    assert [batch.last_sequence for producer in restored for batch in producer.batches] == [-1, -1]
    log.marker(COMMIT, epoch=1, version=2)
    assert log.refusal(header(-1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    log.data(-1, epoch=1)


# -- markers -------------------------------------------------------------------------------------------------


def test_markers_of_the_past() -> None:
    log = Appends()
    log.data(0, epoch=2)
    log.marker(COMMIT, epoch=2, coordinator_epoch=5)
    for version in (0, 1, 2):
        assert log.marker_refusal(1, 5, version) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert log.marker_refusal(2, 4, version) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert log.marker_refusal(3, 4, version) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    log.marker(ABORT, epoch=2, coordinator_epoch=6)


def test_a_repeated_marker_does_not_end_the_next_transaction() -> None:
    log = Appends()
    log.data(0)
    log.marker(COMMIT, epoch=1, version=2)
    assert log.producers.check_marker(PRODUCER, 1, 1, 2) is MarkerCheck.ALREADY_THERE
    first = log.data(0, epoch=1)
    for coordinator_epoch in (1, 2):
        assert log.producers.check_marker(PRODUCER, 1, coordinator_epoch, 2) is MarkerCheck.ALREADY_THERE
    assert log.unstable() == first
    log.marker(COMMIT, epoch=2, version=2)
    assert log.unstable() is None


def test_the_marker_at_the_largest_epoch_ends_its_transaction() -> None:
    log = Appends()
    log.data(0, epoch=MAX_EPOCH)
    log.marker(ABORT, epoch=MAX_EPOCH, version=2)
    assert log.producers.check_marker(PRODUCER, MAX_EPOCH, 1, 2) is MarkerCheck.ALREADY_THERE


def test_in_older_versions_a_marker_has_the_epoch_of_its_data() -> None:
    log = Appends()
    log.data(0)
    log.marker(COMMIT)
    log.marker(COMMIT)  # again: as Kafka
    log.data(1)
    log.marker(ABORT, epoch=1)  # of a producer that was fenced


# -- verification --------------------------------------------------------------------------------------------


def verification_refusal(log: Appends, checked: BatchHeader, guard: object) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        log.producers.check_verified(checked, guard)  # type: ignore[arg-type]
    return caught.value.code


def test_a_batch_needs_a_guard_to_begin_a_transaction() -> None:
    log = Appends()
    assert not log.producers.needs_verification(header(0, attributes=0))
    assert log.producers.needs_verification(header(0))
    assert verification_refusal(log, header(0), None) == ErrorCode.INVALID_TXN_STATE
    guard = log.producers.begin_verification(PRODUCER, 0, 0)
    assert guard is not None
    log.producers.check_verified(header(0), guard)
    log.data(0)
    assert not log.producers.needs_verification(header(1))
    assert log.producers.begin_verification(PRODUCER, 1, 0) is None
    log.producers.check_verified(header(1), None)
    assert log.producers.needs_verification(header(0, epoch=1)), "another transaction"


def test_a_marker_makes_the_guard_void() -> None:
    log = Appends()
    guard = log.producers.begin_verification(PRODUCER, 0, 0)
    log.marker(ABORT)
    assert verification_refusal(log, header(0), guard) == ErrorCode.INVALID_TXN_STATE
    assert verification_refusal(log, header(0), log.producers.begin_verification(8, 0, 0)) == (
        ErrorCode.INVALID_TXN_STATE
    )


def test_the_marker_of_the_transaction_before_leaves_the_guard_alone() -> None:
    log = Appends()
    log.data(0)
    guard = log.producers.begin_verification(PRODUCER, 0, 1, raises_epoch=True)
    log.marker(COMMIT, epoch=1, version=2)
    log.producers.check_verified(header(0, epoch=1), guard)
    log.marker(ABORT, epoch=2, version=2)
    assert verification_refusal(log, header(0, epoch=1), guard) == ErrorCode.INVALID_TXN_STATE


def test_a_guard_expires_with_its_producer_and_by_itself() -> None:
    log = Appends()
    log.data(0)
    log.marker(COMMIT)
    guard = log.producers.begin_verification(PRODUCER, 1, 0)
    other = log.producers.begin_verification(8, 0, 0)
    for now_ms in (0, 59_999):
        log.producers.expire(now_ms, 60_000)
    log.producers.check_verified(header(1), guard)
    log.producers.expire(60_000, 60_000)
    assert verification_refusal(log, header(1), guard) == ErrorCode.INVALID_TXN_STATE
    assert verification_refusal(log, read_header(batch(0, producer_id=8)), other) == ErrorCode.INVALID_TXN_STATE


def test_guards_are_bounded() -> None:
    log = Appends()
    guard = log.producers.begin_verification(PRODUCER, 0, 0)
    for producer_id in range(1000, 1000 + MOST_GUARDS):
        log.producers.begin_verification(producer_id, 0, 0)
    assert verification_refusal(log, header(0), guard) == ErrorCode.INVALID_TXN_STATE


def test_what_was_held_back_comes_before_what_follows_it() -> None:
    log = Appends()
    log.producers.begin_verification(PRODUCER, 3, 0)
    guard = log.producers.begin_verification(PRODUCER, 2, 0)
    assert verification_refusal(log, header(3), guard) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.producers.check_verified(header(2), guard)
    assert log.producers.begin_verification(PRODUCER, 5, 1) is guard
    log.producers.check_verified(header(5, epoch=1), guard)


def test_an_epoch_of_its_own_begins_with_0() -> None:
    log = Appends()
    guard = log.producers.begin_verification(PRODUCER, 3, 0, raises_epoch=True)
    assert verification_refusal(log, header(3), guard) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_nobody_asks_about_an_older_epoch() -> None:
    log = Appends()
    log.data(0, epoch=2)
    with pytest.raises(ApiError) as caught:
        log.producers.begin_verification(PRODUCER, 0, 1)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
