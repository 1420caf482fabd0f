"""The settings of the brokers of a history: some make it short, others are drawn from its seed.

Every drawn setting takes its smallest, its usual or its largest sensible value, so that limits are reached in some
histories: batches larger than a follower's fetch, checkpoints at every turn, metadata snapshots after every few
records. Must not know: clusters, faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from penstock.core.partition.follower import LONGEST_PAUSE_MS

SETTINGS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.segment.bytes": "4096",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.segment.bytes": "4096",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "penstock.disk.hung.ms": "1000",
    "replica.lag.time.max.ms": "2000",
    "replica.socket.timeout.ms": "5000",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "log.cleaner.backoff.ms": "3000",
    "log.initial.task.delay.ms": "200",
    "log.retention.check.interval.ms": "500",
    "metadata.log.max.record.bytes.between.snapshots": "1000",
    # Wall clocks jump by days, and a producer idle for a day by the clock is forgotten, as in Kafka.
    "producer.id.expiration.ms": "2000000000",
}
"""Failures are noticed within seconds, and few partitions store groups and transactions."""

DRAWN: Mapping[str, tuple[int, ...]] = {
    "broker.heartbeat.interval.ms": (200, 350, 500),
    "broker.session.timeout.ms": (1000, 2000, 2000, 4000),
    "controller.quorum.election.timeout.ms": (500, 1000, 2000),
    "fetch.max.bytes": (1024, 8 << 10, 57671680),
    "group.initial.rebalance.delay.ms": (0, 0, 500),
    "leader.imbalance.check.interval.seconds": (1, 5, 300),
    "log.cleaner.backoff.ms": (300, 1000, 3000),
    "log.flush.offset.checkpoint.interval.ms": (200, 1000, 5000),
    "log.flush.start.offset.checkpoint.interval.ms": (200, 1000, 60000),
    "log.index.interval.bytes": (0, 512, 4096),
    "log.segment.delete.delay.ms": (0, 500, 60000),
    "max.incremental.fetch.session.cache.slots": (0, 2, 1000),
    "metadata.log.max.record.bytes.between.snapshots": (300, 1000, 1000, 10000),
    "offsets.topic.num.partitions": (1, 2, 3),
    "offsets.topic.segment.bytes": (1 << 10, 2 << 10, 104857600),
    "penstock.broker.lost.grace.ms": (0, 300, 300, 1000),
    "penstock.disk.hung.ms": (300, 1000, 5000),
    "replica.fetch.backoff.ms": (50, 300, 1000),
    "replica.fetch.max.bytes": (1, 2 << 10, 1 << 20),
    "replica.fetch.response.max.bytes": (1, 4 << 10, 10 << 20),
    "replica.fetch.wait.max.ms": (200, 500),
    "replica.high.watermark.checkpoint.interval.ms": (100, 1000, 5000),
    "replica.lag.time.max.ms": (600, 2000, 2000, 5000),
}

DRAWN_OF_TRANSACTIONS: Mapping[str, tuple[int, ...]] = {
    "transaction.state.log.num.partitions": (1, 2, 3),
    "transaction.state.log.segment.bytes": (1 << 10, 4 << 10, 104857600),
    "add.partitions.to.txn.retry.backoff.ms": (1, 20),
}
"""The settings of transactions, drawn from their own random stream."""

ELECTIONS = 4
"""Consecutive elections without a majority; more do not happen."""


def draw_settings(random: Random, drawn: Mapping[str, tuple[int, ...]] = DRAWN) -> dict[str, str]:
    """Half of them are the usual ones, so that unusual values in a history stand out."""
    return {
        name: str(random.choice(values)) if random.random() < 0.5 else SETTINGS.get(name, str(values[-1]))
        for name, values in drawn.items()
    }


def well_within_s(settings: Mapping[str, str]) -> float:
    """How long a cluster may take to be well after its last fault. Each step may have to wait for the previous one: a
    controller, if votes split repeatedly; the end of the sessions of silent brokers; followers that notice a silent
    leader and ask again; replicas that lag and catch up; repeated pauses of a follower that could not store what it
    fetched."""
    chain = (
        *(2 * ELECTIONS * ["controller.quorum.election.timeout.ms"]),  # a timeout is one to two times the setting
        "broker.session.timeout.ms",
        "broker.heartbeat.interval.ms",
        "replica.socket.timeout.ms",
        "replica.fetch.wait.max.ms",
        "replica.fetch.backoff.ms",
        "replica.lag.time.max.ms",
    )
    return (sum(int(settings[name]) for name in chain) + LONGEST_PAUSE_MS) / 1000
