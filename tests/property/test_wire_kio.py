"""Codecs against kio, for every API and version: same bytes, same values, no stray exceptions."""

from __future__ import annotations

import dataclasses
import io
import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial._introspect import EntityField, EntityTupleField, classify_field, get_field_tag, is_optional

from penstock.model.errors import ProtocolError
from penstock.wire.apis import api
from penstock.wire.codec import decode, encode, reader
from penstock.wire.messages.index import INDEX
from penstock.wire.primitives import NULL_UUID, Message

CASES = [
    pytest.param(key, direction, id=f"{spec[0]}-{direction}")
    for key, spec in INDEX.items()
    for direction in ("request", "response")
]
STRINGS = ["", "a", "topic-0", "größe ∂ 🎈", "x" * 126, "y" * 127, "z" * 128, "w" * 300]
INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def schemas(key: int, direction: str) -> list[tuple[int, Any, type[Message]]]:
    spec = api(key)
    load, ours = (
        (load_request_schema, spec.request) if direction == "request" else (load_response_schema, spec.response)
    )
    return [(version, load(key, version), ours) for version in range(spec.min_version, spec.max_version + 1)]


def random_value(kind: str, rng: random.Random) -> object:
    if kind in INTEGERS:
        limit = 1 << INTEGERS[kind] - 1
        return rng.choice([0, 1, -1, limit - 1, -limit, rng.randrange(-limit, limit)])
    match kind:
        case "uint16":
            return rng.choice([0, 65535, rng.randrange(65536)])
        case "float64":
            return rng.choice([0.0, -1.5, 1e300])
        case "bool":
            return rng.random() < 0.5
        case "string":
            return rng.choice(STRINGS)
        case "bytes" | "records":
            return rng.randbytes(rng.choice([0, 1, 126, 127, 200]))
        case "uuid":
            return uuid.UUID(int=rng.randrange(1, 1 << 128))
        case "error_code":
            return rng.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=rng.randrange(-1000, 1 << 31))
        case "datetime_i64":
            return datetime.fromtimestamp(rng.randrange(1 << 31), UTC)
    raise AssertionError(kind)


def random_entity(schema: type, rng: random.Random, longest: int = 3) -> object:
    values = {}
    for field in dataclasses.fields(schema):
        kind = classify_field(field)
        default = field.default
        if get_field_tag(field) is not None and default is not dataclasses.MISSING and rng.random() < 0.4:
            values[field.name] = default
            continue
        # A null in a tag is what its absence means; kio cannot write it.
        if (
            is_optional(field)
            and get_field_tag(field) is None
            and rng.random() < 0.3
            and "tuple[uuid" not in str(field)
        ):
            values[field.name] = None
            continue

        def one(field: dataclasses.Field[object] = field, kind: object = kind) -> object:
            if isinstance(kind, EntityField | EntityTupleField):
                return random_entity(kind.type_, rng, longest)
            return random_value(str(field.metadata["kafka_type"]), rng)

        if kind.is_array:
            values[field.name] = tuple(one() for _ in range(rng.randrange(longest + 1)))
        else:
            values[field.name] = one()
    return schema(**values)


def assert_same(ours: object, theirs: object) -> None:
    """Compare our message with kio's entity, value by value."""
    if dataclasses.is_dataclass(theirs):
        for field in dataclasses.fields(theirs):
            value = getattr(theirs, field.name)
            kafka_type = str(field.metadata.get("kafka_type", ""))
            if kafka_type == "uuid" and value is None and not classify_field(field).is_array:
                value = NULL_UUID
            if kafka_type == "datetime_i64" and value is None:
                value = -1
            name = field.name + ("_ms" if kafka_type.startswith(("timedelta", "datetime")) else "")
            mine = getattr(ours, name)
            if isinstance(mine, Message) or dataclasses.is_dataclass(value):
                # An absent tagged struct is None here and a default object there.
                mine = mine if mine is not None else default_struct(ours, name)
            assert_same(mine, value)
    elif isinstance(theirs, tuple):
        assert isinstance(ours, list)
        assert len(ours) == len(theirs)
        for mine, value in zip(ours, theirs, strict=True):
            assert_same(mine, value)
    elif isinstance(theirs, uuid.UUID):
        assert ours == theirs.bytes
    elif isinstance(theirs, timedelta):
        assert ours == round(theirs.total_seconds() * 1000)
    elif isinstance(theirs, datetime):
        assert ours == round(theirs.timestamp() * 1000)
    elif isinstance(theirs, ErrorCode):
        assert ours == theirs.value
    else:
        assert ours == theirs


def default_struct(message: object, name: str) -> Message:
    assert isinstance(message, Message)
    (kind,) = (field[1] for field in message.FIELDS if field[0] == name)
    module = __import__(type(message).__module__, fromlist=[kind])
    made = getattr(module, kind)()
    assert isinstance(made, Message)
    return made


def written_by_kio(schema: Any, entity: object) -> bytes:
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize(("key", "direction"), CASES)
def test_kio_and_we_agree(key: int, direction: str) -> None:
    rng = random.Random(key)
    for version, schema, cls in schemas(key, direction):
        for _ in range(6):
            entity = random_entity(schema, rng)
            data = written_by_kio(schema, entity)
            message = decode(cls, version, data)
            assert_same(message, entity)
            assert encode(message, version) == data
            theirs, size = entity_reader(schema)(encode(message, version), 0)
            assert size == len(data)
            assert theirs == entity


@pytest.mark.parametrize(("key", "direction"), CASES)
def test_all_kinds_of_buffer_read_alike(key: int, direction: str) -> None:
    rng = random.Random(key)
    for version, schema, cls in schemas(key, direction):
        data = written_by_kio(schema, random_entity(schema, rng))
        read = reader(cls, version)
        expected, end = read(data, 0)
        assert end == len(data)
        assert read(bytearray(data), 0) == (expected, end)
        assert read(memoryview(b"12345" + data + b"6"), 5) == (expected, end + 5)


@pytest.mark.parametrize(("key", "direction"), CASES)
def test_every_truncation_is_a_protocol_error(key: int, direction: str) -> None:
    rng = random.Random(key)
    for version, schema, cls in schemas(key, direction):
        data = written_by_kio(schema, random_entity(schema, rng, longest=2))
        read = reader(cls, version)
        for length in range(min(len(data), 2000)):
            with pytest.raises(ProtocolError):
                read(data[:length], 0)


@pytest.mark.parametrize(("key", "direction"), CASES)
def test_damage_is_read_or_refused(key: int, direction: str) -> None:
    """A reader answers any bytes with a message or ProtocolError."""
    rng = random.Random(key)
    outcomes = {"read": 0, "refused": 0}
    for version, schema, cls in schemas(key, direction):
        read = reader(cls, version)
        data = written_by_kio(schema, random_entity(schema, rng))
        for _ in range(30):
            damaged = bytearray(data) if rng.random() < 0.8 else bytearray(rng.randbytes(rng.randrange(60)))
            for _ in range(rng.randrange(4) if damaged else 0):
                damaged[rng.randrange(len(damaged))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            try:
                message, end = read(damaged, 0)
            except ProtocolError:
                outcomes["refused"] += 1
            else:
                outcomes["read"] += 1
                assert end <= len(damaged)
                again = encode(message, version)
                # What was read has one canonical form.
                assert encode(decode(cls, version, again), version) == again
    assert sum(outcomes.values()) == 30 * len(schemas(key, direction))
