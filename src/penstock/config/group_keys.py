"""Group settings and the broker settings that supply their defaults.

Data only; `keys` describes a row. Names, types, defaults and limits are those of Apache
Kafka 4.3.
"""

# The table is readable only with one row per line, so wrapping and its check are off.
# fmt: off
# ruff: noqa: E501

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.config.keys import Row

GROUP_ROWS: tuple[Row, ...] = (
    ("consumer.assignment.interval.ms", "int", "1000", "0..", "c", "Shortest time between two assignments of this consumer group."),
    ("consumer.heartbeat.interval.ms", "int", "5000", "1..", "c", "Heartbeat interval given to members of this consumer group."),
    ("consumer.session.timeout.ms", "int", "45000", "1..", "c", "Time without a heartbeat after which a member of this consumer group is removed."),
    ("share.assignment.interval.ms", "int", "1000", "0..", "c", "Shortest time between two assignments of this share group."),
    ("share.auto.offset.reset", "string", "latest", "offset-reset", "c", "Where a share group without an offset starts."),
    ("share.delivery.count.limit", "int", "5", "2..", "c", "Number of times a record is delivered to this share group before the group gives it up."),
    ("share.heartbeat.interval.ms", "int", "5000", "1..", "c", "Heartbeat interval given to members of this share group."),
    ("share.isolation.level", "string", "read_uncommitted", "read_committed read_uncommitted", "c", "Whether this share group sees records of open transactions."),
    ("share.partition.max.record.locks", "int", "2000", "100..", "c", "Maximum number of records of one partition that this share group locks."),
    ("share.record.lock.duration.ms", "int", "30000", "1000..", "c", "How long a member of this share group holds an acquired record."),
    ("share.renew.acknowledge.enable", "boolean", "true", "", "c", "Whether members may renew the lock of a record."),
    ("share.session.timeout.ms", "int", "45000", "1..", "c", "Time without a heartbeat after which a member of this share group is removed."),
    ("streams.assignment.interval.ms", "int", "1000", "0..", "c", "Shortest time between two assignments of this streams group."),
    ("streams.heartbeat.interval.ms", "int", "5000", "1..", "c", "Heartbeat interval given to members of this streams group."),
    ("streams.initial.rebalance.delay.ms", "int", "3000", "0..", "c", "How long a new streams group waits for more members."),
    ("streams.num.standby.replicas", "int", "0", "0..", "c", "Standby replicas of each task of this streams group."),
    ("streams.session.timeout.ms", "int", "45000", "1..", "c", "Time without a heartbeat after which a member of this streams group is removed."),
)

# Broker keys that supply the default.
GROUP_SYNONYMS = {
    "consumer.assignment.interval.ms": "group.consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "share.assignment.interval.ms": "group.share.assignment.interval.ms",
    "share.delivery.count.limit": "group.share.delivery.count.limit",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.partition.max.record.locks": "group.share.partition.max.record.locks",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
    "streams.assignment.interval.ms": "group.streams.assignment.interval.ms",
    "streams.heartbeat.interval.ms": "group.streams.heartbeat.interval.ms",
    "streams.initial.rebalance.delay.ms": "group.streams.initial.rebalance.delay.ms",
    "streams.num.standby.replicas": "group.streams.num.standby.replicas",
    "streams.session.timeout.ms": "group.streams.session.timeout.ms",
}
