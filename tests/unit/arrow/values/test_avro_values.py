"""Avro records as columns: types, bad values, Confluent's prefix, and schemas that have no form as columns."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.arrow.values import parse_schema
from penstock.arrow.values.avro_values import AvroValues
from penstock.arrow.values.decoded import NO_VALUE
from penstock.arrow.values.prefix import NotThere
from penstock.model.errors import ConfigError

FULL: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "n", "type": ["null", "int"], "default": None},
        {"name": "wide", "type": ["int", "null", "long"]},
        {"name": "ratio", "type": "float"},
        {"name": "exact", "type": ["float", "double"]},
        {"name": "ok", "type": "boolean"},
        {"name": "name", "type": ["string", "null"]},
        {"name": "raw", "type": "bytes"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "again", "type": "Hash"},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "exactly", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {
            "name": "seen",
            "type": {"type": "map", "values": {"type": "long", "logicalType": "timestamp-millis"}},
        },
        {
            "name": "user",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "User",
                    "fields": [{"name": "größe", "type": "double"}, {"name": "hash", "type": "shop.Hash"}],
                },
            ],
        },
    ],
}
ROW: dict[str, Any] = {
    "id": 2**62, "n": None, "wide": 2**40, "ratio": 0.5, "exact": 0.5, "ok": True, "name": "é😀", "raw": b"\x00\xff",
    "hash": b"ab", "again": b"cd", "color": "BLUE", "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, 0, 0, 500_000, UTC), "exactly": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    "price": Decimal("-1.25"), "uid": "11111111-2222-3333-4444-555555555555", "tags": ["a", None],
    "seen": {"x": datetime(2026, 1, 31, tzinfo=UTC)}, "user": {"größe": 1.5, "hash": b"xy"},
}  # fmt: skip


def written(schema: Any, row: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def decoded(decoder: AvroValues, values: list[bytes | None]) -> tuple[list[list[Any]], list[tuple[int, str]]]:
    columns, misfits = decoder.decode_array(pa.array(values, pa.binary()))
    for column, field in zip(columns, decoder.fields, strict=True):
        column.validate(full=True)
        assert column.type == field.type
    return [column.to_pylist() for column in columns], [tuple(misfit) for misfit in misfits]


def test_every_type() -> None:
    decoder = AvroValues(json.dumps(FULL))
    assert decoder.fields.equals(
        parse_schema(
            "id long not null, n int, wide long, ratio float not null, exact double not null, ok boolean not null, "
            "name string, raw binary not null, hash binary not null, again binary not null, color string not null, "
            "day date not null, at timestamp, exactly timestamp not null, price decimal(5, 2) not null, "
            "uid string not null, tags array<string> not null, seen map<string, timestamp> not null, "
            "user struct<größe: double not null, hash: binary not null>"
        ).set(
            17, pa.field("seen", pa.map_(pa.string(), pa.field("value", decoder.fields.field("at").type, False)), False)
        )
    )
    columns, misfits = decoded(decoder, [written(FULL, ROW), None])
    assert misfits == [(1, NO_VALUE)]
    assert dict(zip(decoder.fields.names, (column[0] for column in columns), strict=True)) == {
        **ROW,
        "seen": list(ROW["seen"].items()),
    }
    assert all(column[1] is None for column in columns)


def test_values_that_do_not_fit_keep_their_places() -> None:
    schema = record(("id", "long"), ("name", "string"), ("at", {"type": "long", "logicalType": "timestamp-millis"}))
    good = written(schema, {"id": 1, "name": "grün", "at": 0})
    out_of_range = written(
        record(("id", "long"), ("name", "string"), ("at", "long")), {"id": 1, "name": "", "at": 2**62}
    )
    bad_text = good.replace("grün".encode(), b"gr\xff\xfen")
    columns, misfits = decoded(
        AvroValues(json.dumps(schema)), [good, good[:-1], good + b"x", b"", None, bad_text, out_of_range, b"{}", good]
    )
    assert columns[0] == [1, None, None, None, None, None, None, None, 1]
    assert [at for at, _ in misfits] == [1, 2, 3, 4, 5, 6, 7]
    reasons = dict(misfits)
    assert reasons[2] == "Avro is malformed: 1 bytes follow the record"
    assert reasons[1].startswith("Avro is malformed: ")
    assert reasons[6].startswith("field 'at': ")


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 120), st.integers(0, 3))
def test_damage_is_a_reason_and_no_error(piece: bytes, at: int, cut: int) -> None:
    """Whatever the bytes: a row is what fastavro reads, or it does not fit."""
    sound = written(FULL, ROW)
    damaged = sound[:at] + piece + sound[at + cut :]
    columns, misfits = AvroValues(json.dumps(FULL)).decode_array(pa.array([sound, damaged, piece, sound]))
    for column in columns:
        column.validate(full=True)
    ids = columns[0].to_pylist()
    assert ids[0] == ids[3] == 2**62
    bad = {misfit.at for misfit in misfits}
    assert bad <= {1, 2}
    assert all((ids[at] is None) == (at in bad) for at in (1, 2))


def test_the_number_of_a_schema_before_the_value() -> None:
    schema = record(("id", "long"))
    value = written(schema, {"id": 7})
    values: list[bytes | None] = [
        b"\0\0\0\0\x05" + value,
        b"\0\0\0\1\0" + value,
        value,
        b"\0\0",
        b"\1\0\0\0\x05" + value,
    ]
    columns, misfits = decoded(AvroValues(json.dumps(schema), schema_id=5), values)
    assert columns == [[7, None, None, None, None]]
    no_prefix = "it does not begin with byte 0 and the number of a schema"
    assert misfits == [
        (1, "it was written with the schema 256, not 5"), (2, no_prefix), (3, no_prefix), (4, no_prefix)
    ]  # fmt: skip


def test_values_of_other_schemas_are_resolved() -> None:
    reader = record(("id", "long"), ("name", ["null", "string"]))
    reader["fields"][1]["default"] = None
    at = {"type": "long", "logicalType": "timestamp-millis"}
    known = {
        1: record(("id", "int")),
        2: record(("name", "string"), ("id", "long"), ("at", at)),
        3: record(("x", "int")),
    }
    asked = []

    def schemas(number: int) -> str:
        asked.append(number)
        if number not in known:
            raise NotThere("it is not in the registry")
        return json.dumps(known[number])

    values: list[bytes | None] = [
        b"\0\0\0\0\1" + written(known[1], {"id": 1}),
        b"\0\0\0\0\2" + written(known[2], {"id": 2, "name": "x", "at": 0}),
        b"\0\0\0\0\3" + written(known[3], {"x": 1}),
        b"\0\0\0\0\4" + written(known[1], {"id": 1}),
        b"\0\0\0\0\1" + written(known[1], {"id": 3}),
    ]
    columns, misfits = decoded(AvroValues(json.dumps(reader), writer_schemas=schemas), values)
    assert columns == [[1, 2, None, None, 3], [None, "x", None, None, None]]
    assert misfits[0][1].startswith("Avro is malformed: ")
    assert misfits[1] == (3, "its schema 4: it is not in the registry")
    assert asked == [1, 2, 3, 4]


PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}


def test_decimals_are_bounded() -> None:
    """Megabytes would take minutes to convert, and Arrow may crash at more than 38 fractional digits."""
    many = {**PRICE, "precision": 10**6, "scale": 10**6}
    fixed = {**PRICE, "type": "fixed", "name": "F", "size": 65}
    known = {1: record(("a", PRICE)), 2: record(("a", many)), 3: record(("a", fixed))}
    values: list[bytes | None] = [
        b"\0\0\0\0\1\x04\x00\x7d",
        b"\0\0\0\0\1" + written(record(("a", "bytes")), {"a": b"\1" * 65}),
        b"\0\0\0\0\2\x02\x01",
        b"\0\0\0\0\3" + b"\1" * 65,
    ]
    schemas = {number: json.dumps(schema) for number, schema in known.items()}
    decoder = AvroValues(json.dumps(record(("a", PRICE))), writer_schemas=lambda number: schemas[number])
    columns, misfits = decoded(decoder, values)
    assert columns == [[Decimal("1.25"), None, None, None]]
    assert dict(misfits)[1] == "Avro is malformed: a decimal has 65 bytes, more than 64"
    assert dict(misfits)[2] == "field 'a': a decimal has 1000000 fractional digits, more than 38"
    assert [at for at, _ in misfits] == [1, 2, 3]


def test_a_skipped_field_of_endless_depth_or_length() -> None:
    """fastavro's compiled reader would end the process, or look for items far behind the end of the value."""
    node = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    halves = {
        "type": "record",
        "name": "H",
        "fields": [{"name": "x", "type": "float"}, {"name": "y", "type": "boolean"}],
    }
    known: dict[int, Any] = {
        1: record(("deep", node), ("id", "long")),
        2: record(("long", {"type": "array", "items": "double"}), ("id", "long")),
        3: record(("long", {"type": "array", "items": halves}), ("id", "long")),
        4: record(("long", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 4}}), ("id", "long")),
        5: record(("long", {"type": "array", "items": "null"}), ("id", "long")),
        6: record(
            ("empty", {"type": "fixed", "name": "F", "size": 0}), ("a", {"type": "array", "items": "F"}), ("id", "long")
        ),
    }
    endless = written(record(("id", "long")), {"id": 2**62})
    values: list[bytes | None] = [
        b"\0\0\0\0\1" + written(known[1], {"deep": {"next": {"next": None}}, "id": 7}),
        b"\0\0\0\0\1" + b"\2" * 1_000_000,
        b"\0\0\0\0\2" + written(known[2], {"long": [0.5, 1.5], "id": 8}),
        *(b"\0\0\0\0" + bytes([number]) + endless for number in (2, 3, 4, 5, 6)),
    ]
    schemas = {number: json.dumps(schema) for number, schema in known.items()}
    decoder = AvroValues(json.dumps(record(("id", "long"))), writer_schemas=lambda number: schemas[number])
    columns, misfits = decoded(decoder, values)
    assert columns == [[7, None, 8, None, None, None, None, None]]
    reasons = dict(misfits)
    assert all(reasons[at].startswith("Avro is malformed: ") for at in (1, 3, 4, 5))
    assert all("has an array of items without bytes" in reasons[at] for at in (6, 7))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("no json", "the Avro schema is no JSON"),
        ('"long"', "the Avro schema is no record"),
        ({"type": "record", "name": "R", "fields": []}, "the record has no fields"),
        ({"type": "record", "fields": [{"name": "a", "type": "int"}]}, "a type 'record' without a name"),
        (record(("a", ["int", "string"])), "field 'a' is a union of several types: a column has one, or one and null"),
        (record(("a", "null")), "field 'a' is always null"),
        (record(("a", ["null"])), "field 'a' is a union of several types"),
        (record(("a", "Other")), "field 'a' has the type 'Other', which the Avro schema does not define before it"),
        (record(("next", ["null", "R"])), "field 'next' is of the record that it is in: a column cannot hold itself"),
        (record(("a", {"type": "array", "items": "null"})), r"field 'a'\[\] is always null"),
        (record(("a", "int"), ("A", "int")), "the record has the field 'A' twice"),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 50})),
            "field 'a' is a decimal of 50 digits",
        ),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["1"]})), "the Avro schema cannot be read: "),
    ],
)
def test_schemas_that_cannot_be_columns(schema: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        AvroValues(schema if isinstance(schema, str) else json.dumps(schema))
