"""A task's part of an exactly-once batch: it writes its rows in a transaction and leaves that open for the driver.

begin    asks whether the batch is decided: then the rows are in the log, and the task skips them
write    begins a transaction with the first row, with an id of this process (`sink.slots`)
finish   waits until all rows are acknowledged, and returns the transaction. It stays open: the driver decides
abandon  aborts the transaction

A task without rows has no transaction. Where the cluster offers two-phase commit (KIP-939), the transaction has no
timeout. Elsewhere it has the longest one that the cluster allows.

Must not know: decisions, except whether a batch is decided.
"""

from __future__ import annotations

import logging

from penstock.model.errors import ApiError, ErrorCode
from penstock.spark.sink.decisions import NONE_DECIDED, Decisions
from penstock.spark.sink.delivery import Destinations, Finished, Slice
from penstock.spark.sink.options import SinkOptions
from penstock.spark.sink.producing import DeliveryFailed, TaskProducer
from penstock.spark.sink.slots import Run, Slot, slots
from penstock.spark.sink.steps import Step, reach
from penstock.spark.worker import cluster_for
from penstock.wire_client.blocking.transactions import Transactions
from penstock.wire_client.requests.errors import WireClientError
from penstock.wire_client.requests.producing_transactions import OpenTransaction

logger = logging.getLogger(__name__)

OPEN = frozenset(("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"))


class ExactlyOnce:
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._cluster = cluster_for(options.cluster)
        self._transactions = Transactions(self._cluster)
        self._destinations = Destinations(self._cluster, options.cluster)
        self._slot: Slot | None = None
        self._run: Run | None = None
        self._batch_id = -1
        self._last_decided = NONE_DECIDED
        self._producer: TaskProducer | None = None
        self._batch_size_bytes = options.producer.batch_size_bytes
        self._is_decided_meanwhile = False
        self._transaction: OpenTransaction | None = None

    def begin(self, slice_: Slice) -> bool:
        """Raises DeliveryFailed outside of a streaming query."""
        if slice_.query_id is None or slice_.run_id is None or slice_.batch_id is None:
            raise DeliveryFailed("this write is not part of a streaming query: it cannot be delivered exactly once")
        self._run, self._batch_id = Run(slice_.query_id, slice_.run_id), slice_.batch_id
        return not self._is_decided()

    def _is_decided(self) -> bool:
        assert self._run is not None
        self._last_decided = Decisions(self._cluster, self._run.query_id).last_batch()
        return self._last_decided >= self._batch_id

    @property
    def batch_size_bytes(self) -> int:
        return self._batch_size_bytes if self._producer is None else self._producer.batch_size_bytes

    def partition_count(self, topic: str) -> int:
        return self._destinations.partition_count(topic)

    def write(self, topic: str, partition: int, data: bytearray, record_count: int) -> None:
        if self._is_decided_meanwhile:
            return
        if self._producer is None:
            self._transaction = self._open()
            reach(Step.TASK_BEGUN)
            # A late attempt must not leave a transaction behind that the driver no longer looks for.
            if self._is_decided():
                self._is_decided_meanwhile, self._transaction = True, None
                return
            self._producer = TaskProducer(self._cluster, self._options.producer, transaction=self._transaction)
        self._producer.send(topic, partition, data, record_count)
        reach(Step.TASK_WRITING)

    def _open(self) -> OpenTransaction:
        assert self._run is not None
        self._slot = slots.take(self._options.cluster, self._run, self._batch_id, self._last_decided, self._has_ended)
        options = self._options.transaction
        return self._transactions.begin(
            self._slot.transactional_id, options.timeout_ms, two_phase=options.is_two_phase_allowed
        )

    def _has_ended(self, transactional_id: str) -> bool:
        found = self._transactions.describe([transactional_id]).get(transactional_id)
        return found is None or found.state not in OPEN

    def finish(self) -> Finished:
        if self._producer is None:
            self._rest()
            return Finished((), is_repeat=self._is_decided_meanwhile)
        self._producer.flush()
        reach(Step.TASK_FLUSHED)
        self._producer.close()
        self._rest()
        return Finished(tuple(self._producer.written()), self._transaction)

    def abandon(self) -> None:
        """Does not raise: the error that the attempt has met matters more."""
        self._destinations.forget()
        if self._producer is not None:
            self._producer.close()
        if self._transaction is not None:
            try:
                (code,) = self._transactions.end([self._transaction], is_commit=False).values()
            except (ApiError, WireClientError) as error:
                logger.warning(
                    "the transaction of a failed attempt stays open until the next batch is committed: %s", error
                )
            else:
                if code is not ErrorCode.NONE:
                    logger.debug("transaction %s has ended already: %s", self._transaction.transactional_id, code.name)
        self._rest()

    def _rest(self) -> None:
        if self._slot is not None:
            slots.give_back(self._options.cluster, self._slot)
            self._slot = None
