"""Protobuf messages as columns: types, presence, bad values, Confluent's prefix, and what cannot be a column."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.arrow.values import parse_schema
from penstock.arrow.values.decoded import NO_VALUE
from penstock.arrow.values.protobuf_values import ProtobufValues
from penstock.model.errors import ConfigError

SCALARS = {
    "i32": Field.TYPE_INT32, "s32": Field.TYPE_SINT32, "f32": Field.TYPE_SFIXED32, "i64": Field.TYPE_INT64,
    "s64": Field.TYPE_SINT64, "f64": Field.TYPE_SFIXED64, "u32": Field.TYPE_UINT32, "x32": Field.TYPE_FIXED32,
    "u64": Field.TYPE_UINT64, "x64": Field.TYPE_FIXED64, "single": Field.TYPE_FLOAT, "exact": Field.TYPE_DOUBLE,
    "ok": Field.TYPE_BOOL, "name": Field.TYPE_STRING, "raw": Field.TYPE_BYTES,
}  # fmt: skip
BIG = 2**64 - 1


def add(message: Any, name: str, kind: int, label: int = Field.LABEL_OPTIONAL, type_name: str = "") -> Any:
    number = len(message.field) + 1
    return message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)


def files() -> list[Any]:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=2)
    click = file.message_type.add(name="Click")
    for name, kind in SCALARS.items():
        add(click, name, kind)
    message = Field.TYPE_MESSAGE
    add(click, "color", Field.TYPE_ENUM, type_name=".shop.Color")
    add(click, "at", message, type_name=".google.protobuf.Timestamp")
    add(click, "maybe", message, type_name=".google.protobuf.Int64Value")
    add(click, "user", message, type_name=".shop.Click.User")
    add(click, "tags", Field.TYPE_STRING, Field.LABEL_REPEATED)
    add(click, "times", message, Field.LABEL_REPEATED, ".google.protobuf.Timestamp")
    add(click, "prices", message, Field.LABEL_REPEATED, ".shop.Click.PricesEntry")
    field = add(click, "n", Field.TYPE_INT32)
    field.proto3_optional, field.oneof_index = True, 0
    click.oneof_decl.add(name="_n")
    user = click.nested_type.add(name="User")
    add(user, "country", Field.TYPE_STRING)
    add(user, "seen", message, type_name=".google.protobuf.Timestamp")
    entry = click.nested_type.add(name="PricesEntry")
    entry.options.map_entry = True
    add(entry, "key", Field.TYPE_INT32)
    add(entry, "value", Field.TYPE_DOUBLE)
    node = file.message_type.add(name="Node")
    add(node, "next", message, type_name=".shop.Node")
    file.message_type.add(name="Empty")
    add(file.message_type.add(name="Holder"), "empty", message, type_name=".shop.Empty")
    return [
        descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        for module in (timestamp_pb2, wrappers_pb2)
    ] + [file]


FILES = files()
DESCRIPTORS: bytes = descriptor_pb2.FileDescriptorSet(file=FILES).SerializeToString()


def message_class(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in FILES:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


Click, User = message_class("shop.Click"), message_class("shop.Click.User")


def full() -> Any:
    click = Click(
        i32=-(2**31), s32=-1, f32=7, i64=-(2**63), s64=2**63 - 1, f64=8, u32=2**32 - 1, x32=9, u64=BIG, x64=10,
        single=0.5, exact=0.1, ok=True, name="é😀", raw=b"\x00\xff", color=2,
        tags=["a", "b"], prices={7: 1.5, -1: 2.5}, n=0,
    )  # fmt: skip
    click.at.FromJsonString("2026-01-31T12:00:00.123456789Z")
    click.maybe.value = 0
    click.user.country = "NO"
    click.times.add().FromJsonString("1969-12-31T23:59:59.5Z")
    return click


def decoded(decoder: ProtobufValues, values: list[bytes | None]) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    columns, misfits = decoder.decode_array(pa.array(values, pa.binary()))
    for column, field in zip(columns, decoder.fields, strict=True):
        column.validate(full=True)
        assert column.type == field.type
    rows = [
        dict(zip(decoder.fields.names, cells, strict=True))
        for cells in zip(*(c.to_pylist() for c in columns), strict=True)
    ]
    return rows, [tuple(misfit) for misfit in misfits]


def test_every_type() -> None:
    decoder = ProtobufValues(DESCRIPTORS, "shop.Click")
    plain = parse_schema(
        "i32 int, s32 int, f32 int, i64 long, s64 long, f64 long, u32 long, x32 long, u64 decimal(20, 0), "
        "x64 decimal(20, 0), single float, exact double, ok boolean, name string, raw binary, color string, "
        "at timestamp, maybe long, user struct<country: string not null, seen: timestamp>"
    )
    assert [(field.name, field.type) for field in decoder.fields][: len(plain)] == list(
        zip(plain.names, plain.types, strict=True)
    )
    assert [field.name for field in decoder.fields if field.nullable] == ["at", "maybe", "user", "n"]
    (row, empty, nothing), misfits = decoded(decoder, [full().SerializeToString(), b"", None])
    assert misfits == [(2, NO_VALUE)]
    assert row == {
        "i32": -(2**31), "s32": -1, "f32": 7, "i64": -(2**63), "s64": 2**63 - 1, "f64": 8, "u32": 2**32 - 1, "x32": 9,
        "u64": Decimal(BIG), "x64": Decimal(10), "single": 0.5, "exact": 0.1, "ok": True, "name": "é😀",
        "raw": b"\x00\xff", "color": "BLUE", "at": datetime(2026, 1, 31, 12, 0, 0, 123_456, UTC), "maybe": 0,
        "user": {"country": "NO", "seen": None}, "tags": ["a", "b"],
        "times": [datetime(1969, 12, 31, 23, 59, 59, 500_000, UTC)], "prices": [("-1", 2.5), ("7", 1.5)], "n": 0,
    }  # fmt: skip
    assert (empty["i32"], empty["name"], empty["color"], empty["tags"], empty["prices"]) == (0, "", "RED", [], [])
    assert empty["at"] is empty["maybe"] is empty["user"] is empty["n"] is None
    assert set(nothing.values()) == {None}


def test_values_that_do_not_fit_keep_their_places() -> None:
    sound = Click(i64=7, color=5).SerializeToString()
    late = Click(i64=1)
    late.at.seconds = 2**60
    bad_text = Click(name="ab").SerializeToString().replace(b"ab", b"\xff\xff")
    values: list[bytes | None] = [sound, sound[:-1], None, late.SerializeToString(), bad_text, sound]
    rows, misfits = decoded(ProtobufValues(DESCRIPTORS, "shop.Click"), values)
    assert [row["i64"] for row in rows] == [7, None, None, None, None, 7]
    assert rows[0]["color"] == "5"
    assert [at for at, _ in misfits] == [1, 2, 3, 4]
    assert misfits[0][1].startswith("Protobuf is malformed: ")
    assert misfits[2][1] == f"a timestamp of {2**60} s and 0 ns is out of range"


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=40), st.integers(0, 200), st.integers(0, 3))
def test_damage_is_a_reason_and_no_error(piece: bytes, at: int, cut: int) -> None:
    sound = full().SerializeToString()
    damaged = sound[:at] + piece + sound[at + cut :]
    rows, misfits = decoded(ProtobufValues(DESCRIPTORS, "shop.Click"), [sound, damaged, piece, sound])
    assert rows[0]["u64"] == rows[3]["u64"] == Decimal(BIG)
    bad = {at for at, _ in misfits}
    assert bad <= {1, 2}
    assert all((rows[at]["i64"] is None) == (at in bad) for at in (1, 2))


def test_the_number_of_a_schema_before_the_value() -> None:
    click, user = Click(i32=1).SerializeToString(), User(country="NO").SerializeToString()
    prefix = b"\0\0\0\0\5"
    values: list[bytes | None] = [
        prefix + b"\0" + click, prefix + b"\2\0" + click, prefix + b"\4\0\0" + user, prefix + b"\2\2" + click,
        b"\0\0\0\0\6\0" + click, prefix, prefix + b"\x80", b"", prefix + b"\xff\xff\xff\xff\xff\xff\0" + click,
    ]  # fmt: skip
    rows, misfits = decoded(ProtobufValues(DESCRIPTORS, "shop.Click", schema_id=5), values)
    assert [row["i32"] for row in rows] == [1, 1, *[None] * 7]
    reasons = dict(misfits)
    assert reasons[2] == reasons[3] == "it is another message of the schema 5"
    assert reasons[4] == "it was written with the schema 6, not 5"
    assert reasons[5] == reasons[6] == reasons[8] == "the indexes of its message are cut short"
    assert reasons[7] == "it does not begin with byte 0 and the number of a schema"
    inner, misfits = decoded(ProtobufValues(DESCRIPTORS, "shop.Click.User", schema_id=5), values[:3])
    assert [row["country"] for row in inner] == [None, None, "NO"]
    assert [at for at, _ in misfits] == [0, 1]


@pytest.mark.parametrize(
    ("descriptors", "message", "reason"),
    [
        (b"\xff\xff", "shop.Click", "it is no file of descriptors"),
        (DESCRIPTORS, "Click", r"it has no message 'Click'; messages in it: .*shop\.Click"),
        (b"", "Click", "it has no message 'Click'; messages in it: none"),
        (DESCRIPTORS, "shop.Node", "field 'next' is of a message that it is in: a column cannot hold itself"),
        (DESCRIPTORS, "shop.Empty", r"the message shop\.Empty has no fields"),
        (DESCRIPTORS, "shop.Holder", "field 'empty' is a message without fields, which is no column"),
        (
            descriptor_pb2.FileDescriptorSet(file=FILES[-1:]).SerializeToString(),
            "shop.Click",
            "a file is missing in it: write it with protoc --include_imports",
        ),
    ],
)
def test_what_cannot_be_columns(descriptors: bytes, message: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ProtobufValues(descriptors, message)


def test_text_of_proto2_that_is_not_utf8() -> None:
    """Protobuf does not look at it while it reads the message."""
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    row = file.message_type.add(name="Row")
    add(row, "counts", Field.TYPE_MESSAGE, Field.LABEL_REPEATED, ".old.Row.CountsEntry")
    add(row, "name", Field.TYPE_STRING)
    entry = row.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    add(entry, "key", Field.TYPE_STRING)
    add(entry, "value", Field.TYPE_INT32)
    decoder = ProtobufValues(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), "old.Row")
    values = [b"\x0a\x05\x0a\x01a\x10\x01", b"\x0a\x05\x0a\x01\xff\x10\x01", b"\x12\x01\xff", b"\x12\x01b"]
    columns, misfits = decoder.decode_array(pa.array(values))
    assert columns[0].to_pylist() == [[("a", 1)], None, None, []]
    assert columns[1].to_pylist() == [None, None, None, "b"]
    assert [misfit.at for misfit in misfits] == [1, 2]
    assert misfits[0].reason.startswith("Protobuf is malformed: ")
