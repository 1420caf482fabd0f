"""What decoding values gives, and columns of rows that were decoded one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

Array = Any  # pyarrow comes without types
Schema = Any

NO_VALUE: Final = "the record has no value"
BUILD_ERRORS: Final = (pa.ArrowException, OverflowError, ValueError, TypeError)
MAX_REASON: Final = 500
MAX_SCALE: Final = 38


class Misfit(NamedTuple):
    """A value that does not fit: its place, and why."""

    at: int
    reason: str


class DecodedValues(NamedTuple):
    columns: list[Array]
    """A column for each field; null in the places of misfits, even if the field is never null."""
    misfits: list[Misfit]
    """In the order of their places. A value that is missing is one, with the reason NO_VALUE."""


class UnreadableValue(ValueError):
    """The reason why a value cannot be read."""


class ValueDecoder(Protocol):
    """Decodes the values of records to a column for each field of a schema."""

    @property
    def fields(self) -> Schema: ...

    def decode_array(self, values: Array) -> DecodedValues:
        """`values`: an array of type binary."""


class RowColumns:
    """Columns of rows that `read` makes of single values.

    `read` gives a cell for each field, in the form of `wire_types`; columns are cast from these to `types`.
    """

    def __init__(
        self,
        names: Sequence[str],
        wire_types: Sequence[Any],
        types: Sequence[Any],
        read: Callable[[bytes], Sequence[Any]],
    ) -> None:
        self._kinds = list(zip(names, wire_types, types, strict=True))
        self._read = read
        self._nothing = (None,) * len(self._kinds)

    def decode_array(self, values: Array) -> DecodedValues:
        rows: list[Sequence[Any]] = []
        misfits: list[Misfit] = []
        for at, value in enumerate(values.to_pylist()):
            try:
                if value is None:
                    raise UnreadableValue(NO_VALUE)
                rows.append(self._read(value))
            except UnreadableValue as error:
                rows.append(self._nothing)
                misfits.append(Misfit(at, f"{error}"[:MAX_REASON]))
        columns, wrong = self._columns(rows)
        if wrong:  # rare: a decimal with too many digits, a time that no timestamp can hold
            for at, reason in wrong.items():
                rows[at] = self._nothing
                misfits.append(Misfit(at, reason))
            columns, _ = self._columns(rows)
        return DecodedValues(columns, sorted(misfits))

    def _columns(self, rows: Sequence[Sequence[Any]]) -> tuple[list[Array], dict[int, str]]:
        """The columns, and the places of rows that Arrow refuses."""
        cells: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(self._kinds)
        columns: list[Array] = []
        wrong: dict[int, str] = {}
        for (name, wire_type, kind), column in zip(self._kinds, cells, strict=True):
            try:
                columns.append(_built(column, wire_type, kind))
            except BUILD_ERRORS:
                for at, cell in enumerate(column):
                    try:
                        _built([cell], wire_type, kind)
                    except BUILD_ERRORS as error:
                        wrong.setdefault(at, f"field {name!r}: {error}"[:200])
        return columns, wrong


def built(cells: Sequence[Any], kind: Any) -> Array:
    """An array of Python values. Raises one of BUILD_ERRORS.

    Arrow reads beyond its table of powers if a decimal has more than 38 fractional digits: the process may die.
    """
    if "decimal" in str(kind):
        _check_scales(cells)
    return pa.array(cells, kind)


def _check_scales(cells: Iterable[Any]) -> None:
    for cell in cells:
        if isinstance(cell, Decimal):
            exponent = cell.as_tuple().exponent
            if isinstance(exponent, int) and exponent < -MAX_SCALE:
                raise ValueError(f"a decimal has {-exponent} fractional digits, more than {MAX_SCALE}")
        elif isinstance(cell, dict):
            _check_scales(cell.values())
        elif isinstance(cell, list | tuple):
            _check_scales(cell)


def _built(cells: Sequence[Any], wire_type: Any, kind: Any) -> Array:
    column = built(cells, wire_type)
    return column if wire_type == kind else column.cast(kind)
