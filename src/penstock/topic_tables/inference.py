"""A schema from values: what the objects of a sample have in common. It is inferred once, and then pinned.

Numbers without a fraction are long, others double; times stay strings, because a string that looks like a time today
may be none tomorrow. A field that is null in the whole sample is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from penstock.model.errors import ConfigError, PenstockError

SAMPLE = 1000
_LONG = range(-(2**63), 2**63)


class MixedTypes(PenstockError):
    pass


@dataclass(slots=True)
class _Seen:
    """What was seen at one place."""

    kinds: set[str] = field(default_factory=set)
    fields: dict[str, _Seen] = field(default_factory=dict)
    elements: _Seen | None = None


def infer(values: Iterable[bytes | None]) -> Any:
    """Raises ConfigError if there are no objects, or if they have nothing in common."""
    seen = _Seen()
    count = 0
    for value in values:
        try:
            found = msgspec.json.decode(value or b"")
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            _look(found, seen)
            count += 1
    if not count:
        raise ConfigError("there are no JSON objects to infer a schema from: give one with --schema")
    try:
        kind = _type(seen, "")
    except MixedTypes as error:
        raise ConfigError(f"{error}: give --schema") from None
    if kind is None:
        raise ConfigError("the JSON objects have no fields to infer a schema from: give one with --schema")
    return pa.schema(list(kind))


def type_of(value: Any, path: str) -> Any:
    """Of one value at `path`. None if it tells nothing: null, or empty. Raises MixedTypes."""
    seen = _Seen()
    _look(value, seen)
    return _type(seen, path)


def _look(value: Any, seen: _Seen) -> None:
    if value is None:
        return
    if isinstance(value, dict):
        seen.kinds.add("object")
        for name, inner in value.items():
            _look(inner, seen.fields.setdefault(name, _Seen()))
    elif isinstance(value, list):
        seen.kinds.add("array")
        seen.elements = seen.elements or _Seen()
        for inner in value:
            _look(inner, seen.elements)
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
            fields = [(name, _type(inner, f"{path}.{name}".lstrip("."))) for name, inner in seen.fields.items()]
            known = [pa.field(name, kind) for name, kind in fields if kind is not None and name]
            return pa.struct(known) if known else None
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
