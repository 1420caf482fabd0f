"""JSON objects as columns of Arrow: an object's fields become columns of a schema.

A value that is no object, or has a field of another type, does not fit; the reason names the field. Fields that the
schema does not have are left out.

There are two ways. The careful one decodes value by value (msgspec, in C), so each has a reason of its own, and builds
columns of all. The quick one (`json_columns`) makes columns of an Arrow array at once, and refuses rows in which
anything is unusual; these take the careful way.

    byte ... long     a JSON number without a fraction, within the limits of the type
    float, double     a JSON number
    string, boolean   the same
    timestamp         a string like 2026-01-31T12:00:00Z, or milliseconds since 1970
    date              a string like 2026-01-31
    decimal           a number or a string of digits
    binary            a string in base64
    struct, array, map    an object, an array, an object with any names (a timestamp within them is a string)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, Final, NotRequired, Required, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from penstock.arrow.cache.warmup import kernels_of
from penstock.arrow.values.decoded import BUILD_ERRORS, MAX_REASON, NO_VALUE, DecodedValues, Misfit, built
from penstock.arrow.values.json_columns import ESCAPED, READ_ERRORS, JsonColumns, Reader
from penstock.model.errors import ConfigError

Array = Any  # pyarrow comes without types
Schema = Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MS = 86_400_000
FIRST_MS: Final = (date.min - _EPOCH.date()).days * _DAY_MS
LAST_MS: Final = (date.max - _EPOCH.date()).days * _DAY_MS
_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_SIMPLE = {
    pa.float32(): float,
    pa.float64(): float,
    pa.string(): str,
    pa.bool_(): bool,
    pa.binary(): bytes,
    pa.date32(): date,
}
_Zoned = Annotated[datetime, msgspec.Meta(tz=True)]
MOSTLY_REFUSED: Final = 0.5
"""With a larger share of refused rows it is quicker to decode all of them the careful way."""


class JsonValues:
    """Decodes values to `fields`. `types`: those of the columns, where they differ in names or nullability."""

    def __init__(self, fields: Schema, types: Sequence[Any] | None = None) -> None:
        self._names: list[str] = list(fields.names)
        self._types = list(types or fields.types)
        self._timestamps = [pa.types.is_timestamp(field.type) for field in fields]
        kind = _object_type(list(fields))
        self._decoder = msgspec.json.Decoder(kind)
        self._pick = [attrgetter(f"f{index}") for index in range(len(fields))]
        self._nothing: Any = type("Nothing", (), {f"f{index}": None for index in range(len(fields))})
        self.fields = pa.schema(list(fields))
        self._quick: JsonColumns | None = None
        self._is_prepared = False

    def decode_array(self, values: Array) -> DecodedValues:
        """The same for an array of type binary: in most cases several times as fast."""
        quick = self._quick_columns() if len(values) else None
        if quick is None:
            return self.decode(values.to_pylist())
        columns, refused = quick.decode(values)
        missing: list[Misfit] = []
        if values.null_count:
            nulls = values.is_null().to_numpy(zero_copy_only=False)
            missing = [Misfit(at, NO_VALUE) for at in np.flatnonzero(nulls).tolist()]
            refused[nulls] = 0
        places = np.flatnonzero(refused)
        if not len(places):
            return DecodedValues(columns, missing)
        if len(places) > len(values) * MOSTLY_REFUSED:
            return self.decode(values.to_pylist())
        careful, misfits = self.decode(values.take(pa.array(places)).to_pylist())
        order = np.arange(len(values))
        order[places] = len(values) + np.arange(len(places))
        chosen = pa.array(order)
        merged = [pa.concat_arrays(both).take(chosen) for both in zip(columns, careful, strict=True)]
        placed = [Misfit(int(places[at]), reason) for at, reason in misfits]
        return DecodedValues(merged, sorted([*missing, *placed]))

    def _quick_columns(self) -> JsonColumns | None:
        if not self._is_prepared:
            self._is_prepared = True
            kernels = kernels_of("values")
            if kernels is not None:
                limits = (FIRST_MS, LAST_MS)
                self._quick = JsonColumns(kernels, list(self.fields), self._types, _field_reader, limits)
        return self._quick

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        rows, misfits = self._rows(values)
        columns, wrong = self._columns(rows)
        if wrong:  # rare: a number that a decimal cannot hold
            for at, reason in wrong.items():
                rows[at] = self._nothing
                misfits.append(Misfit(at, reason))
            columns, _ = self._columns(rows)
        return DecodedValues(columns, sorted(misfits))

    def _rows(self, values: Sequence[bytes | None]) -> tuple[list[Any], list[Misfit]]:
        rows: list[Any] = []
        misfits: list[Misfit] = []
        decode = self._decoder.decode
        for at, value in enumerate(values):
            try:
                if value is None:
                    raise ValueError(NO_VALUE)
                rows.append(decode(value))
            except READ_ERRORS as error:
                rows.append(self._nothing)
                misfits.append(Misfit(at, f"{error}"[:MAX_REASON] or type(error).__name__))
        return rows, misfits

    def _columns(self, rows: list[Any]) -> tuple[list[Array], dict[int, str]]:
        """The columns, and the places of values that Arrow refuses."""
        columns: list[Array] = []
        wrong: dict[int, str] = {}
        for name, kind, pick, is_timestamp in zip(self._names, self._types, self._pick, self._timestamps, strict=True):
            values = list(map(pick, rows))
            if is_timestamp:
                values = [_microseconds(value) for value in values]
            try:
                columns.append(built(values, kind))
            except BUILD_ERRORS:
                wrong |= {at: f"field {name!r}: {reason}" for at, reason in _refused(values, kind)}
        return columns, wrong


def _field_reader(field: Any) -> Reader:
    return msgspec.json.Decoder(_python_type(field.type, field.name)).decode


def _microseconds(value: datetime | int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, int):
        return value * 1000
    since = value - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _refused(values: list[Any], kind: Any) -> list[tuple[int, str]]:
    found = []
    for at, value in enumerate(values):
        try:
            built([value], kind)
        except BUILD_ERRORS as error:
            found.append((at, f"{error}"[:200]))
    return found


# -- types ------------------------------------------------------------------------------


def _object_type(fields: Sequence[Any]) -> Any:
    """A class with attributes f0, f1, ..., because names in JSON may be any text."""
    defined: list[Any] = []
    for index, field in enumerate(fields):
        kind = _python_type(field.type, field.name)
        if ESCAPED.search(field.name.encode()):  # msgspec could not find it
            raise ConfigError(
                f"column {field.name!r}: a name may have neither quotes, backslashes nor control characters"
            )
        if pa.types.is_timestamp(field.type):
            kind = kind | Annotated[int, msgspec.Meta(ge=FIRST_MS, le=LAST_MS)]
        if field.nullable:
            defined.append((f"f{index}", kind | None, msgspec.field(default=None, name=field.name)))
        else:
            defined.append((f"f{index}", kind, msgspec.field(name=field.name)))
    return msgspec.defstruct("Row", defined, kw_only=True, gc=False)


def _python_type(kind: Any, path: str) -> Any:
    if kind in _BITS:
        return _integer(_BITS[kind])
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if pa.types.is_timestamp(kind):
        return _Zoned
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_struct(kind):
        entries = {
            _matched(field.name): (NotRequired if field.nullable else Required)[_inner(field, path)] for field in kind
        }
        return TypedDict(path, entries)  # type: ignore[operator]
    if pa.types.is_list(kind):
        return list[_inner(kind.value_field, path)]  # type: ignore[misc]
    if pa.types.is_map(kind):
        if kind.key_type != pa.string():
            raise ConfigError(f"column {path!r}: names in JSON are strings, so a map has keys of type string")
        return dict[str, _inner(kind.item_field, path)]  # type: ignore[misc]
    raise ConfigError(f"column {path!r} is {kind}, which JSON values cannot be read as")


def _matched(name: str) -> str:
    """The same text. msgspec 0.22 finds a name that is not ASCII only if its UTF-8 was made before."""
    msgspec.json.encode(name)
    return name


def _inner(field: Any, path: str) -> Any:
    kind = _python_type(field.type, f"{path}.{field.name}")
    return kind | None if field.nullable else kind


def _integer(bits: int) -> Any:
    limit = 2 ** (bits - 1)
    return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
