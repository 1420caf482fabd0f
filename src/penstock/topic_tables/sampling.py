"""Values of a topic, to infer a schema from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from penstock.arrow.decode import KAFKA_SCHEMA
from penstock.topic_tables.inference import SAMPLE
from penstock.topic_tables.reading import TopicReader
from penstock.wire_client.blocking.cluster import BlockingCluster

COLUMNS: Any = pa.schema([KAFKA_SCHEMA.field("offset"), KAFKA_SCHEMA.field("value")])
WAIT_S = 0.5


def sample_values(
    cluster: BlockingCluster,
    topic: tuple[str, bytes],
    start: Callable[[TopicReader, range], Mapping[int, int]],
    stop: threading.Event,
    *,
    waits: bool,
) -> list[bytes | None]:
    """The first values from the start on, of all partitions. `waits`: until there is one, or until it is stopped."""
    reader = TopicReader(cluster, *topic, COLUMNS)
    try:
        partitions = range(reader.partitions())
        positions = dict(start(reader, partitions))
        while True:
            found = _read(reader, positions, reader.ends(partitions))
            if found or not waits or stop.is_set():
                return found
            reader.wait(positions, WAIT_S)
    finally:
        reader.close()


def _read(reader: TopicReader, positions: Mapping[int, int], ends: Mapping[int, int]) -> list[bytes | None]:
    """As many of each partition, so that none is left out."""
    found: list[bytes | None] = []
    share = -(-SAMPLE // max(1, len(ends)))
    for partition, end in ends.items():
        values: list[bytes | None] = []
        for piece in reader.read({**positions}, {partition: min(end, positions[partition] + share)}):
            if piece.records is not None:
                values += piece.records.column("value").to_pylist()
        found += values[:share]
    return found
