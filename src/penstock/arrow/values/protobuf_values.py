"""Protobuf messages as columns of Arrow: a message's fields become columns.

    int32, sint32, sfixed32            int
    int64, sint64, sfixed64            long
    uint32, fixed32                    long
    uint64, fixed64                    decimal(20, 0)
    float, double, bool, string, bytes the same
    an enum                            its name as a string; a number that has no name as digits
    a message, repeated, map           struct, array, map (keys as text)
    Timestamp                          timestamp
    the wrappers (Int64Value ...)      the type within, nullable

A field that knows whether it is there (`optional`, in a oneof, a message, proto2) is null if it is not; any other has
its default. The message is described by a file of descriptors, as `protoc --descriptor_set_out --include_imports`
writes it. Unknown fields are left out, as everywhere with Protobuf: so nearly any bytes are some message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError

from penstock.arrow.values.decoded import DecodedValues, RowColumns, UnreadableValue
from penstock.arrow.values.prefix import split
from penstock.model.errors import ConfigError

Cell = Callable[[Any], Any]
"""A cell of a field's value."""

_UNSIGNED_64: Final = pa.decimal128(20, 0)
_SIMPLE: Final = {
    Field.TYPE_INT32: pa.int32(),
    Field.TYPE_SINT32: pa.int32(),
    Field.TYPE_SFIXED32: pa.int32(),
    Field.TYPE_INT64: pa.int64(),
    Field.TYPE_SINT64: pa.int64(),
    Field.TYPE_SFIXED64: pa.int64(),
    Field.TYPE_UINT32: pa.int64(),
    Field.TYPE_FIXED32: pa.int64(),
    Field.TYPE_UINT64: _UNSIGNED_64,
    Field.TYPE_FIXED64: _UNSIGNED_64,
    Field.TYPE_FLOAT: pa.float32(),
    Field.TYPE_DOUBLE: pa.float64(),
    Field.TYPE_BOOL: pa.bool_(),
    Field.TYPE_STRING: pa.string(),
    Field.TYPE_BYTES: pa.binary(),
}
_WELL_KNOWN: Final = "google.protobuf."
_WRAPPERS: Final = frozenset(
    f"{_WELL_KNOWN}{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999, the limits of a Timestamp


class _Column(NamedTuple):
    kind: Any
    is_nullable: bool
    read: Cell
    """The cell in a message that has the field."""


class ProtobufValues:
    """`descriptors`: a FileDescriptorSet. `schema_id`: values have Confluent's prefix with this number."""

    def __init__(
        self, descriptors: bytes, message: str, types: list[Any] | None = None, *, schema_id: int | None = None
    ) -> None:
        described = _described(descriptors, message)
        self._class = message_factory.GetMessageClass(described)
        self._schema_id = schema_id
        self._path = _path_of(described)
        self._readers: list[Cell] = []
        fields = []
        for field in described.fields:
            column = _column(field, (described.full_name,))
            self._readers.append(column.read)
            fields.append(pa.field(field.name, column.kind, column.is_nullable))
        if not fields:
            raise ConfigError(f"the message {message} has no fields")
        self.fields = pa.schema(fields)
        kinds = self.fields.types
        self._rows = RowColumns(self.fields.names, kinds, types or kinds, self._read)

    def decode_array(self, values: Any) -> DecodedValues:
        return self._rows.decode_array(values)

    def _read(self, value: bytes) -> list[Any]:
        if self._schema_id is not None:
            number, value = split(value)
            if number != self._schema_id:
                raise UnreadableValue(f"it was written with the schema {number}, not {self._schema_id}")
            value = self._after_path(value)
        try:
            message = self._class.FromString(value)
        except DecodeError as error:
            raise UnreadableValue(f"Protobuf is malformed: {error}") from None
        try:
            return [read(message) for read in self._readers]
        except UnreadableValue:
            raise
        except (ValueError, LookupError, TypeError) as error:  # text that is not UTF-8 is found only here
            raise UnreadableValue(f"Protobuf is malformed: {error}") from None

    def _after_path(self, value: bytes) -> bytes:
        """What follows the place of the message in its file: its index, and for one within others those of all."""
        at = 0
        numbers: list[int] = []
        size: int | None = None
        while size is None or len(numbers) < size:
            number = shift = 0
            while True:
                if at >= len(value) or shift > 35:
                    raise UnreadableValue("the indexes of its message are cut short")
                byte = value[at]
                at += 1
                number |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            number = (number >> 1) ^ -(number & 1)
            if size is None:
                size = number
                if not 0 <= size <= len(self._path):
                    raise UnreadableValue(f"it is another message of the schema {self._schema_id}")
            else:
                numbers.append(number)
        if (numbers or [0]) != self._path:  # the first message of a file is written as no indexes at all
            raise UnreadableValue(f"it is another message of the schema {self._schema_id}")
        return value[at:]


def _described(descriptors: bytes, message: str) -> Any:
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    except DecodeError as error:
        raise ConfigError(f"it is no file of descriptors ({error}): protoc --descriptor_set_out writes one") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName(message)
    except KeyError:
        own = [file for file in files if not f"{file.package}.".startswith(_WELL_KNOWN)]
        known = [name for file in own for name in _names(file.package, file.message_type)]
        few = f"{', '.join(known[:10])}{', ...' if len(known) > 10 else ''}" or "none"
        raise ConfigError(f"it has no message {message!r}; messages in it: {few}") from None
    except TypeError as error:
        raise ConfigError(f"a file is missing in it: write it with protoc --include_imports ({error})") from None


def _names(within: str, messages: Any) -> list[str]:
    found = []
    for message in messages:
        name = f"{within}.{message.name}" if within else message.name
        found += [name, *_names(name, message.nested_type)]
    return found


def _path_of(described: Any) -> list[int]:
    path: list[int] = []
    while described.containing_type is not None:
        path.insert(0, described.containing_type.nested_types.index(described))
        described = described.containing_type
    return [list(described.file.message_types_by_name).index(described.name), *path]


def _column(field: Any, within: tuple[str, ...]) -> _Column:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map(field, within)
    kind, cell = _cell(field, within)
    if field.is_repeated:
        return _Column(
            pa.list_(pa.field("element", kind, False)),
            False,
            lambda message: [cell(item) for item in getattr(message, name)],
        )
    if field.has_presence:
        return _Column(kind, True, lambda message: cell(getattr(message, name)) if message.HasField(name) else None)
    return _Column(kind, False, lambda message: cell(getattr(message, name)))


def _map(field: Any, within: tuple[str, ...]) -> _Column:
    name, entry = field.name, field.message_type.fields_by_name
    kind, cell = _cell(entry["value"], within)

    def read(message: Any) -> list[tuple[str, Any]]:
        return sorted((_key(key), cell(value)) for key, value in getattr(message, name).items())

    return _Column(pa.map_(pa.string(), pa.field("value", kind, False)), False, read)


def _key(key: object) -> str:
    if isinstance(key, bytes):  # what proto2 gives for text that is not UTF-8
        raise UnreadableValue("Protobuf is malformed: a key of a map is not UTF-8")
    return str(key).lower() if isinstance(key, bool) else str(key)


def _cell(field: Any, within: tuple[str, ...]) -> tuple[Any, Cell]:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return pa.string(), lambda number: names.get(number) or str(number)
    if field.message_type is None:
        return _SIMPLE[field.type], _same
    full = field.message_type.full_name
    if full == f"{_WELL_KNOWN}Timestamp":
        return pa.timestamp("us", "UTC"), _microseconds
    if full in _WRAPPERS:
        return _SIMPLE[field.message_type.fields_by_name["value"].type], lambda wrapper: wrapper.value
    if full in within:
        raise ConfigError(f"field {field.name!r} is of a message that it is in: a column cannot hold itself")
    inner = {one.name: _column(one, (*within, full)) for one in field.message_type.fields}
    if not inner:
        raise ConfigError(f"field {field.name!r} is a message without fields, which is no column")
    readers = [(name, column.read) for name, column in inner.items()]
    kind = pa.struct([pa.field(name, column.kind, column.is_nullable) for name, column in inner.items()])
    return kind, lambda message: {name: read(message) for name, read in readers}


def _same(value: Any) -> Any:
    return value


def _microseconds(timestamp: Any) -> int:
    seconds, nanos = timestamp.seconds, timestamp.nanos
    if not _FIRST_SECOND <= seconds <= _LAST_SECOND or not 0 <= nanos < 1_000_000_000:
        raise UnreadableValue(f"a timestamp of {seconds} s and {nanos} ns is out of range")
    return int(seconds * 1_000_000 + nanos // 1000)
