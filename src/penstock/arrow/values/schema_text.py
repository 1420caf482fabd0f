"""A schema as text, as SQL has it: `id long not null, user struct<name: string, born: date>, tags array<string>`."""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa

from penstock.model.errors import ConfigError

_TYPES: Final[dict[str, Any]] = {
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "text": pa.string(),
    "varchar": pa.string(),
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_NAMES = ("byte", "short", "int", "long", "float", "double", "boolean", "string", "binary", "date", "timestamp")
_TOKENS = re.compile(r"\s*(?:(`[^`]+`)|([^\s,<>():`]+)|([,<>():]))")
_KNOWN = f"{', '.join(_NAMES)}, decimal(P, S)"


def parse_schema(text: str) -> Any:
    """Raises ConfigError, which says what is wrong and at which character."""
    reader = _Reader(text)
    fields = reader.fields(closing="")
    if not fields:
        raise ConfigError("the schema is empty: write for example 'id long, name string'")
    return pa.schema(fields)


def schema_text(schema: Any) -> str:
    """The other way round."""
    return ", ".join(_field_text(field, " ") for field in schema)


def _field_text(field: Any, between: str) -> str:
    name = field.name if re.fullmatch(r"[^\s,<>():`]+", field.name) else f"`{field.name}`"
    return f"{name}{between}{type_text(field.type)}{'' if field.nullable else ' not null'}"


def type_text(kind: Any) -> str:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(_field_text(field, ': ') for field in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    return next((name for name in _NAMES if _TYPES[name] == kind), str(kind))


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        self._places: list[int] = []
        at = 0
        while text[at:].strip():
            found = _TOKENS.match(text, at)
            if found is None:
                rest = text[at:].lstrip()
                place = len(text) - len(rest) + 1
                raise ConfigError(f"the schema cannot be read from {rest[:20]!r} (character {place}) on")
            self._tokens.append(found[1] or found[2] or found[3])
            self._places.append(found.start(found.lastindex or 0))
            at = found.end()
        self._at = 0

    def fields(self, closing: str) -> list[Any]:
        found: list[Any] = []
        names: set[str] = set()
        while self._peek() != closing:
            if found:
                self._expect(",")
            name = self._name()
            if name.lower() in names:
                self._at -= 1
                raise ConfigError(f"the schema has a column {name!r} twice {self._place()}")
            names.add(name.lower())
            if self._peek() == ":":
                self._next()
            kind = self._type()
            nullable = True
            if self._peek().lower() == "not":
                self._next()
                if self._next().lower() != "null":
                    self._at -= 1
                    raise self._wrong("NULL after NOT")
                nullable = False
            found.append(pa.field(name, kind, nullable))
        return found

    def _type(self) -> Any:
        name = self._next().lower()
        if name in ("varchar", "char") and self._peek() == "(":
            self._numbers()
            return pa.string()
        if name in _TYPES:
            return _TYPES[name]
        if name in ("decimal", "numeric"):
            at = self._at - 1
            numbers = self._numbers() if self._peek() == "(" else [10]
            precision, scale = (*numbers, 0)[:2]
            if len(numbers) > 2 or not 1 <= precision <= 38 or not 0 <= scale <= precision:
                self._at = at
                raise self._wrong("decimal(PRECISION, SCALE) with at most 38 digits")
            return pa.decimal128(precision, scale)
        if name == "struct":
            self._expect("<")
            fields = self.fields(closing=">")
            if not fields:
                raise self._wrong("the name of a column")
            self._expect(">")
            return pa.struct(fields)
        if name == "array":
            self._expect("<")
            kind = pa.list_(pa.field("element", self._type()))
            self._expect(">")
            return kind
        if name == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return pa.map_(key, value)
        self._at -= 1
        raise self._wrong(f"a type ({_KNOWN}, struct<...>, array<...>, map<...>)")

    def _numbers(self) -> list[int]:
        self._expect("(")
        found = []
        while True:
            text = self._next()
            if not text.isdigit():
                self._at -= 1
                raise self._wrong("a number")
            found.append(int(text))
            if self._next() == ")":
                return found

    def _name(self) -> str:
        text = self._next()
        if not text or text in ",<>():":
            self._at -= 1
            raise self._wrong("the name of a column")
        return text.strip("`")

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        text = self._peek()
        self._at += 1
        return text

    def _expect(self, wanted: str) -> None:
        if self._next() != wanted:
            self._at -= 1
            raise self._wrong(repr(wanted))

    def _wrong(self, wanted: str) -> ConfigError:
        found = repr(self._peek()) if self._peek() else "its end"
        return ConfigError(f"the schema has {found} where {wanted} is expected {self._place()}")

    def _place(self) -> str:
        at = self._places[self._at] if self._at < len(self._places) else len(self._text.rstrip())
        return f"(character {at + 1}): {self._text.strip()!r}"
