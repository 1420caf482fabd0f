"""Our key tables beside facts of Apache Kafka 4.3.1, read from its DescribeConfigs and its definitions."""

from __future__ import annotations

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.group import GROUP_KEYS
from penstock.config.keys import Dynamic, KeyTable
from penstock.config.settings import BROKER_KEYS
from penstock.config.topic import TOPIC_KEYS

# name, type, default, whether it can change at run time; "-" is no default, "<empty>" an empty one
TOPIC = """
cleanup.policy LIST delete dynamic
compression.gzip.level INT -1 dynamic
compression.lz4.level INT 9 dynamic
compression.type STRING producer dynamic
compression.zstd.level INT 3 dynamic
delete.retention.ms LONG 86400000 dynamic
file.delete.delay.ms LONG 60000 dynamic
flush.messages LONG 9223372036854775807 dynamic
flush.ms LONG 9223372036854775807 dynamic
follower.replication.throttled.replicas LIST <empty> dynamic
index.interval.bytes INT 4096 dynamic
leader.replication.throttled.replicas LIST <empty> dynamic
local.retention.bytes LONG -2 dynamic
local.retention.ms LONG -2 dynamic
max.compaction.lag.ms LONG 9223372036854775807 dynamic
max.message.bytes INT 1048588 dynamic
message.timestamp.after.max.ms LONG 3600000 dynamic
message.timestamp.before.max.ms LONG 9223372036854775807 dynamic
message.timestamp.type STRING CreateTime dynamic
min.cleanable.dirty.ratio DOUBLE 0.5 dynamic
min.compaction.lag.ms LONG 0 dynamic
min.insync.replicas INT 1 dynamic
preallocate BOOLEAN false dynamic
remote.log.copy.disable BOOLEAN false dynamic
remote.log.delete.on.disable BOOLEAN false dynamic
remote.storage.enable BOOLEAN false dynamic
retention.bytes LONG -1 dynamic
retention.ms LONG 604800000 dynamic
segment.bytes INT 1073741824 dynamic
segment.index.bytes INT 10485760 dynamic
segment.jitter.ms LONG 0 dynamic
segment.ms LONG 604800000 dynamic
unclean.leader.election.enable BOOLEAN false dynamic
"""
GROUP = """
consumer.assignment.interval.ms INT 1000 dynamic
consumer.heartbeat.interval.ms INT 5000 dynamic
consumer.session.timeout.ms INT 45000 dynamic
share.assignment.interval.ms INT 1000 dynamic
share.auto.offset.reset STRING latest dynamic
share.delivery.count.limit INT 5 dynamic
share.heartbeat.interval.ms INT 5000 dynamic
share.isolation.level STRING read_uncommitted dynamic
share.partition.max.record.locks INT 2000 dynamic
share.record.lock.duration.ms INT 30000 dynamic
share.renew.acknowledge.enable BOOLEAN true dynamic
share.session.timeout.ms INT 45000 dynamic
streams.assignment.interval.ms INT 1000 dynamic
streams.heartbeat.interval.ms INT 5000 dynamic
streams.initial.rebalance.delay.ms INT 3000 dynamic
streams.num.standby.replicas INT 0 dynamic
streams.session.timeout.ms INT 45000 dynamic
"""
BROKER = """
auto.create.topics.enable BOOLEAN true fixed
compression.type STRING producer dynamic
connections.max.idle.ms LONG 600000 fixed
default.replication.factor INT 1 fixed
delete.topic.enable BOOLEAN true fixed
fetch.max.bytes INT 57671680 fixed
group.consumer.heartbeat.interval.ms INT 5000 fixed
group.consumer.session.timeout.ms INT 45000 fixed
group.initial.rebalance.delay.ms INT 3000 fixed
group.max.session.timeout.ms INT 1800000 fixed
group.min.session.timeout.ms INT 6000 fixed
log.cleanup.policy LIST delete dynamic
log.flush.interval.messages LONG 9223372036854775807 dynamic
log.flush.interval.ms LONG - dynamic
log.flush.offset.checkpoint.interval.ms INT 60000 fixed
log.flush.scheduler.interval.ms LONG 9223372036854775807 fixed
log.index.interval.bytes INT 4096 dynamic
log.index.size.max.bytes INT 10485760 dynamic
log.message.timestamp.after.max.ms LONG 3600000 dynamic
log.message.timestamp.before.max.ms LONG 9223372036854775807 dynamic
log.message.timestamp.type STRING CreateTime dynamic
log.retention.bytes LONG -1 dynamic
log.retention.check.interval.ms LONG 300000 fixed
log.retention.hours INT 168 fixed
log.retention.minutes INT - fixed
log.retention.ms LONG - dynamic
log.roll.hours INT 168 fixed
log.roll.ms LONG - dynamic
log.segment.bytes INT 1073741824 dynamic
log.segment.delete.delay.ms LONG 60000 dynamic
max.connections INT 2147483647 dynamic
max.connections.per.ip INT 2147483647 dynamic
max.incremental.fetch.session.cache.slots INT 1000 fixed
message.max.bytes INT 1048588 dynamic
min.insync.replicas INT 1 dynamic
num.partitions INT 1 fixed
num.recovery.threads.per.data.dir INT 2 dynamic
offsets.retention.minutes INT 10080 fixed
offsets.topic.num.partitions INT 50 fixed
offsets.topic.replication.factor SHORT 3 fixed
producer.id.expiration.ms INT 86400000 dynamic
queued.max.requests INT 500 fixed
replica.lag.time.max.ms LONG 30000 fixed
socket.request.max.bytes INT 104857600 fixed
ssl.client.auth STRING none dynamic
ssl.keystore.password PASSWORD - dynamic
transaction.max.timeout.ms INT 900000 fixed
transaction.state.log.replication.factor SHORT 3 fixed
transaction.two.phase.commit.enable BOOLEAN false fixed
transactional.id.expiration.ms INT 604800000 fixed
unclean.leader.election.enable BOOLEAN false dynamic
"""
DEVIATIONS = {
    "flush.messages": "1",
    "log.flush.interval.messages": "1",
    "transaction.two.phase.commit.enable": "true",
}


@pytest.mark.parametrize(
    ("table", "facts"),
    [(TOPIC_KEYS, TOPIC), (GROUP_KEYS, GROUP), (BROKER_KEYS, BROKER)],
    ids=["topic", "group", "broker"],
)
def test_keys_are_as_in_kafka(table: KeyTable, facts: str) -> None:
    for line in facts.strip().splitlines():
        name, type_name, default, change = line.split()
        key = table[name]
        text = None if default == "-" else "" if default == "<empty>" else default
        assert key.default == DEVIATIONS.get(name, text), name
        assert key.type.name == type_name, name
        assert (key.dynamic is not Dynamic.READ_ONLY) == (change == "dynamic"), name


@pytest.mark.parametrize(("table", "facts"), [(TOPIC_KEYS, TOPIC), (GROUP_KEYS, GROUP)], ids=["topic", "group"])
def test_no_key_is_missing_or_invented(table: KeyTable, facts: str) -> None:
    listed = {line.split()[0] for line in facts.strip().splitlines()}
    assert {name for name, key in table.items() if not key.internal} == listed


def test_the_broker_lists_as_many_settings_as_kafka() -> None:
    listed = [name for name, key in BROKER_KEYS.items() if not key.internal and not name.startswith("penstock.")]
    assert len(listed) == 340


def test_kafkas_sample_file_loads(tmp_path: object) -> None:
    text = """
    process.roles=broker,controller
    node.id=1
    controller.quorum.bootstrap.servers=localhost:9093
    listeners=PLAINTEXT://:9092,CONTROLLER://:9093
    inter.broker.listener.name=PLAINTEXT
    advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
    controller.listener.names=CONTROLLER
    listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
    num.network.threads=3
    num.io.threads=8
    socket.send.buffer.bytes=102400
    log.dirs=/data/kraft-combined-logs
    num.partitions=1
    offsets.topic.replication.factor=1
    share.coordinator.state.topic.replication.factor=1
    transaction.state.log.min.isr=1
    log.retention.hours=168
    log.segment.bytes=1073741824
    """
    path = f"{tmp_path}/server.properties"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    config, warnings = BrokerConfig.load(path, {})
    assert warnings == []
    assert [endpoint.port for endpoint in config.listeners] == [9092]
    assert [endpoint.port for endpoint in config.controller_listeners] == [9093]
