"""One row a key: what changes leave of a table that has the newest row of each key. Pure, but for `find`.

Which of two changes is newer: within a partition the one with the higher offset. Between partitions, where Kafka knows
no order, the one with the later timestamp, then that of the higher partition. So it does not count in which order
partitions were read, but for one thing: a deleted row is not there to be compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.arrow.decode import KAFKA_SCHEMA

ArrowTable = Any
Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

TOMBSTONES: Final[Any] = pa.schema([KAFKA_SCHEMA.field(name) for name in ("key", "partition", "offset", "timestamp")])
_PLACE = tuple(TOMBSTONES.names[1:])


class KeyColumns(NamedTuple):
    """The names in the table."""

    keys: tuple[str, ...]
    """Of which it has one row each."""
    record_key: str
    place: tuple[str, str, str]
    """Partition, offset and timestamp of the record."""

    @property
    def needed(self) -> list[str]:
        return list(dict.fromkeys((*self.keys, self.record_key, *self.place)))


class NewestRows(NamedTuple):
    upserts: ArrowTable
    deletes: ArrowTable
    """Keys of rows that the table has."""


Find = Callable[[Sequence[str], ArrowTable, Sequence[str]], ArrowTable]
"""Rows of the table by columns and their values, with the columns asked for."""


class _Places(NamedTuple):
    partition: Codes
    offset: Codes
    timestamp: Codes

    def at(self, index: Any) -> _Places:
        return _Places(self.partition[index], self.offset[index], self.timestamp[index])


def newest(rows: ArrowTable, tombstones: ArrowTable, columns: KeyColumns, find: Find) -> NewestRows:
    """`tombstones` delete the rows that came with their record key; they have the schema TOMBSTONES."""
    rows = rows.take(_winners(_codes(rows, columns.keys), _places(rows, columns.place)))
    tombstones = tombstones.take(_last(_codes(tombstones, ["key"]), _places(tombstones, _PLACE)))
    there = _there(rows, tombstones, columns, find)

    keys = _codes(_joined(rows, there, columns.keys), columns.keys)
    row_keys, there_keys = keys[: rows.num_rows], keys[rows.num_rows :]
    record_keys = _codes(
        pa.concat_tables(
            [
                *(one.select([columns.record_key]).rename_columns(["key"]) for one in (rows, there)),
                tombstones.select(["key"]),
            ]
        ),
        ["key"],
    )
    of_rows, of_there, of_tombstones = np.split(record_keys, [rows.num_rows, rows.num_rows + there.num_rows])

    row_places, there_places = _places(rows, columns.place), _places(there, columns.place)
    buried = (of_tombstones, _places(tombstones, _PLACE))
    is_dead = _is_buried(of_rows, row_places, *buried)
    older = np.full(len(keys) + 1, -1, np.int64)
    older[there_keys] = np.arange(there.num_rows)
    before = older[row_keys]
    is_newer = before < 0
    is_newer[~is_newer] = _beats(row_places.at(~is_newer), there_places.at(before[~is_newer]))

    is_gone = _is_buried(of_there, there_places, *buried)
    is_gone[before[is_newer & is_dead & (before >= 0)]] = True
    is_kept = is_newer & ~is_dead
    is_gone[before[is_kept & (before >= 0)]] = False
    return NewestRows(rows.filter(pa.array(is_kept)), there.select(list(columns.keys)).filter(pa.array(is_gone)))


def _there(rows: ArrowTable, tombstones: ArrowTable, columns: KeyColumns, find: Find) -> ArrowTable:
    """What the table has of these keys, each row once."""
    wanted = rows.select(list(columns.keys))
    buried = tombstones.select(["key"]).rename_columns([columns.record_key])
    if columns.keys == (columns.record_key,):
        return find(columns.keys, pa.concat_tables([wanted, buried]), columns.needed)
    found = pa.concat_tables(
        [find(columns.keys, wanted, columns.needed), find([columns.record_key], buried, columns.needed)]
    )
    return found.take(np.unique(_codes(found, columns.keys), return_index=True)[1])


def _joined(one: ArrowTable, other: ArrowTable, names: Sequence[str]) -> ArrowTable:
    return pa.concat_tables([one.select(list(names)), other.select(list(names))])


def _codes(table: ArrowTable, names: Sequence[str]) -> Codes:
    """Equal numbers for equal values, less than the number of rows; -1 where one is null."""
    codes = np.zeros(table.num_rows, np.int64)
    is_null = np.zeros(table.num_rows, np.bool_)
    for name in names:
        indices = table.column(name).combine_chunks().dictionary_encode().indices.fill_null(-1)
        found = indices.to_numpy(zero_copy_only=False).astype(np.int64)
        is_null |= found < 0
        codes = np.unique(codes * (table.num_rows + 1) + found + 1, return_inverse=True)[1].astype(np.int64)
    codes[is_null] = -1
    return codes


def _places(table: ArrowTable, names: Sequence[str]) -> _Places:
    return _Places(*(table.column(name).cast(pa.int64()).to_numpy() for name in names))


def _beats(one: _Places, other: _Places) -> Mask:
    is_later = (one.timestamp > other.timestamp) | (
        (one.timestamp == other.timestamp) & (one.partition > other.partition)
    )
    return np.where(one.partition == other.partition, one.offset > other.offset, is_later)


def _last(codes: Codes, places: _Places) -> Codes:
    """The last one of each code in each partition."""
    order = np.lexsort((places.offset, places.partition, codes))
    return order[_ends(codes[order], places.partition[order])]


def _winners(codes: Codes, places: _Places) -> Codes:
    """The newest one of each code, in the order that they are in."""
    last = _last(codes, places)
    among = places.at(last)
    order = last[np.lexsort((among.partition, among.timestamp, codes[last]))]
    return np.sort(order[_ends(codes[order])])


def _ends(*sorted_by: Codes) -> Mask:
    """Where a run of the same values ends."""
    is_end = np.ones(len(sorted_by[0]), np.bool_)
    is_end[:-1] = np.logical_or.reduce([one[1:] != one[:-1] for one in sorted_by])
    return is_end


def _is_buried(codes: Codes, places: _Places, buried: Codes, burials: _Places) -> Mask:
    """Which of the first ones have a newer one of the same code among the others."""
    order = np.argsort(buried, kind="stable")
    first, after = (np.searchsorted(buried[order], codes, side) for side in ("left", "right"))
    counts = after - first
    at = np.repeat(np.arange(len(codes)), counts)
    within = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    by = order[np.repeat(first, counts) + within]
    found = np.zeros(len(codes), np.bool_)
    found[at[_beats(burials.at(by), places.at(at))]] = True
    return found
