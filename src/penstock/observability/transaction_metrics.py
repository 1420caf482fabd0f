"""Transactions that this broker coordinates, and transactions that hold back the last stable offset of its partitions.

A coordinator reports its transactional ids, a leader its partitions, so sums over the brokers of a cluster are correct.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from heapq import nlargest

from penstock.cluster.running_config import RunningConfig
from penstock.coordination.transactions import TransactionCoordinator
from penstock.core.txn.states import State
from penstock.observability.exposition import Family, Sample, counter, gauge
from penstock.ports.clock import Clock
from penstock.replica.hosting import HostedPartitions
from penstock.replica.partition import Partition

MOST_LAGS = 100
LATE_MS = 300_000
"""Added to the longest timeout: as in Kafka, the coordinator has this much time to abort a transaction."""
SHOWN = (
    State.EMPTY,
    State.ONGOING,
    State.PREPARE_COMMIT,
    State.PREPARE_ABORT,
    State.COMPLETE_COMMIT,
    State.COMPLETE_ABORT,
)


class TransactionMetrics:
    def __init__(
        self,
        transactions: TransactionCoordinator,
        partitions: HostedPartitions,
        running: RunningConfig,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._partitions = partitions
        self._running = running
        self._clock = clock

    async def families(self) -> AsyncIterator[Family]:
        now_ms = self._clock.now_ms()
        states: Counter[State] = Counter()
        began_ms = now_ms
        for hosted in list(self._transactions.shards()):
            if hosted.is_ready:
                known = list(hosted.shard.transactions.values())
                states.update(one.state for one in known)
                open_since = (one.start_ms for one in known if one.state is State.ONGOING or one.is_ending)
                began_ms = min(began_ms, min(open_since, default=now_ms))
                await asyncio.sleep(0)
        yield gauge(
            "penstock_transactional_ids",
            "Transactional ids coordinated by this broker, by state.",
            ("state",),
            [((state.title,), states[state]) for state in SHOWN],
        )
        yield gauge(
            "penstock_transactions_open",
            "Transactions coordinated by this broker that are ongoing, or decided but with markers still to be "
            "written.",
            (),
            _one(states[State.ONGOING] + states[State.PREPARE_COMMIT] + states[State.PREPARE_ABORT]),
        )
        yield gauge(
            "penstock_transaction_oldest_age_seconds",
            "Age of the oldest open transaction coordinated by this broker; 0 if there is none.",
            (),
            _one((now_ms - began_ms) / 1000),
        )
        yield counter(
            "penstock_transaction_timeouts_total",
            "Transactions aborted by this broker because they were open for longer than their timeout.",
            (),
            _one(self._transactions.timed_out),
        )
        yield gauge(
            "penstock_transaction_markers_waiting",
            "Decided transactions with markers that a partition leader has not written yet.",
            (),
            _one(self._transactions.waiting_markers),
        )
        held_back = [one for one in self._partitions if one.is_leader and _lag(one)]
        yield gauge(
            "penstock_last_stable_offset_lag",
            "Committed records that consumers with read_committed cannot read yet, because a transaction is open; "
            "only the largest lags.",
            ("topic", "partition"),
            nlargest(MOST_LAGS, map(_sample, held_back), key=lambda sample: sample[1]),
        )
        last_ms = now_ms - self._running.current.transaction_max_timeout_ms - LATE_MS
        yield gauge(
            "kafka_server_replicamanager_partitionswithlatetransactionscount",
            "Partitions led by this broker with a transaction that its coordinator should have ended long ago.",
            (),
            _one(sum(_is_late(one, last_ms) for one in held_back)),
        )


def _lag(partition: Partition) -> int:
    return partition.high_watermark - partition.last_stable_offset


def _sample(partition: Partition) -> Sample:
    return (partition.topic, str(partition.index)), _lag(partition)


def _is_late(partition: Partition, last_ms: int) -> bool:
    return any(
        producer.transaction_first_offset >= 0 and producer.last_timestamp < last_ms
        for producer in partition.log.producers
    )


def _one(number: float) -> list[Sample]:
    return [((), number)]
