"""Transactions of one producer: begin, offsets of a group, commit, abort, each as one blocking call.

librdkafka classifies each error: the call may be repeated, the transaction must be aborted, or the producer is unusable
(fatal). Invariant: after `commit` or `abort` no transaction is open, or the producer cannot begin another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from penstock.model.topic_partition import TopicPartition
from penstock.sdk.errors import (
    TIMEOUTS,
    BadSetting,
    ClientError,
    ProducerFailed,
    ProducerFenced,
    TimedOut,
    TransactionAborted,
)
from penstock.sdk.settings import ClusterConnection

FENCED = frozenset((KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH))
LAST_TRY_S = 0.1


class TransactionEngine:
    def __init__(
        self, client: Producer, connection: ClusterConnection, transactional_id: str, timeout_s: float
    ) -> None:
        self._client = client
        self._connection = connection
        self._id = transactional_id
        self._timeout_s = timeout_s
        self._is_initialised = False
        self._is_open = False
        self._failure: ClientError | None = None
        """The reason why this producer cannot begin another transaction."""

    @property
    def is_open(self) -> bool:
        return self._is_open

    def initialise(self) -> None:
        """Fences earlier producers with this transactional id, and ends their transactions. Done once per producer."""
        if not self._is_initialised:
            self._connection.check()
            self._call(self._client.init_transactions, f"cannot begin with transactional id {self._id}")
            self._is_initialised = True

    def begin(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_open:
            raise BadSetting(
                "this producer already has an open transaction: commit or abort it first", "TRANSACTION_OPEN"
            )
        self.initialise()
        try:
            self._client.begin_transaction()
        except KafkaException as error:
            raise self._error(error.args[0], "cannot begin a transaction") from error
        self._is_open = True

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group_metadata: Any) -> None:
        """The offsets are committed with the transaction."""
        if not self._is_open:
            raise BadSetting("no transaction is open: send offsets inside of `with producer.transaction()`")
        positions = [LibrdkafkaPartition(*one, offset) for one, offset in offsets.items()]

        def send(timeout_s: float) -> None:
            self._client.send_offsets_to_transaction(positions, group_metadata, timeout_s)

        self._call(send, "cannot send offsets to the transaction")

    def commit(self) -> None:
        """Waits for all records of the transaction. Raises TransactionAborted if one of them was not delivered."""
        doing = f"the transaction of {self._id} is not committed"
        try:
            self._call(self._client.commit_transaction, doing)
        except TransactionAborted:
            self.abort()
            raise
        except TimedOut as error:
            self._failure = TimedOut(
                f"{doing}: no answer in time. The transaction may still be committed or aborted. Make a new producer "
                "with the same transactional id: then the outcome is final",
                error.name,
            )
            raise self._failure from error
        except ClientError as error:
            self._failure = error
            raise
        self._is_open = False

    def abort(self) -> None:
        """Drops records that were not sent yet, and aborts."""
        try:
            self._call(self._client.abort_transaction, f"cannot abort the transaction of {self._id}")
        except ClientError as error:
            self._failure = error
            raise
        self._is_open = False

    # -- errors ---------------------------------------------------------------------------------------------

    def _call(self, function: Callable[[float], None], doing: str) -> None:
        """Repeats calls that may be repeated, until the time is up."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            left_s = max(LAST_TRY_S, deadline - time.monotonic())
            try:
                function(left_s)
            except KafkaException as error:
                reason = error.args[0]
                if reason.retriable() and time.monotonic() < deadline:
                    continue
                raise self._error(reason, doing) from error
            return

    def _error(self, reason: KafkaError, doing: str) -> ClientError:
        if reason.fatal() and reason.code() in FENCED:
            self._failure = ProducerFenced(
                f"{doing}: another producer with transactional id {self._id} has started since, or the transaction "
                "was open for longer than transaction_timeout_ms. Make a new producer",
                reason.name(),
            )
            return self._failure
        if reason.fatal():
            self._failure = ProducerFailed(f"{self._sentence(reason, doing)}. Make a new producer", reason.name())
            return self._failure
        if reason.txn_requires_abort():
            return TransactionAborted(f"{doing}; the transaction is aborted: {reason.str()}", reason.name())
        if reason.code() in TIMEOUTS or reason.retriable():
            return TimedOut(f"{doing}: no answer in time", reason.name())
        return self._connection.error(reason, doing)

    def _sentence(self, reason: KafkaError, doing: str) -> str:
        return str(self._connection.error(reason, doing))
