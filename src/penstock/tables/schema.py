"""Types of columns, in Arrow and in Delta, and what may change in a schema.

Timestamps need a time zone, because without one they need a feature of Delta that older readers lack. A change is
either harmless to every reader (a column is added at the end, a type gets wider), or it is Breaking: a value that the
caller deals with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.tables.errors import SchemaMismatch, UnsupportedTable

ArrowSchema = Any  # pyarrow comes without types
ArrowField = Any
ArrowType = Any

TIMESTAMP = pa.timestamp("us", "UTC")
_PLAIN: dict[str, ArrowType] = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
}
_NAMES = {kind: name for name, kind in _PLAIN.items()}
_DECIMAL = re.compile(r"decimal\((\d+), ?(-?\d+)\)")
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float32(), pa.float64())
_SAME: dict[ArrowType, ArrowType] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
}
"""Types that a table stores as another one, without a loss."""


class Breaking(NamedTuple):
    """A change that readers or old rows do not survive. `found` is None for a column that is missing."""

    column: str
    before: str
    found: str | None

    def __str__(self) -> str:
        if self.found is None:
            return f"column {self.column} ({self.before}, never null) is missing"
        return f"column {self.column} is {self.before} in the table and {self.found} in the rows"


class Evolution(NamedTuple):
    """What makes a table fit for rows of another schema."""

    schema: ArrowSchema
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    breaking: tuple[Breaking, ...] = ()


# -- types ------------------------------------------------------------------------------


def stored_schema(schema: ArrowSchema) -> ArrowSchema:
    """The schema as a table has it. Raises SchemaMismatch, which names the column."""
    if not len(schema):
        raise SchemaMismatch("a table needs at least one column")
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in seen:  # Delta's readers do not tell cases apart
            raise SchemaMismatch(f"column {name!r} is there twice (as {seen[name.lower()]!r})")
        seen[name.lower()] = name
    return pa.schema([_stored_field(field, field.name) for field in schema])


def _stored_field(field: ArrowField, path: str) -> ArrowField:
    if not field.name or field.name.strip() != field.name:
        raise SchemaMismatch(f"column {path!r} has no usable name")
    return pa.field(field.name, _stored_type(field.type, path), field.nullable)


def _stored_type(kind: ArrowType, path: str) -> ArrowType:
    kind = _SAME.get(kind, kind)
    if kind in _NAMES:
        return kind
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return TIMESTAMP
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_dictionary(kind):
        return _stored_type(kind.value_type, path)
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct([_stored_field(inner, f"{path}.{inner.name}") for inner in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _stored_type(kind.value_type, f"{path}[]"), kind.value_field.nullable))
    if pa.types.is_map(kind):
        return pa.map_(
            _stored_type(kind.key_type, f"{path}.key"),
            pa.field("value", _stored_type(kind.item_type, f"{path}.value"), kind.item_field.nullable),
        )
    hint = ": give it a time zone" if pa.types.is_timestamp(kind) else ""
    raise SchemaMismatch(f"column {path!r} is {kind}, which tables do not have{hint}")


def to_delta(schema: ArrowSchema) -> str:
    """The schema string of a log entry."""
    return json.dumps(_delta_struct(schema), separators=(",", ":"))


def _delta_struct(fields: Iterable[ArrowField]) -> dict[str, Any]:
    entries = [
        {"name": field.name, "type": _delta_type(field.type), "nullable": field.nullable, "metadata": {}}
        for field in fields
    ]
    return {"type": "struct", "fields": entries}


def _delta_type(kind: ArrowType) -> Any:
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return _delta_struct(kind)
    if pa.types.is_list(kind):
        inner = kind.value_field
        return {"type": "array", "elementType": _delta_type(inner.type), "containsNull": inner.nullable}
    return {
        "type": "map",
        "keyType": _delta_type(kind.key_type),
        "valueType": _delta_type(kind.item_type),
        "valueContainsNull": kind.item_field.nullable,
    }


def from_delta(schema_string: str) -> ArrowSchema:
    """Raises UnsupportedTable for a type that this writer does not know."""
    return pa.schema([_arrow_field(entry) for entry in json.loads(schema_string)["fields"]])


def _arrow_field(entry: dict[str, Any]) -> ArrowField:
    return pa.field(entry["name"], _arrow_type(entry["type"], entry["name"]), bool(entry["nullable"]))


def _arrow_type(told: Any, name: str) -> ArrowType:
    if isinstance(told, str):
        if told in _PLAIN:
            return _PLAIN[told]
        if found := _DECIMAL.fullmatch(told):
            return pa.decimal128(int(found[1]), int(found[2]))
    elif told["type"] == "struct":
        return pa.struct([_arrow_field(entry) for entry in told["fields"]])
    elif told["type"] == "array":
        return pa.list_(pa.field("element", _arrow_type(told["elementType"], name), bool(told["containsNull"])))
    elif told["type"] == "map":
        value = pa.field("value", _arrow_type(told["valueType"], name), bool(told["valueContainsNull"]))
        return pa.map_(_arrow_type(told["keyType"], name), value)
    raise UnsupportedTable(f"column {name!r} has the type {told!r}, which this writer does not know")


# -- changes ----------------------------------------------------------------------------


def evolution(table: ArrowSchema, rows: ArrowSchema) -> Evolution:
    """What a table needs to take rows of this schema. Both are stored schemas."""
    by_name = {field.name.lower(): field for field in rows}
    fields, added, widened, breaking = [], [], [], []
    for field in table:
        given = by_name.pop(field.name.lower(), None)
        if given is None:
            if not field.nullable:
                breaking.append(Breaking(field.name, str(field.type), None))
            fields.append(field)
            continue
        kind = common_type(field.type, given.type)
        if kind is None or (given.nullable and not field.nullable):
            found = str(given.type) if kind is None else f"{given.type} or null"
            breaking.append(Breaking(field.name, str(field.type), found))
            kind = field.type
        if kind != field.type:
            widened.append(field.name)
        fields.append(field.with_type(kind))
    for given in by_name.values():
        added.append(given.name)
        fields.append(given.with_nullable(True))  # rows from before have none
    return Evolution(pa.schema(fields), tuple(added), tuple(widened), tuple(breaking))


def common_type(table: ArrowType, rows: ArrowType) -> ArrowType | None:
    """The type that holds the values of both, if that is the table's or a wider one of the same kind."""
    if table == rows:
        return table
    for ladder in (_INTEGERS, _FLOATS):
        if table in ladder and rows in ladder:
            return ladder[max(ladder.index(table), ladder.index(rows))]
    if pa.types.is_decimal(table) and pa.types.is_decimal(rows) and table.scale == rows.scale:
        return table if table.precision >= rows.precision else rows
    if pa.types.is_struct(table) and pa.types.is_struct(rows):
        inner = evolution(pa.schema(list(table)), pa.schema(list(rows)))
        return None if inner.breaking else pa.struct(list(inner.schema))
    if pa.types.is_list(table) and pa.types.is_list(rows):
        kind = common_type(table.value_type, rows.value_type)
        return None if kind is None else pa.list_(table.value_field.with_type(kind))
    if pa.types.is_map(table) and pa.types.is_map(rows) and table.key_type == rows.key_type:
        kind = common_type(table.item_type, rows.item_type)
        return None if kind is None else pa.map_(table.key_type, table.item_field.with_type(kind))
    return None
