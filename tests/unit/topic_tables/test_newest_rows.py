"""NewestRows by key, beside a plain model of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.arrow.decode import KAFKA_SCHEMA
from penstock.topic_tables.newest import TOMBSTONES, KeyColumns, newest

PLACE = ("_partition", "_offset", "_timestamp")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        *(pa.field(f"_{name}", KAFKA_SCHEMA.field(name).type) for name in ("key", "partition", "offset", "timestamp")),
    ]
)
BY_FIELDS = KeyColumns(("id", "name"), "_key", PLACE)
BY_RECORD = KeyColumns(("_key",), "_key", PLACE)


class Change(NamedTuple):
    """Without an id it is a tombstone."""

    id: int | None
    key: bytes
    partition: int
    offset: int
    timestamp: int

    def row(self) -> dict[str, Any]:
        given = {"id": self.id, "name": f"n{self.id}", "_key": self.key, "_partition": self.partition}
        return {**given, "_offset": self.offset, "_timestamp": self.timestamp}

    def tombstone(self) -> dict[str, Any]:
        return {"key": self.key, "partition": self.partition, "offset": self.offset, "timestamp": self.timestamp}


class Kept:
    """A table of the newest rows, in memory."""

    def __init__(self, columns: KeyColumns) -> None:
        self.columns = columns
        self.rows: Any = SCHEMA.empty_table()

    def find(self, keys: Sequence[str], wanted: Any, columns: Sequence[str]) -> Any:
        if not wanted.num_rows:
            return self.rows.select(list(columns)).slice(0, 0)
        known = {tuple(row.values()) for row in wanted.to_pylist()}
        hits = [tuple(row[name] for name in keys) in known for row in self.rows.to_pylist()]
        return self.rows.filter(pa.array(hits, pa.bool_())).select(list(columns))

    def take(self, batch: Sequence[Change]) -> None:
        rows = pa.Table.from_pylist([one.row() for one in batch if one.id is not None], SCHEMA)
        tombstones = pa.Table.from_pylist([one.tombstone() for one in batch if one.id is None], TOMBSTONES)
        done = newest(rows, tombstones, self.columns, self.find)
        keys = list(self.columns.keys)
        gone = [*done.deletes.to_pylist(), *done.upserts.select(keys).to_pylist()]
        assert len({tuple(one.values()) for one in gone}) == len(gone)
        had = self.rows.select(keys).to_pylist()
        assert all(one in had for one in done.deletes.to_pylist())
        kept = self.rows.filter(pa.array([one not in gone for one in had], pa.bool_()))
        self.rows = pa.concat_tables([kept, done.upserts.select(SCHEMA.names)])

    @property
    def offsets(self) -> list[tuple[int, int]]:
        return sorted((row["_partition"], row["_offset"]) for row in self.rows.to_pylist())


def one_by_one(changes: Sequence[Change], columns: KeyColumns) -> list[tuple[int, int]]:
    rows: dict[Any, Change] = {}
    for change in changes:
        if change.id is not None:
            rows[change.key if columns is BY_RECORD else change.id] = change
        else:
            rows = {key: row for key, row in rows.items() if row.key != change.key}
    return sorted((row.partition, row.offset) for row in rows.values())


FEW = settings(max_examples=20)
IDS = st.one_of(st.none(), st.integers(0, 3))
KEYS = st.sampled_from([b"a", b"b", b"c"])


@FEW
@given(st.lists(st.lists(st.tuples(IDS, KEYS, st.integers(0, 9)), max_size=12), max_size=4), st.booleans())
def test_one_partition_is_applied_in_order(batches: list[list[Any]], by_record: bool) -> None:
    """Whatever the timestamps are."""
    columns = BY_RECORD if by_record else BY_FIELDS
    kept, done, offset = Kept(columns), list[Change](), 0
    for batch in batches:
        changes = [Change(one, key, 0, offset + at, when) for at, (one, key, when) in enumerate(batch)]
        offset += len(batch)
        done += changes
        kept.take(changes)
        assert kept.offsets == one_by_one(done, columns)


@FEW
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=20), st.randoms(use_true_random=False))
def test_keys_that_move_between_partitions_are_applied_by_time(moves: list[Any], random: Any) -> None:
    """In whatever order the partitions are read, in whatever batches."""
    changes = [
        Change(row, b"%d" % row, partition, sum(one[1] == partition for one in moves[:at]), at)
        for at, (row, partition) in enumerate(moves)
    ]
    kept = Kept(BY_RECORD)
    left = [[one for one in changes if one.partition == partition] for partition in range(3)]
    while any(left):
        kept.take([part.pop(0) for part in left for _ in range(random.randint(0, len(part)))])
    assert kept.offsets == one_by_one(changes, BY_RECORD)


@FEW
@given(st.lists(st.tuples(IDS, KEYS, st.integers(0, 2)), max_size=20))
def test_within_a_batch_deletions_are_applied_by_time(moves: list[Any]) -> None:
    changes = [
        Change(row, key, partition, sum(one[2] == partition for one in moves[:at]), at)
        for at, (row, key, partition) in enumerate(moves)
    ]
    kept = Kept(BY_RECORD)
    kept.take(sorted(changes, key=lambda one: (one.partition, one.offset)))
    assert kept.offsets == one_by_one(changes, BY_RECORD)
