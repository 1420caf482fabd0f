"""Avro records as columns of Arrow: a record's fields become columns, with the types that the schema names.

    boolean, int, long, float, double, bytes, string    the same
    enum                     a string
    fixed                    binary
    record, array, map       struct, array, map with keys of type string
    union                    of one type and null: the type, nullable. int with long: long. float with double: double
    date, timestamp-millis, timestamp-micros, decimal   date, timestamp, decimal; other logical types are not regarded

Values are single records without a header of their own ("schemaless"); fastavro reads them. Those of Confluent's
serializers have a byte 0 and the number of their schema before it: see `prefix`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final, NamedTuple

import fastavro
import pyarrow as pa
from fastavro._read_py import schemaless_reader as careful_reader
from fastavro.read import LOGICAL_READERS, SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from penstock.arrow.values.decoded import DecodedValues, RowColumns, UnreadableValue
from penstock.arrow.values.prefix import NotThere, split
from penstock.model.errors import ConfigError

Node = Any
"""A part of a schema, as JSON."""
WriterSchemas = Callable[[int], str]
"""The text of a schema by its number. Raises NotThere."""

_SIMPLE: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_LOGICAL: Final = {  # as they are written, and as columns
    ("int", "date"): (pa.int32(), pa.date32()),
    ("long", "timestamp-millis"): (pa.timestamp("ms", "UTC"), _TIMESTAMP),
    ("long", "timestamp-micros"): (_TIMESTAMP, _TIMESTAMP),
}
_WIDER: Final = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}
_UNREADABLE: Final = (
    EOFError, ValueError, ArithmeticError, LookupError, TypeError, StopIteration, MemoryError, RecursionError,
    AssertionError, struct.error, SchemaResolutionError,
)  # fmt: skip
MAX_DIGITS: Final = 38
MAX_DECIMAL_BYTES: Final = 64
_DECIMAL: Final = "bounded-decimal"
"""The name of decimals for fastavro, which would take minutes for one of megabytes."""


def _bounded_decimal(data: bytes, *schemas: Any) -> Any:
    if len(data) > MAX_DECIMAL_BYTES:
        raise ValueError(f"a decimal has {len(data)} bytes, more than {MAX_DECIMAL_BYTES}")
    return LOGICAL_READERS["bytes-decimal"](data, *schemas)


LOGICAL_READERS[f"bytes-{_DECIMAL}"] = LOGICAL_READERS[f"fixed-{_DECIMAL}"] = _bounded_decimal


class _Ending(BytesIO):
    """Raises at its end. fastavro skips floats, booleans and fixed bytes without a look at what it got."""

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if size is not None and len(found) < size:
            raise EOFError("it ends too early")
        return found


class _Writer(NamedTuple):
    """A schema that values were written with, and what fastavro needs to skip its fields safely."""

    schema: Any
    is_recursive: bool = False
    has_unchecked_arrays: bool = False


class AvroValues:
    """`schema` as JSON text. `types`: those of the columns, where they differ in names or nullability.

    `schema_id`: values have Confluent's prefix with this number. With `writer_schemas` they have any number, and are
    resolved from the schema that they were written with.
    """

    def __init__(
        self,
        schema: str,
        types: list[Any] | None = None,
        *,
        schema_id: int | None = None,
        writer_schemas: WriterSchemas | None = None,
    ) -> None:
        root = _json(schema)
        shape = _Shape()
        shape.add(root)
        self._schema = _parsed(root).schema
        self._schema_id = schema_id
        self._writer_schemas = writer_schemas
        self._writers: dict[int, _Writer] = {}
        self.fields = pa.schema(shape.fields)
        self._names = [field.name for field in shape.fields]
        self._rows = RowColumns(self._names, shape.wire_types, types or self.fields.types, self._read)

    def decode_array(self, values: Any) -> DecodedValues:
        return self._rows.decode_array(values)

    def _read(self, value: bytes) -> list[Any]:
        writer, reader = _Writer(self._schema), None
        if self._writer_schemas is not None:
            number, value = split(value)
            writer, reader = self._writer(number, self._writer_schemas), self._schema
        elif self._schema_id is not None:
            number, value = split(value)
            if number != self._schema_id:
                raise UnreadableValue(f"it was written with the schema {number}, not {self._schema_id}")
        stream = _Ending(value) if writer.has_unchecked_arrays else BytesIO(value)
        # The compiled reader has no limit for the depth of what it skips: it would end the process.
        read = careful_reader if writer.is_recursive else fastavro.schemaless_reader
        try:
            row = read(stream, writer.schema, reader)
        except _UNREADABLE as error:
            raise UnreadableValue(f"Avro is malformed: {f'{error}' or type(error).__name__}") from None
        left = len(value) - stream.tell()
        if left:
            raise UnreadableValue(f"Avro is malformed: {left} bytes follow the record")
        assert isinstance(row, Mapping)
        return [row[name] for name in self._names]

    def _writer(self, number: int, schemas: WriterSchemas) -> _Writer:
        if number not in self._writers:
            try:
                writer = _parsed(_json(schemas(number)))
                if writer.schema == self._schema:  # nothing is skipped
                    writer = _Writer(self._schema)
                self._writers[number] = writer
            except (NotThere, ConfigError) as error:
                raise UnreadableValue(f"its schema {number}: {error}") from None
        return self._writers[number]


def _json(text: str) -> Node:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the Avro schema is no JSON: {error}") from None


def _parsed(root: Node) -> _Writer:
    try:
        parsed = fastavro.parse_schema(_plain(root))
        traits = _Traits(parsed)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the Avro schema cannot be read: {type(error).__name__}: {error}") from None
    if traits.has_empty_items:
        raise ConfigError("the Avro schema has an array of items without bytes: nothing would limit their number")
    return _Writer(parsed, traits.is_recursive, traits.has_unchecked_arrays)


class _Traits:
    """What a parsed schema has that is dangerous to read."""

    def __init__(self, schema: Any) -> None:
        self._open: set[str] = set()
        self._known: dict[str, tuple[bool, bool]] = {}
        """Named types: whether they have no bytes, and whether skipping them never notices the end."""
        self.is_recursive = self.has_empty_items = self.has_unchecked_arrays = False
        self._walk(schema)

    def _walk(self, node: Any) -> tuple[bool, bool]:
        if isinstance(node, list):
            for branch in node:
                self._walk(branch)
            return False, False
        name = node["type"] if isinstance(node, dict) else node
        if isinstance(name, dict | list):
            return self._walk(name)
        if name in ("record", "error"):
            return self._record(node)
        if name == "array":
            is_empty, is_unchecked = self._walk(node["items"])
            self.has_empty_items |= is_empty
            self.has_unchecked_arrays |= is_unchecked
        elif name == "map":
            self._walk(node["values"])
        elif name == "fixed":
            self._known[node["name"]] = node["size"] == 0, True
            return self._known[node["name"]]
        elif name in self._known:
            self.is_recursive |= name in self._open
            return self._known[name]
        return name == "null", name in ("null", "boolean", "float", "double")

    def _record(self, node: Any) -> tuple[bool, bool]:
        name = node["name"]
        self._known[name] = False, True  # of itself, until its fields are known
        self._open.add(name)
        found = [self._walk(field["type"]) for field in node["fields"]]
        self._open.discard(name)
        self._known[name] = all(is_empty for is_empty, _ in found), all(is_unchecked for _, is_unchecked in found)
        return self._known[name]


def _plain(node: Node) -> Node:
    """Without logical types: integers become dates and timestamps in Arrow, which is faster. Decimals stay."""
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {name: part for name, part in node.items() if name != "logicalType"}
    if node.get("logicalType") == "decimal":
        kept["logicalType"] = _DECIMAL
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = _plain(kept[name])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_plain(field) for field in kept["fields"]]
    return kept


class _Shape:
    """The columns of a record schema. Raises ConfigError for what has no form as a column."""

    def __init__(self) -> None:
        self.fields: list[Any] = []
        self.wire_types: list[Any] = []
        self._named: dict[str, tuple[Any, Any] | None] = {}
        """By full name; None while it is being read."""

    def add(self, root: Node) -> None:
        if not isinstance(root, dict) or root.get("type") not in ("record", "error"):
            raise ConfigError("the Avro schema is no record: only a record's fields can be columns")
        wire, kind = self._record(root, "", "the record")
        self.fields = list(kind)
        self.wire_types = [field.type for field in wire]

    def _type(self, node: Node, space: str, path: str) -> tuple[Any, Any, bool]:
        """As it is read, as a column, and whether it may be null."""
        if isinstance(node, list):
            return self._union(node, space, path)
        if isinstance(node, str):
            return *self._reference(node, space, path), False
        if not isinstance(node, dict) or "type" not in node:
            raise ConfigError(f"{path} has no type")
        name = node["type"]
        if isinstance(name, dict | list):
            return self._type(name, space, path)
        logical = (name, node.get("logicalType"))
        if logical in _LOGICAL:
            return *_LOGICAL[logical], False
        if name in ("bytes", "fixed") and logical[1] == "decimal":
            kind = _decimal(node, path)
            if name == "fixed":
                self._define(node, space, (kind, kind))
            return kind, kind, False
        if name in ("record", "error"):
            return *self._record(node, space, path), False
        if name in ("enum", "fixed"):
            kind = pa.string() if name == "enum" else pa.binary()
            self._define(node, space, (kind, kind))
            return kind, kind, False
        if name == "array":
            wire, kind, nullable = self._type(node.get("items"), space, f"{path}[]")
            return (*(pa.list_(pa.field("element", each, nullable)) for each in (wire, kind)), False)
        if name == "map":
            wire, kind, nullable = self._type(node.get("values"), space, f"{path}{{}}")
            return (*(pa.map_(pa.string(), pa.field("value", each, nullable)) for each in (wire, kind)), False)
        return *self._reference(name, space, path), False

    def _union(self, node: list[Node], space: str, path: str) -> tuple[Any, Any, bool]:
        branches = [branch for branch in node if branch != "null"]
        nullable = len(branches) < len(node)
        names = frozenset(branch for branch in branches if isinstance(branch, str))
        if len(names) == len(branches) and names in _WIDER:
            branches = [_WIDER[names]]
        if len(branches) != 1:
            raise ConfigError(f"{path} is a union of several types: a column has one, or one and null")
        wire, kind, _ = self._type(branches[0], space, path)
        return wire, kind, nullable

    def _record(self, node: Node, space: str, path: str) -> tuple[Any, Any]:
        full, space = self._define(node, space, None)
        fields = node.get("fields")
        if not isinstance(fields, list) or not fields:
            raise ConfigError(f"{path} has no fields")
        wires, kinds = [], []
        names: set[str] = set()
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise ConfigError(f"{path} has a field without a name")
            name = field["name"]
            if name.lower() in names:
                raise ConfigError(f"{path} has the field {name!r} twice")
            names.add(name.lower())
            wire, kind, nullable = self._type(field.get("type"), space, f"field {name!r}")
            wires.append(pa.field(name, wire, nullable))
            kinds.append(pa.field(name, kind, nullable))
        found = pa.struct(wires), pa.struct(kinds)
        self._named[full] = found
        return found

    def _define(self, node: Node, space: str, kinds: tuple[Any, Any] | None) -> tuple[str, str]:
        """The full name and the namespace of what is within."""
        name = node.get("name")
        if not isinstance(name, str) or not name:
            raise ConfigError(f"the Avro schema has a type {node.get('type')!r} without a name")
        space = node.get("namespace", space) if "." not in name else name.rpartition(".")[0]
        full = name if "." in name or not space else f"{space}.{name}"
        self._named[full] = kinds
        return full, space

    def _reference(self, name: object, space: str, path: str) -> tuple[Any, Any]:
        if not isinstance(name, str):
            raise ConfigError(f"{path} has no type")
        if name in _SIMPLE:
            return _SIMPLE[name], _SIMPLE[name]
        if name == "null":
            raise ConfigError(f"{path} is always null, which is no column")
        full = name if "." in name or not space else f"{space}.{name}"
        full = full if full in self._named else name
        if full not in self._named:
            raise ConfigError(f"{path} has the type {name!r}, which the Avro schema does not define before it")
        kinds = self._named[full]
        if kinds is None:
            raise ConfigError(f"{path} is of the record that it is in: a column cannot hold itself")
        return kinds


def _decimal(node: Node, path: str) -> Any:
    precision, scale = node.get("precision"), node.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision <= MAX_DIGITS:
        raise ConfigError(f"{path} is a decimal of {precision} digits, {scale} of them fractions: write at most 38")
    if not precision:
        raise ConfigError(f"{path} is a decimal without digits")
    return pa.decimal128(precision, scale)
