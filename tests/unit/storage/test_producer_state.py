from __future__ import annotations

import pytest
from crc32c import crc32c

from penstock.model.errors import ApiError, ErrorCode
from penstock.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, read_header
from penstock.records.builder import Record, build_batch
from penstock.storage.producers.producer_state import REMEMBERED_REFUSALS, ProducerStates

LAST_SEQUENCE = 2**31 - 1


def batch(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7, attributes: int = 0) -> bytes:
    return build_batch(
        [Record(None, b"v", (), 1000)] * count,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=attributes,
    )


def header(sequence: int, count: int = 1, *, epoch: int = 0) -> BatchHeader:
    return read_header(batch(sequence, count, epoch=epoch))


def states(*appended: tuple[int, int], epoch: int = 0) -> ProducerStates:
    """After (sequence, count)s were appended, from offset 100 on."""
    result, offset = ProducerStates(), 100
    for sequence, count in appended:
        data = batch(sequence, count, epoch=epoch)
        result.update(read_header(data), offset, data)
        offset += count
    return result


def refusal(producers: ProducerStates, checked: BatchHeader) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        producers.check(checked)
    return caught.value.code


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert ProducerStates().check(header(42)) is None


def test_an_unknown_producer_whose_first_batch_was_refused_starts_with_that_one() -> None:
    """Batches in flight behind it would be appended before it, and it would never be."""
    producers = ProducerStates()
    producers.refuse(header(0, 3))
    producers.refuse(header(3, 2))
    assert refusal(producers, header(3, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0, epoch=1)) is None
    assert producers.check(header(5, epoch=1)) is None
    assert producers.check(header(3, 2), is_replication=True) is None
    assert producers.check(header(0, 3)) is None
    data = batch(0, 3)
    producers.update(read_header(data), 100, data)
    assert producers.check(header(3, 2)) is None


def test_refused_batches_are_remembered_for_a_while_and_not_without_end() -> None:
    producers = ProducerStates()
    producers.refuse(header(0))
    producers.expire(1000, 60_000)
    assert refusal(producers, header(5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "it may just have been sent"
    producers.expire(2000, 60_000)
    assert producers.check(header(5)) is None
    for number in range(REMEMBERED_REFUSALS + 1):
        producers.refuse(read_header(batch(0, producer_id=number)))
    assert producers.check(read_header(batch(5, producer_id=1))) is None
    assert refusal(producers, read_header(batch(5, producer_id=REMEMBERED_REFUSALS))) == (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )


def test_a_look_at_the_clock_between_two_refusals_does_not_mix_them_up() -> None:
    """The second would pass for the first, and the first could never be appended."""
    producers = ProducerStates()
    producers.refuse(header(0, 3))
    producers.expire(1000, 60_000)
    producers.refuse(header(3, 2))
    producers.expire(2000, 60_000)
    producers.refuse(header(3, 2))
    assert producers.check(header(0, 3)) is None
    producers.refuse(header(0, 3))
    assert refusal(producers, header(3, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_behind_a_refused_one_go_round() -> None:
    producers = ProducerStates()
    producers.refuse(header(0x7FFFFFFE, 3))
    assert refusal(producers, header(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0x7FFFFFFE, 3)) is None


def test_the_next_sequence_is_new() -> None:
    assert states((0, 3)).check(header(3)) is None


def test_repeats_of_the_last_five_get_their_offset() -> None:
    producers = states((0, 2), (2, 2), (4, 2), (6, 2), (8, 2), (10, 2))
    assert [producers.check(header(sequence, 2)) for sequence in (2, 4, 6, 8, 10)] == [102, 104, 106, 108, 110]
    assert refusal(producers, header(0, 2)) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_a_gap_is_refused() -> None:
    assert refusal(states((0, 3)), header(4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_overlaps_the_end_is_refused() -> None:
    assert refusal(states((0, 3)), header(2, 3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_older_epoch_is_fenced() -> None:
    assert refusal(states((0, 1), epoch=3), header(1, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_starts_at_zero_and_forgets_the_old_batches() -> None:
    producers = states((0, 1), (1, 1))
    assert refusal(producers, header(2, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check(header(0, epoch=1)) is None
    data = batch(0, epoch=1)
    producers.update(read_header(data), 102, data)
    assert refusal(producers, header(1, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producers.check(header(0, epoch=1)) == 102


def test_sequences_wrap() -> None:
    producers = states((LAST_SEQUENCE - 1, 2))
    assert producers.check(header(0)) is None
    producers = states((LAST_SEQUENCE - 1, 4))  # ends with sequence 1
    assert producers.check(header(2)) is None
    assert producers.check(header(LAST_SEQUENCE - 1, 4)) == 100
    assert refusal(producers, header(LAST_SEQUENCE - 5, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(producers, header(3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producers = states(*[(sequence & LAST_SEQUENCE, 1) for sequence in range(LAST_SEQUENCE - 5, LAST_SEQUENCE + 5)])
    assert refusal(producers, header(LAST_SEQUENCE - 4, 2)) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_what_was_never_stored_is_no_duplicate() -> None:
    """Its first batch was refused, the second taken: "duplicate" would tell the client that both are there."""
    producers = states((3, 2))
    assert refusal(producers, header(0, 3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(producers, header(2, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_replicated_batches_are_not_judged() -> None:
    assert states((0, 3)).check(header(9), is_replication=True) is None


def marker(coordinator_epoch: int) -> bytes:
    value = (0).to_bytes(2, "big") + coordinator_epoch.to_bytes(4, "big")
    key = (0).to_bytes(2, "big") + (1).to_bytes(2, "big")
    return build_batch(
        [Record(key, value, (), 2000)],
        producer_id=7,
        producer_epoch=0,
        base_sequence=-1,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
    )


def test_a_transaction_holds_back_the_stable_offset_until_its_marker() -> None:
    producers = ProducerStates()
    assert producers.first_unstable_offset(50) is None
    for offset, sequence in ((50, 0), (60, 1)):
        data = batch(sequence, attributes=TRANSACTIONAL_BIT)
        producers.update(read_header(data), offset, data)
    other = batch(0, producer_id=8, attributes=TRANSACTIONAL_BIT)
    producers.update(read_header(other), 55, other)
    assert producers.first_unstable_offset(61) == 50
    end = marker(coordinator_epoch=4)
    producers.update(read_header(end), 61, end)
    assert producers.first_unstable_offset(61) == 50, "the marker may still be lost"
    assert producers.first_unstable_offset(62) == 55
    producer = producers.get(7)
    assert producer is not None
    assert (producer.coordinator_epoch, producer.transaction_first_offset, producer.last_sequence) == (4, -1, 1)


def test_a_snapshot_keeps_what_is_remembered_of_each_producer() -> None:
    producers = states(*((number * 2, 2) for number in range(7)))
    data = batch(9, producer_id=8, attributes=TRANSACTIONAL_BIT)
    producers.update(read_header(data), 200, data)
    restored = ProducerStates.decode_snapshot(producers.encode_snapshot())
    assert restored is not None
    assert [restored.check(header(sequence, 2)) for sequence in (4, 6, 8, 10, 12)] == [104, 106, 108, 110, 112]
    assert restored.check(header(14)) is None
    assert refusal(restored, header(0, 2)) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert restored.first_unstable_offset(300) == 200
    assert restored.has_earlier_batches
    assert restored.encode_snapshot() == producers.encode_snapshot()


def test_sequences_wrap_around_in_a_snapshot() -> None:
    producers = states((0x7FFFFFFE, 4), (2, 1))
    restored = ProducerStates.decode_snapshot(producers.encode_snapshot())
    assert restored is not None
    assert restored.check(header(0x7FFFFFFE, 4)) == 100


def kafkas_snapshot(producers: ProducerStates) -> bytes:
    """Nothing behind the entries."""
    data = bytearray(producers.encode_snapshot()[: 10 + 46 * len(producers)])
    data[2:6] = crc32c(bytes(data[6:])).to_bytes(4, "big")
    return bytes(data)


def test_kafkas_snapshot_bytes() -> None:
    """Version 1, CRC-32C, one entry of 46 bytes."""
    assert states((0, 2)).encode_snapshot()[:56].hex() == (
        "0001" + states((0, 2)).encode_snapshot()[2:6].hex() + "00000001"
        "0000000000000007" "0000" "00000001" "0000000000000065" "00000001" "00000000000003e8" "ffffffff"
        "ffffffffffffffff"
    )  # fmt: skip


def test_a_snapshot_of_kafkas_keeps_the_last_batch() -> None:
    restored = ProducerStates.decode_snapshot(kafkas_snapshot(states((0, 2), (2, 3))))
    assert restored is not None
    assert not restored.has_earlier_batches
    assert restored.check(header(2, 3)) == 102
    assert restored.check(header(5)) is None
    assert refusal(restored, header(0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # it cannot know


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_snapshot_is_none(damage: str) -> None:
    data = bytearray(states((0, 2)).encode_snapshot())
    if damage == "flip":
        data[20] ^= 1
    elif damage == "cut":
        del data[-1]
    else:
        data.clear()
    assert ProducerStates.decode_snapshot(bytes(data)) is None


def test_idle_producers_expire_but_not_in_a_transaction() -> None:
    producers = states((0, 1))
    data = batch(0, producer_id=8, attributes=TRANSACTIONAL_BIT)
    producers.update(read_header(data), 200, data)
    # The clock counts from the first look after the batch, whatever the records' own timestamps say.
    assert producers.expire(now_ms=900_000, expiration_ms=5000) == []
    assert producers.expire(now_ms=904_999, expiration_ms=5000) == []
    assert producers.expire(now_ms=905_000, expiration_ms=5000) == [7]
    assert [producer.producer_id for producer in producers] == [8]


def test_the_log_before_a_snapshot_recalls_the_other_batches() -> None:
    appended = [(number * 2, 2) for number in range(8)]
    producers = states(*appended)
    restored = ProducerStates.decode_snapshot(kafkas_snapshot(producers))
    assert restored is not None
    stored = [header(sequence, count)._replace(base_offset=100 + sequence) for sequence, count in appended]
    restored.recall([header(7)._replace(producer_id=9), *stored, header(0, epoch=5)])
    for sequence, count in appended[-5:]:
        assert restored.check(header(sequence, count)) == 100 + sequence
    assert refusal(restored, header(0, 2)) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_batches_that_do_not_lead_to_the_snapshot_are_not_recalled() -> None:
    restored = ProducerStates.decode_snapshot(kafkas_snapshot(states((4, 2))))
    assert restored is not None
    restored.recall([header(0, 2), header(9, 2)])
    assert refusal(restored, header(0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert restored.check(header(6)) is None
