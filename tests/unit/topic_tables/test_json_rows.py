"""JSON values become rows of a schema; a value that does not fit has a reason of its own."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.arrow.decode import KAFKA_SCHEMA
from penstock.arrow.values import parse_schema
from penstock.model.errors import ConfigError
from penstock.tables.schema import stored_schema
from penstock.topic_tables.json_rows import JsonShape
from penstock.topic_tables.raw import RawShape

AT_US = 1_700_000_000_000_000
SCHEMA = (
    "id long not null, user struct<country: string, `my age`: int not null>, tags array<string>, "
    "prices map<string, decimal(5, 2)>, at timestamp, day date, price decimal(10, 2), ratio float, is_new boolean, "
    "raw binary, n byte"
)


def shape_of(schema: str, partition_by: tuple[str, ...] = ()) -> JsonShape:
    return JsonShape(stored_schema(parse_schema(schema)), partition_by)


def records(values: list[bytes | None], at_us: int = AT_US) -> Any:
    count = len(values)
    columns = {
        "partition": [3] * count,
        "offset": range(count),
        "timestamp": [at_us] * count,
        "key": [b"k"] * count,
        "value": values,
        "headers": [None] * count,
    }
    fields = [KAFKA_SCHEMA.field(name) for name in columns]
    arrays = [pa.array(values, field.type) for values, field in zip(columns.values(), fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def test_all_types() -> None:
    value = (
        b'{"id": 1, "user": {"country": "NO", "my age": 7, "more": 1}, "tags": ["a", null], "prices": {"x": 1.25}, '
        b'"at": "2026-01-31T12:00:00.5+01:00", "day": "2026-01-31", "price": "12.34", "ratio": 1, "is_new": true, '
        b'"raw": "aGk=", "n": -128, "unknown": {}}'
    )
    shaped = shape_of(SCHEMA, ("date",)).shape(records([value, b'{"id": 2, "at": 1700000000000, "price": 3}']))
    assert not shaped.misfits
    one, other = shaped.rows.to_pylist()
    assert one == {
        "id": 1,
        "user": {"country": "NO", "my age": 7},
        "tags": ["a", None],
        "prices": [("x", Decimal("1.25"))],
        "at": datetime(2026, 1, 31, 11, 0, 0, 500_000, UTC),
        "day": date(2026, 1, 31),
        "price": Decimal("12.34"),
        "ratio": 1.0,
        "is_new": True,
        "raw": b"hi",
        "n": -128,
        "_partition": 3,
        "_offset": 0,
        "_timestamp": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "_key": b"k",
        "date": date(2023, 11, 14),
    }
    assert (other["at"], other["price"], other["user"]) == (one["_timestamp"], Decimal("3.00"), None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"id": null}', "Expected `int`, got `null` - at `$.id`"),
        (b'{"name": 1}', "Object missing required field `id`"),
        (b'{"id": 1, "n": 128}', "Expected `int` <= 127 - at `$.n`"),
        (b'{"id": 1.5}', "Expected `int`, got `float` - at `$.id`"),
        (b'{"id": "1"}', "Expected `int`, got `str` - at `$.id`"),
        (b"no json", "JSON is malformed"),
        (b'{"id": 1} {"id": 2}', "JSON is malformed"),
        (b"[1]", "Expected `object`, got `array`"),
        (None, "the record has no value"),
        (b"", "Input data was truncated"),
        (b"\xff", "JSON is malformed"),
        (b'{"id": 1, "tags": ["\xff"]}', "utf-8"),
        (b'{"id": 1, "at": "2026-01-31T12:00:00"}', "with a timezone component - at `$.at`"),
        (b'{"id": 1, "at": 9000000000000000}', "at `$.at`"),
        (b'{"id": 1, "user": {"country": 1}}', "Expected `str | null`, got `int` - at `$.user.country`"),
        (b'{"id": 1, "user": {}}', "Object missing required field `my age` - at `$.user`"),
        (b'{"id": 1, "price": 123456789.123}', "field 'price': "),
        (b'{"id": 1, "prices": {"x": "123456"}}', "field 'prices': "),
        (b'{"id": 1, "tags": ' + b"[" * 5000 + b"]" * 5000 + b"}", ""),
    ],
)
def test_a_value_that_does_not_fit_has_its_reason(value: bytes | None, reason: str) -> None:
    shaped = shape_of(SCHEMA).shape(records([b'{"id": 7}', value, b'{"id": 8}']))
    assert [row["_offset"] for row in shaped.rows.to_pylist()] == [0, 2]
    assert [row["id"] for row in shaped.rows.to_pylist()] == [7, 8]
    (misfit,) = shaped.misfits
    assert misfit.at == 1
    assert reason in misfit.reason
    assert misfit.reason


def test_nothing_fits() -> None:
    shaped = shape_of("id long").shape(records([b"x", b"y"]))
    assert (shaped.rows.num_rows, [misfit.at for misfit in shaped.misfits]) == (0, [0, 1])
    assert shaped.rows.schema == shape_of("id long").schema


def test_names_may_be_any_text() -> None:
    shaped = shape_of("`a b` int, `class` string, `ü` int").shape(
        records(['{"a b": 1, "class": "c", "ü": 2}'.encode()])
    )
    assert shaped.rows.select([0, 1, 2]).to_pylist() == [{"a b": 1, "class": "c", "ü": 2}]


def test_values_to_partition_by_have_a_length() -> None:
    shaped = shape_of("id long, word string", ("word",)).shape(
        records([b'{"word": "%s"}' % word for word in (b"x" * 190, b"x" * 201, "ü".encode() * 70)])
    )
    assert [(misfit.at, misfit.reason[:42]) for misfit in shaped.misfits] == [
        (1, "field 'word' is too long to partition by: "),
        (2, "field 'word' is too long to partition by: "),
    ]


def test_an_empty_string_is_no_partition_of_a_column_without_nulls() -> None:
    """There it is a null, and readers would refuse the whole table."""
    values: list[bytes | None] = [b'{"word": ""}', b'{"word": "a"}']
    shaped = shape_of("word string not null", ("word",)).shape(records(values))
    assert [tuple(one) for one in shaped.misfits] == [(0, "field 'word' is empty, which as a partition is null")]
    assert shape_of("word string", ("word",)).shape(records(values)).rows.num_rows == 2


def test_a_field_called_date_is_not_the_records_own() -> None:
    shape = shape_of("date date", ("date",))
    assert shape.schema.names == ["date", "_partition", "_offset", "_timestamp", "_key"]
    assert not shape.has_date


def test_columns_of_the_record_are_taken() -> None:
    with pytest.raises(ConfigError, match="a column '_offset', which the table has for the record's own"):
        shape_of("_offset long")
    with pytest.raises(ConfigError, match="a map has keys of type string"):
        shape_of("a map<int, int>")


@pytest.mark.parametrize(("at_us", "day"), [(2**63 - 1, date.max), (-(2**63), date.min), (-1, date(1969, 12, 31))])
def test_raw_rows_have_the_nearest_day(at_us: int, day: date) -> None:
    given = records([b"x"], at_us)
    names = RawShape(True).columns.names
    columns = [given.column(name) if name in given.schema.names else pa.array([0], pa.int32()) for name in names]
    batch = pa.RecordBatch.from_arrays(columns, schema=RawShape(True).columns)
    rows = RawShape(True).shape(batch).rows
    assert rows.column("date").to_pylist() == [day]
    assert RawShape(False).shape(batch).rows is batch
