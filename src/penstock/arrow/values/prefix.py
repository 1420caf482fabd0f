"""The prefix of values that Confluent's serializers write: a byte 0, then the number of their schema in four bytes.

Must not know: where schemas are kept.
"""

from __future__ import annotations

from typing import Final

from penstock.arrow.values.decoded import UnreadableValue

SIZE: Final = 5


class NotThere(LookupError):
    """No schema has this number."""


def split(value: bytes) -> tuple[int, bytes]:
    """The number of the schema, and what follows the prefix. Raises UnreadableValue."""
    if len(value) < SIZE or value[0]:
        raise UnreadableValue("it does not begin with byte 0 and the number of a schema")
    return int.from_bytes(value[1:SIZE], "big"), value[SIZE:]
