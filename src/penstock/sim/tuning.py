"""Which settings are changed while a cluster is used, and to what: every dynamic one with an effect, or a reason.

The key tables are the measure: a new setting that is in none of these tables fails a test. Values are the smallest, the
usual and the largest that still let a history end; settings that could prevent that are restored in time. Must not
know: clusters, clients, faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.config.group import GROUP_KEYS
from penstock.config.keys import Dynamic, KeyTable
from penstock.config.settings import BROKER_KEYS
from penstock.config.topic import TOPIC_KEYS

LONG_MAX = str(2**63 - 1)
DAYS_MS = str(7 * 86_400_000)
CODECS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
CLEANUP_POLICY = "cleanup.policy"
COMPACTED = ("compact", "delete", "compact,delete")
RETENTION_BYTES = (6000, 12000)
Values = tuple[str, ...]

TOPIC_VALUES: Mapping[str, Values] = {
    "compression.gzip.level": ("-1", "1", "9"),
    "compression.lz4.level": ("1", "9", "17"),
    "compression.type": CODECS,
    "compression.zstd.level": ("1", "3", "9"),
    "file.delete.delay.ms": ("0", "500", "60000"),
    "flush.ms": ("0", "300", LONG_MAX),
    "follower.replication.throttled.replicas": ("", "*", "0:1,0:2"),
    "index.interval.bytes": ("0", "100", "4096"),
    "leader.replication.throttled.replicas": ("", "*", "0:1,0:3"),
    "max.compaction.lag.ms": ("500", "5000", LONG_MAX),
    "max.message.bytes": ("600", "5000", "1048588"),
    "message.timestamp.after.max.ms": ("60000", "3600000", LONG_MAX),
    "message.timestamp.before.max.ms": ("60000", "3600000", LONG_MAX),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": ("0", "0.01", "0.5"),
    "min.compaction.lag.ms": ("0", "300", "2000"),
    "min.insync.replicas": ("1", "2", "3"),
    "segment.bytes": ("1048576", "1073741824"),
    "segment.index.bytes": ("24", "200", "10485760"),
    "segment.jitter.ms": ("0", "200"),
    "segment.ms": ("300", "2000", DAYS_MS),
}
"""Settings of every topic."""

ON_COMPACTED: Mapping[str, Values] = {
    CLEANUP_POLICY: COMPACTED,
    "delete.retention.ms": ("800", "1000", "86400000"),
    "internal.segment.bytes": ("1000", "8192", "1048576"),
}
"""Settings of the topic that begins as compacted: its keys stay with any policy, because nothing in it is old."""

ON_TRIMMED: Mapping[str, Values] = {
    "internal.segment.bytes": ("600", "2048", "8192"),
    "retention.bytes": (*map(str, RETENTION_BYTES), "-1"),
    "retention.ms": ("1500", DAYS_MS, "-1"),
}
"""Settings of the topic whose oldest records may be deleted."""

ON_UNCLEAN: Mapping[str, Values] = {"unclean.leader.election.enable": ("true", "false")}
"""For the topic whose loss is judged: an election is unclean only while this setting allows it."""

FLUSHES: Mapping[str, Values] = {"flush.messages": ("1", "5", LONG_MAX)}
"""Only in histories where no power fails, except on one machine while all else is well."""

BROKER_VALUES: Mapping[str, Values] = {
    "compression.gzip.level": ("-1", "1"),
    "compression.lz4.level": ("1", "9"),
    "compression.type": CODECS,
    "compression.zstd.level": ("1", "3"),
    "follower.replication.throttled.rate": ("3000", "100000", LONG_MAX),
    "leader.replication.throttled.rate": ("3000", "100000", LONG_MAX),
    "log.cleaner.backoff.ms": ("200", "1000", "15000"),
    "log.cleaner.dedupe.buffer.size": ("1048576", "134217728"),
    "log.cleaner.delete.retention.ms": ("1000", "86400000"),
    "log.cleaner.io.buffer.load.factor": ("0.3", "0.9"),
    "log.cleaner.io.max.bytes.per.second": ("20000.0", "1.7976931348623157E308"),
    "log.cleaner.max.compaction.lag.ms": ("1000", LONG_MAX),
    "log.cleaner.min.cleanable.ratio": ("0.01", "0.5"),
    "log.cleaner.min.compaction.lag.ms": ("0", "500"),
    "log.cleanup.policy": ("delete", "compact", "compact,delete"),
    "log.flush.interval.ms": ("0", "300", LONG_MAX),
    "log.index.interval.bytes": ("0", "512", "4096"),
    "log.index.size.max.bytes": ("200", "10485760"),
    "log.message.timestamp.after.max.ms": ("60000", "3600000"),
    "log.message.timestamp.before.max.ms": ("3600000", LONG_MAX),
    "log.message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "log.retention.bytes": ("2000", "-1"),
    "log.retention.ms": ("1000", DAYS_MS),
    "log.roll.jitter.ms": ("0", "200"),
    "log.roll.ms": ("500", DAYS_MS),
    "log.segment.bytes": ("1048576", "1073741824"),
    "log.segment.delete.delay.ms": ("0", "500", "60000"),
    "max.connections": ("500", "2147483647"),
    "max.connections.per.ip": ("500", "2147483647"),
    "message.max.bytes": ("100000", "1048588"),
    "min.insync.replicas": ("1", "2"),
    "num.recovery.threads.per.data.dir": ("1", "2", "4"),
    "penstock.disk.hung.ms": ("300", "1000", "5000"),
    "penstock.group.heartbeat.hold.ms": ("0", "300", "3000"),
    "penstock.group.rebalance.settle.ms": ("0", "250", "1000"),
}
BROKER_FLUSHES: Mapping[str, Values] = {"log.flush.interval.messages": ("1", "5")}
CLUSTER_WIDE_ONLY = ("min.insync.replicas", "log.flush.interval.messages")
"""All brokers must agree on these."""

LEFT_ALONE: Mapping[str, str] = {
    "unclean.leader.election.enable": "it applies to all topics, and the other topics must lose nothing",
    "producer.id.expiration.ms": "a forgotten producer may write duplicates: lanes must know the setting in advance",
    "transaction.partition.verification.enable": "without it a late batch of an older client may hold readers for ever",
}

ON_OFFSETS = ("compression.type", "index.interval.bytes", "min.insync.replicas", "segment.index.bytes", "segment.ms")
"""Settings of the topic that stores groups, besides those of its compaction."""
FIRST = (CLEANUP_POLICY, "min.insync.replicas", "flush.messages", *ON_UNCLEAN)

PINNED: Mapping[str, str] = {
    CLEANUP_POLICY: "delete",
    "retention.bytes": "-1",
    "retention.ms": DAYS_MS,
}
"""Settings of topics that must lose nothing, whatever the broker defaults are."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The changes in one history: by topic, and of brokers."""

    topics: Mapping[str, Mapping[str, Values]]
    brokers: Mapping[str, Values]
    planned: Mapping[str, Mapping[str, str]]
    """The initial values of topics and brokers; restored in the end."""
    first: tuple[str, ...]
    """Changed more often than others."""


def tuning(
    topics: Mapping[str, Mapping[str, str]],
    *,
    compacted: str,
    trimmed: str,
    unclean: str,
    offsets: str,
    brokers: tuple[str, Mapping[str, str]],
    may_flush_less: bool,
    tombstones_go: bool,
) -> Tuning:
    """`topics`: existing topics with their initial settings; `brokers`: broker names, and their initial settings."""
    flushes = FLUSHES if may_flush_less else {}
    on_compacted = {name: values for name, values in ON_COMPACTED.items() if tombstones_go or "delete.ret" not in name}
    of_topics: dict[str, Mapping[str, Values]] = {
        name: {
            **TOPIC_VALUES,
            **flushes,
            **(on_compacted if name == compacted else ON_TRIMMED if name == trimmed else {}),
        }
        for name in topics
        if name != unclean
    }
    if unclean in topics:
        of_topics[unclean] = ON_UNCLEAN
    of_topics[offsets] = {name: TOPIC_VALUES[name] for name in ON_OFFSETS}
    of_brokers = {**BROKER_VALUES, **(BROKER_FLUSHES if may_flush_less else {})}
    return Tuning(of_topics, of_brokers, {**topics, brokers[0]: brokers[1]}, FIRST)


def settings_changed() -> tuple[str, ...]:
    """All names as `penstock sim` shows them: those of topics, and those of brokers with that prefix."""
    topic = (*TOPIC_VALUES, *ON_COMPACTED, *ON_TRIMMED, *ON_UNCLEAN, *FLUSHES)
    names = dict.fromkeys(topic)
    names |= dict.fromkeys(f"broker {name}" for name in (*BROKER_VALUES, *BROKER_FLUSHES))
    return tuple(names)


def forgotten() -> list[str]:
    """Dynamic settings with an effect that are neither changed nor excused."""
    known: tuple[tuple[KeyTable, Iterable[str]], ...] = (
        (TOPIC_KEYS, (*TOPIC_VALUES, *ON_COMPACTED, *ON_TRIMMED, *ON_UNCLEAN, *FLUSHES)),
        (BROKER_KEYS, (*BROKER_VALUES, *BROKER_FLUSHES, *LEFT_ALONE)),
        (GROUP_KEYS, LEFT_ALONE),
    )
    return [f"{table.kind}: {name}" for table, names in known for name in _dynamic(table) if name not in names]


def _dynamic(table: KeyTable) -> list[str]:
    return [name for name in table if table[name].dynamic is not Dynamic.READ_ONLY and table[name].effective]
