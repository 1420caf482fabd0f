"""Requests about transactional ids: what is sent in which version, and the sentences of refusals."""

from __future__ import annotations

import pytest

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.codec import decode, encode
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire_client.requests.producer_ids import NEVER_MS, read_two_phase, two_phase_request
from penstock.wire_client.requests.transactions import TransactionDescription


def test_two_phase_commit_is_asked_for_in_version_6() -> None:
    sent = decode(InitProducerIdRequest, 6, encode(two_phase_request("sink-0"), 6))
    assert (sent.transactional_id, sent.enable2_pc, sent.keep_prepared_txn) == ("sink-0", True, False)
    assert (sent.producer_id, sent.producer_epoch) == (-1, -1)


def test_an_older_version_asks_for_a_time_out_that_no_broker_grants() -> None:
    sent = decode(InitProducerIdRequest, 5, encode(two_phase_request("sink-0"), 5))
    assert (sent.enable2_pc, sent.transaction_timeout_ms) == (False, NEVER_MS)


def test_the_answer_is_read() -> None:
    assert read_two_phase("sink-0", InitProducerIdResponse(producer_id=7, producer_epoch=3)) == (7, 3)


@pytest.mark.parametrize(
    "code", [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_TRANSACTION_TIMEOUT]
)
def test_a_cluster_without_two_phase_commit_is_named(code: ErrorCode) -> None:
    with pytest.raises(ApiError, match=r"'sink-0'.*transaction\.two\.phase\.commit\.enable=true") as refused:
        read_two_phase("sink-0", InitProducerIdResponse(error_code=code))
    assert refused.value.code is code


def test_another_refusal_keeps_its_code() -> None:
    with pytest.raises(ApiError, match="'sink-0': CONCURRENT_TRANSACTIONS") as refused:
        read_two_phase("sink-0", InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS))
    assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize(("timeout_ms", "is_decided_outside"), [(60_000, False), (NEVER_MS, True)])
def test_a_transaction_without_a_time_out_is_decided_outside(timeout_ms: int, is_decided_outside: bool) -> None:
    found = TransactionDescription("sink-0", 1, 7, 3, "Ongoing", timeout_ms, 1_000, ())
    assert found.is_decided_outside is is_decided_outside
