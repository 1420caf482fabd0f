"""A log that loses records by an unclean election and grows again: the reader notices, on three real brokers.

Without a Spark session: the calls are those that Spark makes. Leader epochs alone tell: by its length the log is fine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from penstock.spark.source.columns import source_schema
from penstock.spark.source.offsets import DataLoss
from penstock.spark.source.stream_reader import PenstockStreamReader
from support.processes.cluster import QUIET_CLIENT, ClusterProcesses

TOPIC = "truncated"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path, {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}) as made:
        # The third broker has no replica: with it there is a quorum.
        made.create_topic(TOPIC, assignment=[[1, 2]])
        yield made


def reader(cluster: ClusterProcesses, **options: str) -> PenstockStreamReader:
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": TOPIC, "startingOffsets": "earliest"}
    return PenstockStreamReader({**given, **options}, source_schema(False))


def produce(cluster: ClusterProcesses, values: range) -> None:
    servers = ",".join(node.address for node in cluster.running)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, **QUIET_CLIENT})
    for value in values:
        producer.produce(TOPIC, b"%d" % value, partition=0)
    assert producer.flush(60) == 0


def end_after(reader: PenstockStreamReader, start: Mapping[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(dict(start), reader.getDefaultReadLimit())


def values(reader: PenstockStreamReader, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[int]:
    rows = [batch for split in reader.partitions(dict(start), dict(end)) for batch in reader.read(split)]
    return [int(value) for batch in rows for value in batch.column("value").to_pylist()]


def test_log_that_was_truncated_and_has_grown_again(cluster: ClusterProcesses) -> None:
    produce(cluster, range(10))
    cluster.wait_in_sync(TOPIC)
    cluster.nodes[2].kill()
    produce(cluster, range(10, 20))
    query = reader(cluster)
    initial = query.initialOffset()
    end = end_after(query, initial)
    assert values(query, initial, end) == list(range(20))
    # A batch that is planned and not read yet.
    produce(cluster, range(20, 25))
    planned = end_after(query, end)

    cluster.nodes[1].kill()
    cluster.nodes[2].start()
    assert cluster.leader_of(TOPIC, 0) is cluster.nodes[2]
    produce(cluster, range(100, 130))

    with pytest.raises(DataLoss, match=rf"partition 0 of '{TOPIC}' was truncated to offset 10, .* is at offset 20"):
        end_after(reader(cluster), end)
    with pytest.raises(DataLoss, match=rf"{TOPIC}-0 was truncated to offset 10"):
        values(reader(cluster), end, planned)
    going_on = reader(cluster, failOnDataLoss="false")
    assert values(going_on, end, planned) == [], "those in its place are of the next batch"
    following = end_after(going_on, planned)
    assert values(going_on, planned, following) == list(range(100, 130))
