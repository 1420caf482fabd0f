"""What decoding values gives."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pyarrow as pa

Array = Any  # pyarrow comes without types

NO_VALUE: Final = "the record has no value"
BUILD_ERRORS: Final = (pa.ArrowException, OverflowError, ValueError, TypeError)
MAX_REASON: Final = 500


class Misfit(NamedTuple):
    """A value that does not fit: its place, and why."""

    at: int
    reason: str


class DecodedValues(NamedTuple):
    columns: list[Array]
    """A column for each field; null in the places of misfits, even if the field is never null."""
    misfits: list[Misfit]
    """In the order of their places. A value that is missing is one, with the reason NO_VALUE."""
