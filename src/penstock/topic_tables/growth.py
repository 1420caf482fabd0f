"""A schema that grows with the values: new fields become columns, integers get wider.

A value changes the schema only if it fits then; one that does not fit anyway is no reason for a column. Fields are left
out, as without growth, if they are null, or empty, or if a column's name differs from theirs only in case.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.arrow.values import JsonValues, Misfit
from penstock.topic_tables.inference import MAX_FIELDS, MixedTypes, is_usable, type_of
from penstock.topic_tables.json_rows import OF_RECORD, JsonShape
from penstock.topic_tables.shapes import DATE, Shaped, shape_some

_INTEGERS: Final = ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64))
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class GrowingShape:
    """Like `JsonShape`, of a schema that may be a longer one after each batch."""

    def __init__(self, fields: Any, partition_by: Sequence[str]) -> None:
        self._fields = fields
        self._partition_by = partition_by
        self._plain = JsonShape(fields, partition_by)
        self.columns: Any = self._plain.columns
        self.has_date = self._plain.has_date
        self._taken = {*OF_RECORD, DATE} if self.has_date else {*OF_RECORD}

    @property
    def schema(self) -> Any:
        return self._plain.schema

    def shape(self, records: Any) -> Shaped:
        growth = _Growth(self._fields, self._taken)
        misfits = growth.look_at(records.column("value").to_pylist())
        if growth.fields is not self._fields:
            self._fields = growth.fields
            self._plain = JsonShape(self._fields, self._partition_by)
        if not misfits:
            return self._plain.shape(records)
        is_row = np.ones(records.num_rows, np.bool_)
        is_row[[misfit.at for misfit in misfits]] = False
        shaped = shape_some(self._plain, records, pa.array(is_row))
        return shaped._replace(misfits=sorted([*shaped.misfits, *misfits]))


class _Growth:
    """Of one batch. A number without a fraction that is new in it may be followed by one with a fraction."""

    def __init__(self, fields: Any, taken: Collection[str]) -> None:
        self.fields = fields
        self._taken = {name.lower() for name in taken}
        self._new: set[str] = set()
        self._adding: set[str] = set()
        self._values: dict[Any, JsonValues] = {}

    def look_at(self, values: Sequence[bytes | None]) -> list[Misfit]:
        misfits = []
        for at, value in enumerate(values):
            try:
                found = msgspec.json.decode(value or b"")
            except _UNREADABLE:
                continue
            if not isinstance(found, dict):
                continue
            self._adding = set()
            try:
                wanted = self._object(list(self.fields), found, "", 1)
            except MixedTypes as error:
                misfits.append(Misfit(at, str(error)))
                continue
            if wanted is not None and self._fits(wanted := pa.schema(wanted), value):
                self.fields = wanted
                self._new |= self._adding
        return misfits

    def _fits(self, fields: Any, value: bytes | None) -> bool:
        if fields not in self._values:
            self._values[fields] = JsonValues(fields)
        return not self._values[fields].decode([value]).misfits

    def _object(self, fields: list[Any], value: dict[str, Any], path: str, level: int) -> list[Any] | None:
        """The fields that the value needs; None if they are the same."""
        places = {field.name: at for at, field in enumerate(fields)}
        has_changed = False
        for name, inner in value.items():
            place = f"{path}.{name}" if path else name
            at = places.get(name)
            if at is not None:
                kind = self._type(fields[at].type, inner, place, level)
                if kind is not fields[at].type:
                    fields[at], has_changed = fields[at].with_type(kind), True
            elif (
                self._is_usable(name, places, is_column=not path) and (kind := type_of(inner, place, level)) is not None
            ):
                if len(fields) >= MAX_FIELDS:
                    raise MixedTypes(f"field {place!r} is one more than {MAX_FIELDS} fields")
                fields.append(pa.field(name, kind))
                places[name] = len(fields) - 1
                self._adding.add(place)
                has_changed = True
        return fields if has_changed else None

    def _is_usable(self, name: str, places: Collection[str], *, is_column: bool) -> bool:
        return is_usable(name, {one.lower() for one in places}) and not (is_column and name.lower() in self._taken)

    def _type(self, kind: Any, value: Any, path: str, level: int) -> Any:
        """The type that holds the value, too; the same one if there is none."""
        if isinstance(value, dict) and pa.types.is_struct(kind):
            fields = self._object(list(kind), value, path, level + 1)
            return kind if fields is None else pa.struct(fields)
        if isinstance(value, dict) and pa.types.is_map(kind):
            held = kind.item_type  # another object at each access
            inner = self._all(held, value.values(), f"{path}.value", level + 1)
            return kind if inner is held else pa.map_(kind.key_type, kind.item_field.with_type(inner))
        if isinstance(value, list) and pa.types.is_list(kind):
            held = kind.value_type
            inner = self._all(held, value, f"{path}[]", level + 1)
            return kind if inner is held else pa.list_(kind.value_field.with_type(inner))
        if isinstance(value, float) and path in self._new and pa.types.is_integer(kind):
            return pa.float64()
        if isinstance(value, int) and not isinstance(value, bool) and pa.types.is_integer(kind):
            if -(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1):
                return kind
            return next((wide for wide, bits in _INTEGERS if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)), kind)
        return kind

    def _all(self, kind: Any, values: Collection[Any], path: str, level: int) -> Any:
        known = kind
        for value in values:
            known = self._type(known, value, path, level)
        return kind if known.equals(kind) else known
