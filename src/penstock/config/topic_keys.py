"""Topic settings and the broker settings that supply their defaults.

Data only; `keys` describes a row. Names, types, defaults and limits are those of Apache
Kafka 4.3; deviation:
`flush.messages` is 1, so that acknowledged means durable.
"""

# The table is readable only with one row per line, so wrapping and its check are off.
# fmt: off
# ruff: noqa: E501

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.config.keys import Row

TOPIC_ROWS: tuple[Row, ...] = (
    ("cleanup.policy", "list", "delete", "compact delete", "ce", "The retention policy for old segments: delete removes them, compact keeps the last record of each key."),
    ("compression.gzip.level", "int", "-1", "1..9|-1", "ce", "Compression level for batches that the broker recompresses with gzip."),
    ("compression.lz4.level", "int", "9", "1..17", "ce", "Compression level for batches that the broker recompresses with lz4."),
    ("compression.type", "string", "producer", "uncompressed zstd lz4 snappy gzip producer", "ce", "Codec of stored batches. producer keeps the producer's codec."),
    ("compression.zstd.level", "int", "3", "-131072..22", "ce", "Compression level for batches that the broker recompresses with zstd."),
    ("delete.retention.ms", "long", "86400000", "0..", "ce", "How long a compacted log keeps tombstones."),
    ("file.delete.delay.ms", "long", "60000", "0..", "ce", "Time between the removal of a segment and the deletion of its files."),
    ("flush.messages", "long", "1", "1..", "ce", "Number of records after which the log is flushed. 1 makes every batch durable before it is acknowledged."),
    ("flush.ms", "long", "9223372036854775807", "0..", "ce", "Maximum time a record stays unflushed."),
    ("follower.replication.throttled.replicas", "list", "", "replicas", "ce", "Replicas whose replication is throttled on the follower, as partition:broker, or *."),
    ("index.interval.bytes", "int", "4096", "0..", "ce", "Bytes of log between two entries of the offset index."),
    ("internal.segment.bytes", "int", None, "", "cei", "Segment size for tests, may be below the usual minimum; it overrides segment.bytes."),
    ("leader.replication.throttled.replicas", "list", "", "replicas", "ce", "Replicas whose replication is throttled on the leader, as partition:broker, or *."),
    ("local.retention.bytes", "long", "-2", "-2..", "c", "Size of the local log when segments are also kept remotely; -2 means retention.bytes."),
    ("local.retention.ms", "long", "-2", "-2..", "c", "Age of the local log when segments are also kept remotely; -2 means retention.ms."),
    ("max.compaction.lag.ms", "long", "9223372036854775807", "1..", "ce", "Maximum time a record stays uncompacted."),
    ("max.message.bytes", "int", "1048588", "0..", "ce", "Maximum size of a batch, as compressed by the producer."),
    ("message.timestamp.after.max.ms", "long", "3600000", "0..", "ce", "How far in the future a record's timestamp may lie."),
    ("message.timestamp.before.max.ms", "long", "9223372036854775807", "0..", "ce", "How far in the past a record's timestamp may lie."),
    ("message.timestamp.type", "string", "CreateTime", "CreateTime LogAppendTime", "ce", "Whether a record keeps the producer's timestamp or gets the broker's."),
    ("min.cleanable.dirty.ratio", "double", "0.5", "0..1", "ce", "Minimum share of uncompacted bytes at which a log is compacted."),
    ("min.compaction.lag.ms", "long", "0", "0..", "ce", "Minimum time a record stays uncompacted."),
    ("min.insync.replicas", "int", "1", "1..", "ce", "Number of in-sync replicas that acks=all requires."),
    ("preallocate", "boolean", "false", "", "c", "Whether a new segment file gets its full size at once."),
    ("remote.log.copy.disable", "boolean", "false", "", "c", "Whether copying segments to remote storage is off."),
    ("remote.log.delete.on.disable", "boolean", "false", "", "c", "Whether remote segments are deleted when remote storage is turned off."),
    ("remote.storage.enable", "boolean", "false", "", "c", "Whether segments are also kept in remote storage. Must be false: there is none yet."),
    ("retention.bytes", "long", "-1", "", "ce", "Size of a partition above which its oldest segments are deleted. -1 means no limit."),
    ("retention.ms", "long", "604800000", "-1..", "ce", "Age above which segments are deleted. -1 means no limit."),
    ("segment.bytes", "int", "1073741824", "1048576..", "ce", "Size at which a segment rolls."),
    ("segment.index.bytes", "int", "10485760", "4..", "ce", "Maximum size of an index. A full index rolls the segment."),
    ("segment.jitter.ms", "long", "0", "0..", "ce", "Upper limit of the random time subtracted from segment.ms, so that segments do not roll all at once."),
    ("segment.ms", "long", "604800000", "1..", "ce", "Age at which a segment rolls even if it is not full."),
    ("unclean.leader.election.enable", "boolean", "false", "", "ce", "Whether a replica that is not in sync may become leader."),
)

# Broker keys that supply the default, nearest first.
TOPIC_SYNONYMS = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms log.flush.scheduler.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms log.retention.minutes log.retention.hours",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms log.roll.jitter.hours",
    "segment.ms": "log.roll.ms log.roll.hours",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
