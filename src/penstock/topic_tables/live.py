"""A table of a topic as it would be now: its rows, and the committed records that it does not have yet.

A version of the table says up to where it has each partition. The records from there on are read from the topic, so
none is missing and none comes twice, whatever is committed, compacted or expired meanwhile. If the version's files
expire, or retention deletes records that a newer version has, a newer version is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.addresses import parse_server
from penstock.model.errors import ConfigError
from penstock.tables import Table, TableDamaged, View
from penstock.tables.conform import conforming
from penstock.tables.merging import Keys
from penstock.topic_tables.follower import FollowedTopic, RecordsLost
from penstock.topic_tables.keyed import KeyedShape
from penstock.topic_tables.newest import TOMBSTONES, newest
from penstock.topic_tables.opening import TOPIC, Wanted, shape_of, topic_id_text
from penstock.topic_tables.reading import TopicReader
from penstock.topic_tables.shapes import Shape
from penstock.wire_client.blocking.cluster import BlockingCluster
from penstock.wire_client.blocking.security import security_from_settings

ATTEMPTS = 5
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class LiveTable:
    """`version` of a table and the records behind it, which are in memory."""

    table: Table
    """Not to be refreshed."""
    tail: Any
    """Rows, as an Arrow table."""
    replaced: Any
    """In a table of the newest rows: the keys whose rows in the table do not count any more. Else None."""
    positions: Mapping[int, int]
    """By partition: the offset up to which everything is in the table or the tail."""
    misfits: int
    """Records of the tail that are no rows."""

    @property
    def version(self) -> int:
        return self.table.version

    @property
    def schema(self) -> Any:
        return self.table.schema

    def dataset(self) -> Any:
        """The rows of the version alone, as a `pyarrow.dataset.Dataset`."""
        return View(self.table.directory, self.version, self.schema).dataset()

    def batches(self) -> Iterator[Any]:
        """Rows, those of the tail last. Raises TableDamaged if the version has expired."""
        replaced = None if self.replaced is None or not self.replaced.num_rows else self.replaced
        keys = None if replaced is None else Keys(replaced.column_names, replaced)
        for batch in self.table.scan():
            yield batch if keys is None else batch.filter(pc.invert(keys.found_in(batch)))
        yield from self.tail.to_batches()

    def reader(self) -> Any:
        """The same, as a `pyarrow.RecordBatchReader`."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def arrow(self) -> Any:
        """The same, as a `pyarrow.Table`."""
        return self.reader().read_all()


def read_with_tail(
    directory: Path | str, bootstrap_servers: str = "localhost:9092", settings: Mapping[str, str] | None = None
) -> Any:
    """All rows as an Arrow table, up to what is committed now. `settings`: of a client, as for TLS and SASL.

    Raises ConfigError for a table of something else, RecordsLost, TableError, ApiError, WireClientError.
    """
    with closing(_connected(bootstrap_servers, settings)) as cluster:
        for _ in range(ATTEMPTS):
            try:
                return read_live(directory, cluster).arrow()
            except TableDamaged as error:
                damage = error
    raise damage


def _connected(servers: str, settings: Mapping[str, str] | None) -> BlockingCluster:
    addresses = []
    for text in servers.split(","):
        address = parse_server(text.strip())
        if address is None:
            raise ConfigError(f"{text.strip()!r} is not a broker address: write HOST:PORT, for example localhost:9092")
        addresses.append(address)
    return BlockingCluster(addresses, "penstock-table", security_from_settings(settings or {}), TIMEOUT_S)


def read_live(directory: Path | str, cluster: BlockingCluster) -> LiveTable:
    """Raises like `read_with_tail`."""
    lost: RecordsLost | TableDamaged | None = None
    known: Mapping[str, int] = {}
    for _ in range(ATTEMPTS):
        table = Table.open(directory)
        if isinstance(lost, RecordsLost) and table.positions == known:
            break
        known = table.positions
        try:
            return _read(table, cluster)
        except (RecordsLost, TableDamaged) as error:
            lost = error
    assert lost is not None
    raise lost


class _Tail(NamedTuple):
    rows: list[Any]
    tombstones: list[Any]
    positions: dict[int, int]
    misfits: int


def _read(table: Table, cluster: BlockingCluster) -> LiveTable:
    name = table.properties.get(TOPIC)
    if name is None:
        raise ConfigError(f"{table.directory} is a table that was not made from a topic: it has no live records")
    topic = FollowedTopic(name, cluster.topic(name).topic_id)
    shape = shape_of(table, Wanted(name, topic_id_text(topic.topic_id)), lambda line: None)
    tail = _tail(table, topic, shape, cluster)
    rows = pa.Table.from_batches(conforming(tail.rows, table.schema), table.schema)
    replaced = None
    if isinstance(shape, KeyedShape):
        by = shape.keyed_by
        changes = newest(rows, pa.Table.from_batches(tail.tombstones, TOMBSTONES), by, table.find)
        rows = changes.upserts
        replaced = pa.concat_tables([rows.select(list(by.keys)), changes.deletes])
    return LiveTable(table, rows, replaced, tail.positions, tail.misfits)


def _tail(table: Table, topic: FollowedTopic, shape: Shape, cluster: BlockingCluster) -> _Tail:
    reader = TopicReader(cluster, topic.name, topic.topic_id, shape.columns)
    try:
        partitions = range(reader.partitions())
        known = table.positions
        new = [one for one in partitions if topic.stream(one) not in known]
        positions = {one: known[topic.stream(one)] for one in partitions if one not in new}
        if new:
            starts = reader.starts(partitions)
            positions |= {one: starts[one] for one in new}
        rows: dict[int, list[Any]] = {}
        tombstones, misfits = [], 0
        for piece in reader.read(dict(positions), reader.ends(partitions)):
            if piece.lost:
                first = positions[piece.partition]
                raise RecordsLost(
                    f"offsets {first} to {first + piece.lost - 1} of partition {piece.partition} of topic {topic.name} "
                    f"are neither in the topic nor in {table.directory}: they were deleted before they were read"
                )
            positions[piece.partition] = piece.position
            if piece.records is not None and piece.records.num_rows:
                shaped = shape.shape(piece.records)
                rows.setdefault(piece.partition, []).append(shaped.rows)
                misfits += len(shaped.misfits)
                if shaped.tombstones is not None:
                    tombstones.append(shaped.tombstones)
    finally:
        reader.close()
    return _Tail([batch for _, part in sorted(rows.items()) for batch in part], tombstones, positions, misfits)
