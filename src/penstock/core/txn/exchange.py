"""Requests and replies of a transaction coordinator shard: values without wire versions."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from penstock.core.txn.states import State
from penstock.core.txn.transaction import NO_EPOCH, NO_PRODUCER_ID, Partition
from penstock.model.errors import ErrorCode


class NeedsProducerId(Enum):
    """A reply: repeat the request with an unused producer id."""

    REPLY = "needs a producer id"


NEEDS_PRODUCER_ID: Final = NeedsProducerId.REPLY


class InitRequest(NamedTuple):
    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH
    """Of a producer that continues after an error (KIP-360); -1: of a new one."""
    is_decided_outside: bool = False
    """Two-phase commit (KIP-939): the transactions of this producer never time out."""
    keeps_prepared: bool = False
    """Asks for the open transaction instead of its end. Kafka 4.3 refuses that, and so does the shard."""
    spare_producer_id: int = NO_PRODUCER_ID
    """Used by the shard if it needs one."""


class InitReply(NamedTuple):
    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


class AddRequest(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    partitions: frozenset[Partition]
    version: int = 0
    may_wait: bool = True
    """For the markers of the transaction before; otherwise the answer is CONCURRENT_TRANSACTIONS at once."""


class AddReply(NamedTuple):
    code: ErrorCode


class VerifyReply(NamedTuple):
    """`missing`: partitions that are not part of the transaction."""

    code: ErrorCode
    missing: frozenset[Partition] = frozenset()


class EndRequest(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    is_commit: bool
    version: int = 0
    spare_producer_id: int = NO_PRODUCER_ID


class EndReply(NamedTuple):
    """Contains the producer id and epoch of the next transaction, for clients whose epoch rises at each end."""

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


class MarkersDue(NamedTuple):
    """A deed: the markers of a decided transaction, and their partitions."""

    transactional_id: str
    producer_id: int
    epoch: int
    is_commit: bool
    version: int
    partitions: frozenset[Partition]


class TimedOut(NamedTuple):
    """A deed, for metrics: the abort of a transaction that was open for too long is committed."""

    transactional_id: str


class DescribedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State
    start_ms: int
    partitions: tuple[Partition, ...]


class DescribeReply(NamedTuple):
    code: ErrorCode
    transaction: DescribedTransaction | None = None


class ListFilter(NamedTuple):
    """Empty or negative: all."""

    states: frozenset[State] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    longer_than_ms: int = -1


class ListReply(NamedTuple):
    transactions: tuple[DescribedTransaction, ...]


Reply: TypeAlias = InitReply | AddReply | VerifyReply | EndReply | DescribeReply | ListReply | NeedsProducerId
