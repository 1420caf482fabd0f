"""Broker settings of the node itself, its sockets, topics and logs, and Penstock's own.

Data only; `keys` describes a row. Names, types, defaults and limits are those of Apache
Kafka 4.3; deviations:

`log.flush.interval.messages` is 1, so that acknowledged means durable; `log.dir` is a
directory that survives a reboot; `process.roles` and `controller.listener.names` may be left out;
`listeners` and their protocols are read only at start.
"""

# The table is readable only with one row per line, so wrapping and its check are off.
# fmt: off
# ruff: noqa: E501

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.config.keys import Row

NODE_ROWS: tuple[Row, ...] = (
    ("advertised.listeners", "list", None, "", "re", "Addresses advertised to clients. If unset, a client gets the address it connected to."),
    ("alter.config.policy.class.name", "class", None, "", "r", "Java class that may veto configuration changes."),
    ("background.threads", "int", "10", "1..", "c", "Threads for background work."),
    ("broker.id", "int", "-1", "", "re", "Older name of node.id."),
    ("broker.rack", "string", None, "", "re", "Rack of this node, advertised to clients. Replicas are spread over racks; see replica.selector.class."),
    ("client.quota.callback.class", "class", None, "", "r", "Java class that computes client quotas."),
    ("config.providers", "list", "", "", "c", "Names of providers that resolve placeholders in settings."),
    ("connections.max.idle.ms", "long", "600000", "", "re", "Idle time after which a connection is closed."),
    ("controller.listener.names", "list", "", "", "re", "Names of the listeners for controllers; they are not advertised to clients."),
    ("cordoned.log.dirs", "list", "", "", "b", "Data directories that get no new partitions."),
    ("create.topic.policy.class.name", "class", None, "", "r", "Java class that may veto new topics."),
    ("delete.records.purgatory.purge.interval.requests", "int", "1", "", "r", "Number of waiting DeleteRecords requests between two clean-ups."),
    ("early.start.listeners", "list", None, "", "r", "Listeners that open before the node has finished starting."),
    ("fetch.max.bytes", "int", "57671680", "1024..", "re", "Maximum bytes in one fetch response, whatever the client requests."),
    ("fetch.purgatory.purge.interval.requests", "int", "1000", "", "r", "Number of waiting Fetch requests between two clean-ups."),
    ("inter.broker.listener.name", "string", None, "", "re", "Listener that other brokers connect to. If unset, the first listener."),
    ("kafka.metrics.polling.interval.secs", "int", "10", "1..", "r", "How often metrics reporters are polled."),
    ("kafka.metrics.reporters", "list", "", "", "r", "Java classes that report the older metrics."),
    ("listener.security.protocol.map", "string", "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", "", "re", "Which security protocol each listener name speaks."),
    ("listeners", "list", "PLAINTEXT://:9092", "", "re", "Addresses to listen on, as NAME://host:port. An empty host means all interfaces."),
    ("max.connection.creation.rate", "int", "2147483647", "0..", "c", "Maximum number of new connections per second."),
    ("max.connections", "int", "2147483647", "0..", "ce", "Maximum number of open connections."),
    ("max.connections.per.ip", "int", "2147483647", "0..", "ce", "Maximum number of open connections from one IP address."),
    ("max.connections.per.ip.overrides", "string", "", "", "c", "Limits for single addresses, as host:count; they replace max.connections.per.ip."),
    ("max.incremental.fetch.session.cache.slots", "int", "1000", "0..", "re", "Maximum number of fetch sessions."),
    ("max.request.partition.size.limit", "int", "2000", "1..", "re", "Maximum number of partitions in one DescribeTopicPartitions response."),
    ("metric.reporters", "list", "org.apache.kafka.common.metrics.JmxReporter", "", "c", "Java classes that report metrics."),
    ("metrics.num.samples", "int", "2", "1..", "r", "Number of samples per metric."),
    ("metrics.recording.level", "string", "INFO", "", "r", "Which metrics are recorded."),
    ("metrics.sample.window.ms", "long", "30000", "1..", "r", "Length of one sample of a metric."),
    ("node.id", "int", None, "0..", "re", "Id of this node, unique in its cluster."),
    ("num.io.threads", "int", "8", "1..", "c", "Threads that handle requests in Kafka. Penstock uses one event loop."),
    ("num.network.threads", "int", "3", "1..", "c", "Threads that serve sockets in Kafka. Penstock uses one event loop."),
    ("process.roles", "list", "broker,controller", "broker controller", "re", "Roles of this node: always broker and controller."),
    ("producer.purgatory.purge.interval.requests", "int", "1000", "", "r", "Number of waiting Produce requests between two clean-ups."),
    ("queued.max.request.bytes", "long", "-1", "", "re", "Memory for incoming requests of all connections together. -1 means 512 MiB."),
    ("queued.max.requests", "int", "500", "1..", "r", "Maximum number of waiting requests before the broker stops reading from sockets."),
    ("quota.window.num", "int", "11", "1..", "r", "Number of samples kept for client quotas."),
    ("quota.window.size.seconds", "int", "1", "1..", "r", "Length of one sample of client quotas."),
    ("request.timeout.ms", "int", "30000", "", "r", "How long a request between nodes may take."),
    ("server.max.startup.time.ms", "long", "9223372036854775807", "0..", "ri", "Maximum time a start may take."),
    ("socket.connection.setup.timeout.max.ms", "long", "30000", "", "r", "Longest time to set up a connection to another node."),
    ("socket.connection.setup.timeout.ms", "long", "10000", "", "r", "First time limit to set up a connection to another node."),
    ("socket.listen.backlog.size", "int", "50", "1..", "re", "Connections the kernel queues until the broker accepts them."),
    ("socket.receive.buffer.bytes", "int", "102400", "", "r", "Receive buffer of client sockets. -1 uses the kernel's default."),
    ("socket.request.max.bytes", "int", "104857600", "1..", "re", "Maximum size of a request. A larger one closes the connection."),
    ("socket.send.buffer.bytes", "int", "102400", "", "r", "Send buffer of client sockets. -1 uses the kernel's default."),
    ("telemetry.max.bytes", "int", "1048576", "1..", "r", "Maximum size of a metrics push from a client."),
    ("unstable.api.versions.enable", "boolean", "false", "", "ri", "Whether API versions still in development are offered."),
    ("unstable.feature.versions.enable", "boolean", "false", "", "ri", "Whether feature versions still in development are offered."),
)

LOG_ROWS: tuple[Row, ...] = (
    ("auto.create.topics.enable", "boolean", "true", "", "re", "Whether a metadata request for a missing topic creates it."),
    ("compression.gzip.level", "int", "-1", "1..9|-1", "ce", "Compression level for batches that the broker recompresses with gzip."),
    ("compression.lz4.level", "int", "9", "1..17", "ce", "Compression level for batches that the broker recompresses with lz4."),
    ("compression.type", "string", "producer", "uncompressed zstd lz4 snappy gzip producer", "ce", "Codec of stored batches. producer keeps the producer's codec."),
    ("compression.zstd.level", "int", "3", "-131072..22", "ce", "Compression level for batches that the broker recompresses with zstd."),
    ("default.replication.factor", "int", "1", "", "re", "Replicas of a topic created without a replication factor."),
    ("delete.topic.enable", "boolean", "true", "", "re", "Whether DeleteTopics is allowed."),
    ("log.cleaner.backoff.ms", "long", "15000", "0..", "ce", "Pause of the cleaner when no log needs cleaning."),
    ("log.cleaner.dedupe.buffer.size", "long", "134217728", "", "ce", "Memory for the key maps of all cleaner threads."),
    ("log.cleaner.delete.retention.ms", "long", "86400000", "0..", "ce", "Default of delete.retention.ms."),
    ("log.cleaner.enable", "boolean", "true", "", "re", "Whether logs are compacted."),
    ("log.cleaner.io.buffer.load.factor", "double", "0.9", "", "ce", "Maximum fill ratio of the cleaner's key map."),
    ("log.cleaner.io.buffer.size", "int", "524288", "0..", "c", "Memory for the read and write buffers of all cleaner threads."),
    ("log.cleaner.io.max.bytes.per.second", "double", "1.7976931348623157E308", "", "ce", "Maximum bytes the cleaner reads and writes per second."),
    ("log.cleaner.max.compaction.lag.ms", "long", "9223372036854775807", "1..", "ce", "Default of max.compaction.lag.ms."),
    ("log.cleaner.min.cleanable.ratio", "double", "0.5", "0..1", "ce", "Default of min.cleanable.dirty.ratio."),
    ("log.cleaner.min.compaction.lag.ms", "long", "0", "0..", "ce", "Default of min.compaction.lag.ms."),
    ("log.cleaner.threads", "int", "1", "0..", "c", "Number of cleaner threads."),
    ("log.cleanup.policy", "list", "delete", "compact delete", "ce", "Default of cleanup.policy."),
    ("log.dir", "list", "~/.local/share/penstock", "", "re", "Data directory if log.dirs is not set."),
    ("log.dir.failure.timeout.ms", "long", "30000", "1..", "r", "Time after which a broker that cannot report a failed directory stops."),
    ("log.dirs", "list", None, "", "re", "Data directory. Only one is supported yet."),
    ("log.flush.interval.messages", "long", "1", "1..", "ce", "Default of flush.messages. 1 makes every batch durable before it is acknowledged."),
    ("log.flush.interval.ms", "long", None, "", "ce", "Default of flush.ms. If unset, log.flush.scheduler.interval.ms applies."),
    ("log.flush.offset.checkpoint.interval.ms", "int", "60000", "0..", "re", "How often recovery points are written. After a crash, a log is scanned from its recovery point."),
    ("log.flush.scheduler.interval.ms", "long", "9223372036854775807", "", "re", "How often the broker looks for logs whose flush is due by time."),
    ("log.flush.start.offset.checkpoint.interval.ms", "int", "60000", "0..", "re", "How often log start offsets are written."),
    ("log.index.interval.bytes", "int", "4096", "0..", "ce", "Default of index.interval.bytes."),
    ("log.index.size.max.bytes", "int", "10485760", "4..", "ce", "Default of segment.index.bytes."),
    ("log.initial.task.delay.ms", "long", "30000", "0..", "rei", "Time between the start and the first retention check and timed flush."),
    ("log.local.retention.bytes", "long", "-2", "-2..", "c", "Default of local.retention.bytes."),
    ("log.local.retention.ms", "long", "-2", "-2..", "c", "Default of local.retention.ms."),
    ("log.message.timestamp.after.max.ms", "long", "3600000", "0..", "ce", "Default of message.timestamp.after.max.ms."),
    ("log.message.timestamp.before.max.ms", "long", "9223372036854775807", "0..", "ce", "Default of message.timestamp.before.max.ms."),
    ("log.message.timestamp.type", "string", "CreateTime", "CreateTime LogAppendTime", "ce", "Default of message.timestamp.type."),
    ("log.preallocate", "boolean", "false", "", "c", "Default of preallocate."),
    ("log.retention.bytes", "long", "-1", "", "ce", "Default of retention.bytes."),
    ("log.retention.check.interval.ms", "long", "300000", "1..", "re", "How often the broker looks for segments to delete."),
    ("log.retention.hours", "int", "168", "", "re", "Default of retention.ms in hours, if log.retention.ms and log.retention.minutes are not set."),
    ("log.retention.minutes", "int", None, "", "re", "Default of retention.ms in minutes, if log.retention.ms is not set."),
    ("log.retention.ms", "long", None, "", "ce", "Default of retention.ms."),
    ("log.roll.hours", "int", "168", "1..", "re", "Default of segment.ms in hours, if log.roll.ms is not set."),
    ("log.roll.jitter.hours", "int", "0", "0..", "re", "Default of segment.jitter.ms in hours, if log.roll.jitter.ms is not set."),
    ("log.roll.jitter.ms", "long", None, "", "ce", "Default of segment.jitter.ms."),
    ("log.roll.ms", "long", None, "", "ce", "Default of segment.ms."),
    ("log.segment.bytes", "int", "1073741824", "1048576..", "ce", "Default of segment.bytes."),
    ("log.segment.delete.delay.ms", "long", "60000", "0..", "ce", "Default of file.delete.delay.ms."),
    ("message.max.bytes", "int", "1048588", "0..", "ce", "Default of max.message.bytes."),
    ("min.insync.replicas", "int", "1", "1..", "ce", "Default of the topic setting of the same name."),
    ("num.partitions", "int", "1", "1..", "re", "Partitions of a topic created without a partition count."),
    ("num.recovery.threads.per.data.dir", "int", "2", "1..", "ce", "Number of threads that load and recover logs at start."),
    ("producer.id.expiration.check.interval.ms", "int", "600000", "1..", "rei", "How often the broker looks for expired producer ids."),
    ("producer.id.expiration.ms", "int", "86400000", "1..", "ce", "Time after which the broker forgets an idempotent producer that has stopped writing to a partition."),
    ("unclean.leader.election.enable", "boolean", "false", "", "ce", "Default of the topic setting of the same name."),
)

PENSTOCK_ROWS: tuple[Row, ...] = (
    ("penstock.broker.lost.grace.ms", "int", "300", "0..60000", "re", "A broker is fenced if its connections to the controller close and do not come back within this time. The connections of a killed process close at once."),
    ("penstock.cluster.id", "string", None, "", "re", "Cluster id for an empty data directory: 22 characters of URL-safe base64. If unset, the node takes the id of the cluster it joins, or generates one."),
    ("penstock.cluster.secret.file", "string", None, "", "re", "File with the cluster's secret: the same on every node, readable only by its owner. If unset, cluster.secret in the data directory; a node that is alone creates it."),
    ("penstock.disk.hung.ms", "int", "5000", "10..3600000", "ce", "A flush that takes longer than this means that the disk hangs: the broker gives up leadership and leaves the in-sync replicas until the disk responds. Set it well below replica.lag.time.max.ms."),
    ("penstock.flush.threads", "int", "8", "1..256", "re", "Number of flush threads. They flush what the kernel's workers do not."),
    ("penstock.gateway.max.idle.ms", "int", "600000", "1000..", "re", "Idle time after which a line protocol connection is closed."),
    ("penstock.gateway.request.timeout.ms", "int", "30000", "1000..", "re", "Maximum time a request to the REST proxy or line protocol may take to arrive: the headers of an HTTP request, its body, or a line. Then the connection is closed."),
    ("penstock.group.heartbeat.hold.ms", "int", "3000", "0..10000", "ce", "Maximum delay of a heartbeat response in a classic group, so that members learn of a rebalance as soon as it begins. 0 turns the delay off."),
    ("penstock.group.rebalance.settle.ms", "int", "250", "0..3000", "ce", "Once all members of a classic group have rejoined, the rebalance waits until no member has joined for this long, and none has left for two fifths of it; at most four times as long."),
    ("penstock.http.allowed.hosts", "list", "", "", "re", "Host names, besides this machine's own, allowed in the Host and Origin headers if the REST proxy listens on a loopback address. Needed behind a proxy."),
    ("penstock.http.allowed.origins", "list", "", "", "re", "Origins of web pages that may call the REST proxy from a browser, such as https://dashboard.example.org. * allows all."),
    ("penstock.http.listener", "string", None, "", "re", "Address of the REST proxy, as host:port. Empty or unset: off. 127.0.0.1:8082 if the broker starts without a file."),
    ("penstock.line.listener", "string", None, "", "re", "Address of the line protocol, as host:port. Empty or unset: off. 127.0.0.1:9099 if the broker starts without a file."),
    ("penstock.log.format", "string", "console", "console json", "re", "Format of log lines on standard error: console for people, json for one JSON object per line."),
    ("penstock.loop.stall.ms", "int", "100", "0..", "re", "A turn of the event loop that takes longer is counted, and a log line names the code that blocked it. 0 turns this off."),
    ("penstock.requests.in.flight.per.connection", "int", "64", "1..", "re", "Maximum number of requests of one connection in progress. Further requests are not read yet."),
    ("penstock.shutdown.drain.ms", "int", "5000", "0..", "re", "Maximum time a stopping node waits for open requests."),
    ("penstock.voter.never.voted", "string", None, "", "re", "The directory.id of this node's data directory. It confirms that this voter never ran before and may vote with an empty disk. For a voter that lost its disk, this can lose committed metadata."),
)

# Broker keys that supply the value of another key, nearest first.
BROKER_SYNONYMS = {
    "log.flush.interval.ms": "log.flush.scheduler.interval.ms",
    "log.retention.minutes": "log.retention.hours",
    "log.retention.ms": "log.retention.minutes log.retention.hours",
    "log.roll.jitter.ms": "log.roll.jitter.hours",
    "log.roll.ms": "log.roll.hours",
}
