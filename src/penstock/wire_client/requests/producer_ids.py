"""InitProducerId: a producer id for a producer with or without transactions, or to fence another one.

Must not know: how a coordinator is reached.
"""

from __future__ import annotations

from typing import Final

from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire_client.requests.errors import check, error_code
from penstock.wire_client.requests.sentences import no_two_phase_commit

TWO_PHASE_VERSION: Final = 6
"""The first version with two-phase commit (KIP-939)."""
FENCING_TIMEOUT_MS: Final = 1
"""As Kafka's tools: no transaction begins with the producer id that fences."""
NEVER_MS: Final = 2**31 - 1
"""The timeout of a transaction that is decided outside of the cluster (two-phase commit)."""


def producer_id_request(timeout_ms: int) -> InitProducerIdRequest:
    """A request for a producer without transactions."""
    return _request(None, timeout_ms)


def begin_request(transactional_id: str, timeout_ms: int) -> InitProducerIdRequest:
    """Fences earlier producers of this id, and aborts their open transaction."""
    return _request(transactional_id, timeout_ms)


def fence_request(transactional_id: str) -> InitProducerIdRequest:
    """Begins a new producer with this id: its predecessor is fenced, and the open transaction is aborted."""
    return _request(transactional_id, FENCING_TIMEOUT_MS)


def two_phase_request(transactional_id: str) -> InitProducerIdRequest:
    """Begins a new producer whose transactions are decided outside and never time out (two-phase commit, KIP-939).

    An older version cannot say so; a broker refuses it then, because the timeout is too long.
    """
    return _request(transactional_id, NEVER_MS, has_two_phases=True)


def read_producer_id(answer: InitProducerIdResponse) -> tuple[int, int]:
    """A producer id and its epoch. Raises ApiError."""
    check(answer.error_code, f"no producer id: {error_code(answer.error_code).name}")
    return answer.producer_id, answer.producer_epoch


def read_begun(transactional_id: str, answer: InitProducerIdResponse) -> tuple[int, int]:
    """The producer id and the new epoch. Raises ApiError."""
    check(answer.error_code, f"transactional id '{transactional_id}': {error_code(answer.error_code).name}")
    return answer.producer_id, answer.producer_epoch


def read_two_phase(transactional_id: str, answer: InitProducerIdResponse) -> tuple[int, int]:
    """As `read_begun`, with a sentence for clusters without two-phase commit.

    CONCURRENT_TRANSACTIONS: ask again in some milliseconds.
    """
    code = error_code(answer.error_code)
    if code in (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_TRANSACTION_TIMEOUT):
        raise ApiError(code, no_two_phase_commit(transactional_id))
    return read_begun(transactional_id, answer)


def _request(transactional_id: str | None, timeout_ms: int, *, has_two_phases: bool = False) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, enable2_pc=has_two_phases
    )
