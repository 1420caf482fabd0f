"""Error codes as a transactional client reads them, and the ways in which a transaction or its producer ends.

Must not know: requests, connections.
"""

from __future__ import annotations

from penstock.model.errors import ErrorCode, PenstockError

PASSING = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.NETWORK_EXCEPTION,
    )
)
OVER = frozenset(
    (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    )
)
DECIDED_AGAINST = OVER | {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}
"""Said by a coordinator that did nothing."""


class ProducerOver(PenstockError):
    """Another has taken its place, or nobody answers it: it can do nothing more."""


class NotTold(ProducerOver):
    """Nobody has told it what came of its transaction."""


class MustAbort(PenstockError):
    """Not all of this transaction is known to be there."""


class Vanished(PenstockError):
    """The process is gone, and says nothing more."""
