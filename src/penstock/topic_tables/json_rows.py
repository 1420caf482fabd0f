"""Rows from JSON values: an object's fields become columns of a schema.

A value that is no object, or has a field of another type, is no row; the reason names the field. Fields that the schema
does not have are left out. Next to the fields there are columns of the record: `_partition`, `_offset`, `_timestamp`,
`_key`. Values are decoded one by one (msgspec, in C), so each has a reason of its own, and columns are built of all.

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
from urllib.parse import quote

import msgspec
import pyarrow as pa

from penstock.arrow.decode import KAFKA_SCHEMA
from penstock.model.errors import ConfigError
from penstock.topic_tables.shapes import DATE, FIRST_US, LAST_US, Misfit, Shaped, dates_of

OF_RECORD: Final = {"_partition": "partition", "_offset": "offset", "_timestamp": "timestamp", "_key": "key"}
MAX_PARTITION_BYTES = 200
"""Of a string to partition by, as a part of a file name."""
_NEEDED = ("partition", "offset", "timestamp", "key", "value", "headers")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class JsonShape:
    """`fields`: the schema of the objects, in stored types."""

    def __init__(self, fields: Any, partition_by: Sequence[str] = ()) -> None:
        taken = sorted(OF_RECORD.keys() & set(fields.names))
        if taken:
            raise ConfigError(f"the schema has a column {taken[0]!r}, which the table has for the record's own")
        self.has_date = DATE in partition_by and DATE not in fields.names
        self._fields = list(fields)
        self._timestamps = [pa.types.is_timestamp(field.type) for field in fields]
        self._partition_strings = [
            index for index, field in enumerate(fields) if field.name in partition_by and field.type == pa.string()
        ]
        self.columns: Any = pa.schema([KAFKA_SCHEMA.field(name) for name in _NEEDED])
        of_record = [pa.field(name, KAFKA_SCHEMA.field(source).type) for name, source in OF_RECORD.items()]
        dates = [pa.field(DATE, pa.date32())] if self.has_date else []
        self.schema: Any = pa.schema([*self._fields, *of_record, *dates])
        self._decoder = msgspec.json.Decoder(_object_type(self._fields))
        self._pick = [attrgetter(f"f{index}") for index in range(len(self._fields))]

    def shape(self, records: Any) -> Shaped:
        rows, misfits = self._decoded(records.column("value").to_pylist())
        columns, wrong = self._columns(rows)
        if wrong:  # rare: a number that a decimal cannot hold
            places = [at for at, row in enumerate(rows) if row is not None]
            misfits += [Misfit(places[at], reason) for at, reason in sorted(wrong.items())]
            for misfit in misfits:
                rows[misfit.at] = None
            columns, _ = self._columns(rows)
        if misfits:
            records = records.filter(pa.array([row is not None for row in rows]))
        of_record = [records.column(source) for source in OF_RECORD.values()]
        dates = [dates_of(records.column("timestamp"))] if self.has_date else []
        return Shaped(pa.RecordBatch.from_arrays([*columns, *of_record, *dates], schema=self.schema), misfits)

    def _decoded(self, values: list[bytes | None]) -> tuple[list[Any], list[Misfit]]:
        rows: list[Any] = []
        misfits: list[Misfit] = []
        decode = self._decoder.decode
        for at, value in enumerate(values):
            try:
                if value is None:
                    raise ValueError("the record has no value")
                rows.append(decode(value))
            except _UNREADABLE as error:
                rows.append(None)
                misfits.append(Misfit(at, f"{error}"[:500] or type(error).__name__))
        for index in self._partition_strings:
            for at, row in enumerate(rows):
                text = None if row is None else getattr(row, f"f{index}")
                if text is not None and len(text) > MAX_PARTITION_BYTES // 3 and len(quote(text)) > MAX_PARTITION_BYTES:
                    rows[at] = None
                    name = self._fields[index].name
                    misfits.append(Misfit(at, f"field {name!r} is too long to partition by: {text[:40]}..."))
        return rows, sorted(misfits)

    def _columns(self, rows: list[Any]) -> tuple[list[Any], dict[int, str]]:
        """The columns of the rows that are there; and the places among them of values that Arrow refuses."""
        kept = [row for row in rows if row is not None]
        columns: list[Any] = []
        wrong: dict[int, str] = {}
        for field, pick, is_timestamp in zip(self._fields, self._pick, self._timestamps, strict=True):
            values = list(map(pick, kept))
            if is_timestamp:
                values = [_microseconds(value) for value in values]
            try:
                columns.append(pa.array(values, field.type))
            except (pa.ArrowException, OverflowError, ValueError):
                wrong |= {at: f"field {field.name!r}: {reason}" for at, reason in _refused(values, field.type)}
        return columns, wrong


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
            pa.array([value], kind)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            found.append((at, f"{error}"[:200]))
    return found


# -- types ------------------------------------------------------------------------------


def _object_type(fields: Sequence[Any]) -> Any:
    """A class with attributes f0, f1, ..., because names in JSON may be any text."""
    defined: list[Any] = []
    for index, field in enumerate(fields):
        kind = _python_type(field.type, field.name)
        if pa.types.is_timestamp(field.type):
            kind = kind | Annotated[int, msgspec.Meta(ge=FIRST_US // 1000, le=LAST_US // 1000)]
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
        entries = {field.name: (NotRequired if field.nullable else Required)[_inner(field, path)] for field in kind}
        return TypedDict(path, entries)  # type: ignore[operator]
    if pa.types.is_list(kind):
        return list[_inner(kind.value_field, path)]  # type: ignore[misc]
    if pa.types.is_map(kind):
        if kind.key_type != pa.string():
            raise ConfigError(f"column {path!r}: names in JSON are strings, so a map has keys of type string")
        return dict[str, _inner(kind.item_field, path)]  # type: ignore[misc]
    raise ConfigError(f"column {path!r} is {kind}, which JSON values cannot be read as")


def _inner(field: Any, path: str) -> Any:
    kind = _python_type(field.type, f"{path}.{field.name}")
    return kind | None if field.nullable else kind


def _integer(bits: int) -> Any:
    limit = 2 ** (bits - 1)
    return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
