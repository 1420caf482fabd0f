"""A batch that came before its partition was led here holds back those that were sent behind it."""

from __future__ import annotations

import pytest

from penstock.api.produce.early_batches import REMEMBERED, REMEMBERED_S, EarlyBatches
from penstock.model.errors import ApiError, ErrorCode
from penstock.records.batch import read_header
from penstock.records.builder import Record, build_batch
from penstock.storage.producers.producer_state import ProducerStates


def batch(sequence: int, producer: int = 7, epoch: int = 0) -> bytes:
    record = Record(b"k", b"v", (), 1)
    return build_batch([record], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def is_held_back(early: EarlyBatches, data: bytes, producers: ProducerStates | None = None, now_s: float = 0.0) -> bool:
    try:
        early.check("t", 0, data, producers or ProducerStates(), now_s)
    except ApiError as error:
        return error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    return False


def refused() -> EarlyBatches:
    early = EarlyBatches()
    for sequence in (3, 4, 5):
        early.refuse("t", 0, batch(sequence), 0.0)
    return early


def test_what_was_sent_behind_a_refused_batch_waits_for_it() -> None:
    early = refused()
    assert is_held_back(early, batch(4))
    assert is_held_back(early, batch(6))
    assert not is_held_back(early, batch(3))
    assert not len(early)
    assert not is_held_back(early, batch(4))


@pytest.mark.parametrize(
    ("data", "topic", "index"),
    [(batch(4, producer=8), "t", 0), (batch(4), "t", 1), (batch(4), "u", 0), (batch(4), b"t" * 16, 0)],
    ids=["another producer", "another partition", "another topic", "by its id"],
)
def test_others_do_not(data: bytes, topic: bytes | str, index: int) -> None:
    refused().check(topic, index, data, ProducerStates(), 0.0)


def test_a_producer_that_gave_it_up_goes_on_in_another_epoch() -> None:
    early = refused()
    assert not is_held_back(early, batch(0, epoch=1))
    early = refused()
    early.refuse("t", 0, batch(0, epoch=1), 0.0)
    assert is_held_back(early, batch(1, epoch=1))


def test_it_is_forgotten_soon() -> None:
    assert not is_held_back(refused(), batch(4), now_s=REMEMBERED_S)


def test_nothing_is_kept_for_ever() -> None:
    early = refused()
    early.check("another", 0, batch(0), ProducerStates(), REMEMBERED_S)
    assert not len(early)
    early.refuse("n" * 250, 0, batch(0), 0.0)
    assert not len(early), "no topic has such a name"


def test_a_log_that_knows_the_producer_decides_itself() -> None:
    producers = ProducerStates()
    producers.update(read_header(batch(3)), 0, batch(3))
    assert not is_held_back(refused(), batch(4), producers)


def test_it_is_bounded() -> None:
    early = EarlyBatches()
    for producer in range(3 * REMEMBERED):
        early.refuse("t", 0, batch(0, producer=producer), 0.0)
    assert len(early) <= REMEMBERED


@pytest.mark.parametrize("records", [None, b"", b"short", batch(3, producer=-1)])
def test_what_is_no_batch_of_such_a_producer_is_not_remembered(records: bytes | None) -> None:
    early = EarlyBatches()
    early.refuse("t", 0, records, 0.0)
    assert not len(early)
    refused().check("t", 0, records or b"", ProducerStates(), 0.0)
