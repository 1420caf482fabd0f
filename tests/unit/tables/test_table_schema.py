"""Types of columns and what may change in a schema."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import Schema

from penstock.tables.errors import SchemaMismatch
from penstock.tables.schema import Breaking, evolution, from_delta, stored_schema, to_delta

ALL_TYPES = pa.schema(
    [
        ("byte", pa.int8()),
        ("short", pa.int16()),
        pa.field("int", pa.int32(), nullable=False),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("bool", pa.bool_()),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("decimal", pa.decimal128(10, 2)),
        ("struct", pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.list_(pa.string()))])),
        ("list", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
        ("map", pa.map_(pa.string(), pa.field("value", pa.decimal128(5, 0)))),
    ]
)


def test_a_schema_survives_the_log_and_is_what_delta_rs_reads() -> None:
    told = to_delta(ALL_TYPES)
    assert from_delta(told).equals(ALL_TYPES)
    assert pa.schema(Schema.from_json(told).to_arrow()).equals(ALL_TYPES)


def test_types_that_are_stored_as_others() -> None:
    given = {
        "large": pa.large_string(),
        "view": pa.string_view(),
        "nanoseconds": pa.timestamp("ns", "Europe/Berlin"),
        "unsigned": pa.uint32(),
        "words": pa.dictionary(pa.int8(), pa.string()),
    }
    stored = stored_schema(pa.schema(list(given.items())))
    assert [str(kind) for kind in stored.types] == ["string", "string", "timestamp[us, tz=UTC]", "int64", "string"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([], "at least one column"),
        ([("a", pa.timestamp("us"))], "give it a time zone"),
        ([("a", pa.uint64())], "column 'a' is uint64, which tables do not have"),
        ([("a", pa.struct([("b", pa.list_(pa.time64("us")))]))], r"column 'a.b\[\]' is time64\[us\]"),
        ([("a", pa.int64()), ("A", pa.int64())], "there twice"),
        ([(" ", pa.int64())], "no usable name"),
    ],
)
def test_what_a_table_cannot_have(fields: list[tuple[str, object]], reason: str) -> None:
    with pytest.raises(SchemaMismatch, match=reason):
        stored_schema(pa.schema(fields))


def _schema(**columns: object) -> object:
    return pa.schema(list(columns.items()))


def test_columns_are_added_and_types_get_wider() -> None:
    table = _schema(a=pa.int32(), b=pa.float32(), c=pa.struct([("x", pa.int16())]), d=pa.decimal128(5, 2))
    rows = _schema(
        d=pa.decimal128(9, 2),
        c=pa.struct([("y", pa.string()), ("x", pa.int64())]),
        b=pa.float64(),
        a=pa.int64(),
        e=pa.date32(),
    )
    found = evolution(table, rows)
    assert not found.breaking
    assert found.added == ("e",)
    assert found.widened == ("a", "b", "c", "d")
    assert found.schema.names == ["a", "b", "c", "d", "e"]
    assert found.schema.field("c").type == pa.struct([("x", pa.int64()), ("y", pa.string())])


def test_narrower_rows_and_missing_columns_change_nothing() -> None:
    table = _schema(a=pa.int64(), b=pa.string())
    found = evolution(table, _schema(a=pa.int8()))
    assert (found.added, found.widened, found.breaking) == ((), (), ())
    assert found.schema.equals(table)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.int64(), pa.string()),
        (pa.int64(), pa.float64()),
        (pa.string(), pa.binary()),
        (pa.struct([("x", pa.int64())]), pa.struct([("x", pa.string())])),
        (pa.list_(pa.int64()), pa.int64()),
        (pa.decimal128(5, 2), pa.decimal128(9, 3)),
    ],
)
def test_a_breaking_change_is_a_value(kind: object, given: object) -> None:
    found = evolution(_schema(a=kind, b=pa.int32()), _schema(a=given, b=pa.int64()))
    assert found.breaking == (Breaking("a", str(kind), str(given)),)


def test_a_column_that_is_never_null_must_stay_so() -> None:
    table = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    assert evolution(table, _schema(b=pa.int64())).breaking == (Breaking("a", "int64", None),)
    assert evolution(table, _schema(a=pa.int64())).breaking == (Breaking("a", "int64", "int64 or null"),)
    assert str(evolution(table, _schema(b=pa.int64())).breaking[0]) == "column a (int64, never null) is missing"
