"""Broker settings of the node itself, its sockets, topics and logs, and Penstock's own.

Data only; a row is described in `keys`. Names, types, defaults and limits are those of Apache
Kafka 4.3; deviations:
`log.flush.interval.messages` is 1, so that acknowledged means durable; `log.dir` is a
directory that outlives a reboot; `process.roles` and `controller.listener.names` may be left out;
`listeners` and their protocols are read at the start only.
"""

# One row per line is what makes the table readable, so neither wrapping nor its check applies.
# fmt: off
# ruff: noqa: E501

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.config.keys import Row

NODE_ROWS: tuple[Row, ...] = (
    ("advertised.listeners", "list", None, "", "re", "Addresses given to clients; without it a client is given the address it used."),
    ("alter.config.policy.class.name", "class", None, "", "r", "Java class that may veto configuration changes."),
    ("background.threads", "int", "10", "1..", "c", "Threads for work in the background."),
    ("broker.id", "int", "-1", "", "re", "Older name of node.id."),
    ("broker.rack", "string", None, "", "re", "Rack of this node, told to clients; replicas are spread over racks, and see replica.selector.class."),
    ("client.quota.callback.class", "class", None, "", "r", "Java class that computes client quotas."),
    ("config.providers", "list", "", "", "c", "Names of providers that resolve placeholders in settings."),
    ("connections.max.idle.ms", "long", "600000", "", "re", "A connection without traffic for this long is closed."),
    ("controller.listener.names", "list", "", "", "re", "Names in listeners that belong to the controller; they are not served to clients."),
    ("cordoned.log.dirs", "list", "", "", "b", "Data directories that take no new partitions."),
    ("create.topic.policy.class.name", "class", None, "", "r", "Java class that may veto new topics."),
    ("delete.records.purgatory.purge.interval.requests", "int", "1", "", "r", "Waiting DeleteRecords requests between two clean-ups."),
    ("early.start.listeners", "list", None, "", "r", "Listeners that open before the node has finished starting."),
    ("fetch.max.bytes", "int", "57671680", "1024..", "re", "Most bytes in one fetch response, whatever the client asks for."),
    ("fetch.purgatory.purge.interval.requests", "int", "1000", "", "r", "Waiting Fetch requests between two clean-ups."),
    ("inter.broker.listener.name", "string", None, "", "re", "Listener that other brokers use for this one; the first one if there is none."),
    ("kafka.metrics.polling.interval.secs", "int", "10", "1..", "r", "How often metrics reporters are polled."),
    ("kafka.metrics.reporters", "list", "", "", "r", "Java classes that report the older metrics."),
    ("listener.security.protocol.map", "string", "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", "", "re", "Which security protocol each listener name speaks."),
    ("listeners", "list", "PLAINTEXT://:9092", "", "re", "Addresses to listen on as NAME://host:port; an empty host is every interface."),
    ("max.connection.creation.rate", "int", "2147483647", "0..", "c", "Most new connections per second."),
    ("max.connections", "int", "2147483647", "0..", "ce", "Most connections at a time."),
    ("max.connections.per.ip", "int", "2147483647", "0..", "ce", "Most connections at a time from one address."),
    ("max.connections.per.ip.overrides", "string", "", "", "c", "Limits for single addresses as host:count, instead of max.connections.per.ip."),
    ("max.incremental.fetch.session.cache.slots", "int", "1000", "0..", "re", "Most fetch sessions kept at a time."),
    ("max.request.partition.size.limit", "int", "2000", "1..", "re", "Most partitions in one response of DescribeTopicPartitions."),
    ("metric.reporters", "list", "org.apache.kafka.common.metrics.JmxReporter", "", "c", "Java classes that report metrics."),
    ("metrics.num.samples", "int", "2", "1..", "r", "Samples behind each metric."),
    ("metrics.recording.level", "string", "INFO", "", "r", "Which metrics are recorded."),
    ("metrics.sample.window.ms", "long", "30000", "1..", "r", "Length of one sample of a metric."),
    ("node.id", "int", None, "0..", "re", "Number of this node, unique in its cluster."),
    ("num.io.threads", "int", "8", "1..", "c", "Threads that handle requests in Kafka; one event loop does it here."),
    ("num.network.threads", "int", "3", "1..", "c", "Threads that serve sockets in Kafka; one event loop does it here."),
    ("process.roles", "list", "broker,controller", "broker controller", "re", "What this node is: broker and controller."),
    ("producer.purgatory.purge.interval.requests", "int", "1000", "", "r", "Waiting Produce requests between two clean-ups."),
    ("queued.max.request.bytes", "long", "-1", "", "re", "Memory for requests on their way in, of all connections together. -1 is 512 MiB."),
    ("queued.max.requests", "int", "500", "1..", "r", "Requests waiting at a time before sockets are no longer read."),
    ("quota.window.num", "int", "11", "1..", "r", "Samples kept for client quotas."),
    ("quota.window.size.seconds", "int", "1", "1..", "r", "Length of one sample of client quotas."),
    ("request.timeout.ms", "int", "30000", "", "r", "How long a request between nodes may take."),
    ("server.max.startup.time.ms", "long", "9223372036854775807", "0..", "ri", "How long the start may take."),
    ("socket.connection.setup.timeout.max.ms", "long", "30000", "", "r", "Longest time to set up a connection to another node."),
    ("socket.connection.setup.timeout.ms", "long", "10000", "", "r", "First time limit to set up a connection to another node."),
    ("socket.listen.backlog.size", "int", "50", "1..", "re", "Connections the kernel holds until they are accepted."),
    ("socket.receive.buffer.bytes", "int", "102400", "", "r", "Receive buffer of client sockets; -1 leaves it to the kernel."),
    ("socket.request.max.bytes", "int", "104857600", "1..", "re", "Largest request accepted; a longer one closes the connection."),
    ("socket.send.buffer.bytes", "int", "102400", "", "r", "Send buffer of client sockets; -1 leaves it to the kernel."),
    ("telemetry.max.bytes", "int", "1048576", "1..", "r", "Largest metrics push accepted from a client."),
    ("unstable.api.versions.enable", "boolean", "false", "", "ri", "Whether API versions still in development are offered."),
    ("unstable.feature.versions.enable", "boolean", "false", "", "ri", "Whether feature versions still in development are offered."),
)

LOG_ROWS: tuple[Row, ...] = (
    ("auto.create.topics.enable", "boolean", "true", "", "re", "Whether asking for the metadata of a missing topic creates it."),
    ("compression.gzip.level", "int", "-1", "1..9|-1", "ce", "Level used when a batch is recompressed with gzip."),
    ("compression.lz4.level", "int", "9", "1..17", "ce", "Level used when a batch is recompressed with lz4."),
    ("compression.type", "string", "producer", "uncompressed zstd lz4 snappy gzip producer", "ce", "Codec of stored batches; producer keeps what the producer sent."),
    ("compression.zstd.level", "int", "3", "-131072..22", "ce", "Level used when a batch is recompressed with zstd."),
    ("default.replication.factor", "int", "1", "", "re", "Replicas of a topic created without a number of its own."),
    ("delete.topic.enable", "boolean", "true", "", "re", "Whether DeleteTopics is allowed."),
    ("log.cleaner.backoff.ms", "long", "15000", "0..", "ce", "Pause of the cleaner when no log needs cleaning."),
    ("log.cleaner.dedupe.buffer.size", "long", "134217728", "", "ce", "Memory of all cleaner threads for the map of keys."),
    ("log.cleaner.delete.retention.ms", "long", "86400000", "0..", "ce", "Default of delete.retention.ms."),
    ("log.cleaner.enable", "boolean", "true", "", "re", "Whether logs are compacted."),
    ("log.cleaner.io.buffer.load.factor", "double", "0.9", "", "ce", "How full the cleaner's map of keys may get."),
    ("log.cleaner.io.buffer.size", "int", "524288", "0..", "c", "Memory of all cleaner threads for reading and writing."),
    ("log.cleaner.io.max.bytes.per.second", "double", "1.7976931348623157E308", "", "ce", "Most bytes the cleaner reads and writes per second."),
    ("log.cleaner.max.compaction.lag.ms", "long", "9223372036854775807", "1..", "ce", "Default of max.compaction.lag.ms."),
    ("log.cleaner.min.cleanable.ratio", "double", "0.5", "0..1", "ce", "Default of min.cleanable.dirty.ratio."),
    ("log.cleaner.min.compaction.lag.ms", "long", "0", "0..", "ce", "Default of min.compaction.lag.ms."),
    ("log.cleaner.threads", "int", "1", "0..", "c", "Threads of the cleaner."),
    ("log.cleanup.policy", "list", "delete", "compact delete", "ce", "Default of cleanup.policy."),
    ("log.dir", "list", "~/.local/share/penstock", "", "re", "Data directory, where log.dirs is absent."),
    ("log.dir.failure.timeout.ms", "long", "30000", "1..", "r", "How long a broker keeps running when it cannot report a failed directory."),
    ("log.dirs", "list", None, "", "re", "Data directory; only one is supported yet."),
    ("log.flush.interval.messages", "long", "1", "1..", "ce", "Default of flush.messages; 1 makes every acknowledged batch durable first."),
    ("log.flush.interval.ms", "long", None, "", "ce", "Default of flush.ms; where absent, log.flush.scheduler.interval.ms counts."),
    ("log.flush.offset.checkpoint.interval.ms", "int", "60000", "0..", "re", "How often the recovery points are written, from which a crashed log is scanned."),
    ("log.flush.scheduler.interval.ms", "long", "9223372036854775807", "", "re", "How often logs are looked at for a flush that is due by time."),
    ("log.flush.start.offset.checkpoint.interval.ms", "int", "60000", "0..", "re", "How often the log start offsets are written."),
    ("log.index.interval.bytes", "int", "4096", "0..", "ce", "Default of index.interval.bytes."),
    ("log.index.size.max.bytes", "int", "10485760", "4..", "ce", "Default of segment.index.bytes."),
    ("log.initial.task.delay.ms", "long", "30000", "0..", "rei", "Pause after the start before retention and flushing first run."),
    ("log.local.retention.bytes", "long", "-2", "-2..", "c", "Default of local.retention.bytes."),
    ("log.local.retention.ms", "long", "-2", "-2..", "c", "Default of local.retention.ms."),
    ("log.message.timestamp.after.max.ms", "long", "3600000", "0..", "ce", "Default of message.timestamp.after.max.ms."),
    ("log.message.timestamp.before.max.ms", "long", "9223372036854775807", "0..", "ce", "Default of message.timestamp.before.max.ms."),
    ("log.message.timestamp.type", "string", "CreateTime", "CreateTime LogAppendTime", "ce", "Default of message.timestamp.type."),
    ("log.preallocate", "boolean", "false", "", "c", "Default of preallocate."),
    ("log.retention.bytes", "long", "-1", "", "ce", "Default of retention.bytes."),
    ("log.retention.check.interval.ms", "long", "300000", "1..", "re", "How often logs are looked at for segments to delete."),
    ("log.retention.hours", "int", "168", "", "re", "Default of retention.ms in hours, where the finer units are absent."),
    ("log.retention.minutes", "int", None, "", "re", "Default of retention.ms in minutes, where log.retention.ms is absent."),
    ("log.retention.ms", "long", None, "", "ce", "Default of retention.ms."),
    ("log.roll.hours", "int", "168", "1..", "re", "Default of segment.ms in hours, where log.roll.ms is absent."),
    ("log.roll.jitter.hours", "int", "0", "0..", "re", "Default of segment.jitter.ms in hours, where log.roll.jitter.ms is absent."),
    ("log.roll.jitter.ms", "long", None, "", "ce", "Default of segment.jitter.ms."),
    ("log.roll.ms", "long", None, "", "ce", "Default of segment.ms."),
    ("log.segment.bytes", "int", "1073741824", "1048576..", "ce", "Default of segment.bytes."),
    ("log.segment.delete.delay.ms", "long", "60000", "0..", "ce", "Default of file.delete.delay.ms."),
    ("message.max.bytes", "int", "1048588", "0..", "ce", "Default of max.message.bytes."),
    ("min.insync.replicas", "int", "1", "1..", "ce", "Default of the topic setting of the same name."),
    ("num.partitions", "int", "1", "1..", "re", "Partitions of a topic created without a number of its own."),
    ("num.recovery.threads.per.data.dir", "int", "2", "1..", "ce", "Threads that load and recover logs at the start."),
    ("producer.id.expiration.check.interval.ms", "int", "600000", "1..", "rei", "How often idle producers are looked at for expiry."),
    ("producer.id.expiration.ms", "int", "86400000", "1..", "ce", "An idempotent producer silent on a partition for this long is forgotten there."),
    ("unclean.leader.election.enable", "boolean", "false", "", "ce", "Default of the topic setting of the same name."),
)

PENSTOCK_ROWS: tuple[Row, ...] = (
    ("penstock.broker.lost.grace.ms", "int", "300", "0..60000", "re", "A broker whose connections to the controller broke and did not come back for this long is fenced; a killed process closes them at once."),
    ("penstock.cluster.id", "string", None, "", "re", "Cluster id for an empty data directory, 22 characters of URL-safe base64; drawn by chance where absent, or taken over from the cluster that the node joins."),
    ("penstock.cluster.secret.file", "string", None, "", "re", "File with the cluster's secret, the same on every node and readable by its owner alone; cluster.secret in the data directory where absent. A node that is alone makes its own."),
    ("penstock.disk.hung.ms", "int", "5000", "10..3600000", "ce", "A flush that takes longer than this shows a disk that hangs: the broker gives up leadership and leaves the in-sync replicas until the disk answers again. Well below replica.lag.time.max.ms."),
    ("penstock.doors.max.idle.ms", "int", "600000", "1000..", "re", "A connection of the line protocol that sends nothing for this long is closed."),
    ("penstock.doors.request.timeout.ms", "int", "30000", "1000..", "re", "How long a request may take to arrive at a door: the headers of an HTTP request, its body, a line. The connection is closed then."),
    ("penstock.flush.threads", "int", "8", "1..256", "re", "Threads that flush what the kernel's workers do not."),
    ("penstock.group.heartbeat.hold.ms", "int", "3000", "0..10000", "ce", "How long the answer to a heartbeat of a classic group may wait, so that members hear of a rebalance when it begins; 0: not at all."),
    ("penstock.group.rebalance.settle.ms", "int", "250", "0..3000", "ce", "A rebalance of a classic group in which all members have joined goes on once nobody has come for this long, nor gone for two fifths of it; four times as long at most."),
    ("penstock.http.allowed.hosts", "list", "", "", "re", "Names besides this machine's own that the Host and Origin headers may carry where the HTTP door listens on a loopback address, as behind a proxy."),
    ("penstock.http.allowed.origins", "list", "", "", "re", "Origins of web pages that may call the HTTP door from a browser, as https://dashboard.example.org; * for all."),
    ("penstock.http.listener", "string", None, "", "re", "Address of the HTTP door as host:port; empty or absent: closed. 127.0.0.1:8082 where the broker is started without a file."),
    ("penstock.line.listener", "string", None, "", "re", "Address of the line protocol as host:port; empty or absent: closed. 127.0.0.1:9099 where the broker is started without a file."),
    ("penstock.log.format", "string", "console", "console json", "re", "Log lines on standard error: for people (console) or one JSON object a line (json)."),
    ("penstock.loop.stall.ms", "int", "100", "0..", "re", "A turn of the event loop that takes longer is counted, and a line in the log names what held it; 0: not watched."),
    ("penstock.requests.in.flight.per.connection", "int", "64", "1..", "re", "Requests of one connection answered at a time; more are left unread."),
    ("penstock.shutdown.drain.ms", "int", "5000", "0..", "re", "How long a stopping node waits for open requests."),
    ("penstock.voter.never.voted", "string", None, "", "re", "The directory.id of this node's data directory: your word that this voter never ran before, so that it votes with an empty disk. Of a voter that lost its disk it may cost metadata that was committed."),
)

# Broker keys that stand in for one another, nearest first.
BROKER_SYNONYMS = {
    "log.flush.interval.ms": "log.flush.scheduler.interval.ms",
    "log.retention.minutes": "log.retention.hours",
    "log.retention.ms": "log.retention.minutes log.retention.hours",
    "log.roll.jitter.ms": "log.roll.jitter.hours",
    "log.roll.ms": "log.roll.hours",
}
