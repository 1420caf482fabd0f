"""JSON values as columns: every row keeps its place, and one that does not fit is null in all of them."""

from __future__ import annotations

import pyarrow as pa

from penstock.arrow.values import JsonValues, parse_schema
from penstock.arrow.values.json_values import NO_VALUE

SCHEMA = parse_schema("id long not null, user struct<country: string not null>, price decimal(5, 2), at timestamp")


def test_rows_keep_their_places() -> None:
    values = [b'{"id": 1, "user": {"country": "NO"}}', b"no json", b'{"id": 2, "price": 123456.7}', None, b'{"id": 3}']
    columns, misfits = JsonValues(SCHEMA).decode(values)
    assert [column.to_pylist() for column in columns] == [
        [1, None, None, None, 3],
        [{"country": "NO"}, None, None, None, None],
        [None] * 5,
        [None] * 5,
    ]
    assert [column.type for column in columns] == SCHEMA.types
    assert [misfit.at for misfit in misfits] == [1, 2, 3]
    assert misfits[1].reason.startswith("field 'price': ")
    assert misfits[2].reason == NO_VALUE


def test_columns_have_the_types_that_are_asked_for() -> None:
    """A reader may want other names within lists and maps, and everything nullable."""
    types = [pa.int64(), pa.struct([("country", pa.string())]), pa.decimal128(5, 2), pa.timestamp("us", "UTC")]
    columns, misfits = JsonValues(SCHEMA, types).decode([b'{"id": 1, "user": {"country": "NO"}}', b'{"user": {}}'])
    assert [column.type for column in columns] == types
    assert [misfit.reason for misfit in misfits] == ["Object missing required field `country` - at `$.user`"]


def test_nothing_to_decode() -> None:
    columns, misfits = JsonValues(SCHEMA).decode([])
    assert ([len(column) for column in columns], misfits) == ([0, 0, 0, 0], [])
