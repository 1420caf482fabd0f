"""A schema from values: what the objects of a sample have in common. It is inferred once, and then pinned.

Numbers without a fraction are long, others double; times stay strings, because a string that looks like a time today
may be none tomorrow. A field that is null in the whole sample is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.model.errors import ConfigError, PenstockError

SAMPLE: Final = 1000
MAX_FIELDS: Final = 1000
"""Of an object: names that are data would be columns without end."""
MAX_LEVELS: Final = 64
"""Of objects and arrays within each other."""
_LONG = range(-(2**63), 2**63)


class MixedTypes(PenstockError):
    """No schema has all values: they are of different types, or of too many fields or levels."""


@dataclass(slots=True)
class _Seen:
    """What was seen at one place."""

    kinds: set[str] = field(default_factory=set)
    fields: dict[str, _Seen] = field(default_factory=dict)
    elements: _Seen | None = None


def infer(values: Iterable[bytes | None]) -> Any:
    """Raises ConfigError if there are no objects, or if they have nothing in common."""
    try:
        kind = _type(_seen_in(values), "")
    except MixedTypes as error:
        raise ConfigError(f"{error}: give --schema") from None
    if kind is None:
        raise ConfigError("the JSON objects have no fields to infer a schema from: give one with --schema")
    return pa.schema(list(kind))


def _seen_in(values: Iterable[bytes | None]) -> _Seen:
    """Raises MixedTypes, ConfigError."""
    seen = _Seen()
    count = 0
    for value in values:
        try:
            found = msgspec.json.decode(value or b"")
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            _look(found, seen, 0)
            count += 1
    if not count:
        raise ConfigError("there are no JSON objects to infer a schema from: give one with --schema")
    return seen


def type_of(value: Any, path: str, level: int) -> Any:
    """Of one value at `path`. None if it tells nothing: null, or empty. Raises MixedTypes."""
    seen = _Seen()
    _look(value, seen, level)
    return _type(seen, path)


def is_usable(name: str, lower_names: Collection[str]) -> bool:
    """Whether a field can be a column next to others: Delta's readers do not tell cases apart."""
    return bool(name) and name.strip() == name and name.lower() not in lower_names


def _look(value: Any, seen: _Seen, level: int) -> None:
    if value is None:
        return
    if level > MAX_LEVELS:
        raise MixedTypes(f"there are values within more than {MAX_LEVELS} objects and arrays")
    if isinstance(value, dict):
        seen.kinds.add("object")
        for name, inner in value.items():
            _look(inner, seen.fields.setdefault(name, _Seen()), level + 1)
    elif isinstance(value, list):
        seen.kinds.add("array")
        seen.elements = seen.elements or _Seen()
        for inner in value:
            _look(inner, seen.elements, level + 1)
    elif isinstance(value, bool):
        seen.kinds.add("boolean")
    elif isinstance(value, int):
        seen.kinds.add("long" if value in _LONG else "double")
    elif isinstance(value, float):
        seen.kinds.add("double")
    else:
        seen.kinds.add("string")


def _type(seen: _Seen, path: str) -> Any:
    """None if nothing but null was seen. Raises MixedTypes."""
    kinds = seen.kinds - {"long"} if "double" in seen.kinds else seen.kinds
    if len(kinds) > 1:
        raise MixedTypes(f"field {path!r} is {' in some values and '.join(sorted(kinds))} in others")
    match next(iter(kinds), None):
        case "object":
            return _struct(seen, path)
        case "array":
            kind = _type(seen.elements or _Seen(), f"{path}[]")
            return None if kind is None else pa.list_(pa.field("element", kind))
        case "boolean":
            return pa.bool_()
        case "long":
            return pa.int64()
        case "double":
            return pa.float64()
        case "string":
            return pa.string()
    return None


def _struct(seen: _Seen, path: str) -> Any:
    known: dict[str, Any] = {}
    for name, inner in seen.fields.items():
        place = f"{path}.{name}" if path else name
        if is_usable(name, known) and (kind := _type(inner, place)) is not None:
            if len(known) >= MAX_FIELDS:
                raise MixedTypes(f"field {place!r} is one more than {MAX_FIELDS} fields")
            known[name.lower()] = pa.field(name, kind)
    return pa.struct(list(known.values())) if known else None
