"""Tasks of Spark's exactly-once sink, run without Spark: what a query leaves on a cluster."""

from __future__ import annotations

import time

from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record, build_batch
from penstock.spark.sink.delivery import Slice
from penstock.spark.sink.exactly_once import ExactlyOnce
from penstock.spark.sink.options import SinkOptions
from penstock.testing import Broker
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.requests.producing_transactions import OpenTransaction

OUT = "out"
PATIENCE_S = 20.0


def connected(broker: Broker) -> BlockingCluster:
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    return BlockingCluster([(host, int(port))])


def write_task(broker: Broker, query_id: str, batch_id: int) -> OpenTransaction:
    """A finished task with one record. Its transaction is open."""
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "deliveryGuarantee": "exactly-once"}
    writer = ExactlyOnce(SinkOptions.parse(options))
    assert writer.begin(Slice(query_id, batch_id, 0, "run"))
    assert writer.partition_count(OUT) == 1
    writer.write(OUT, 0, bytearray(build_batch([Record(None, b"%d" % batch_id)])), 1)
    transaction = writer.finish().transaction
    assert transaction is not None
    return transaction


def is_held_back(cluster: BlockingCluster, patience_s: float = 0.0) -> bool:
    """Whether an open transaction holds the last stable offset. Markers are written a moment after the decision."""
    where = TopicPartition(OUT, 0)
    deadline = time.monotonic() + patience_s
    while True:
        last_stable = cluster.list_offsets({where: -1}, read_committed=True)[where].offset
        is_held = last_stable < cluster.list_offsets({where: -1})[where].offset
        if not is_held or time.monotonic() >= deadline:
            return is_held
        time.sleep(0.01)
