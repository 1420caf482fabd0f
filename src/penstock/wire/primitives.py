"""The parts of generated messages: the base class, the schema row, varints.

A message class has one shape for all versions of its API. Its `FIELDS` say which version has which fields;
`wire.reading` and `wire.writing` turn them into code. This module knows no particular API.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeAlias

from penstock.model.errors import ProtocolError
from penstock.ports.disk import Buffer, FileSlice

Records: TypeAlias = bytes | bytearray | memoryview | FileSlice | None
"""Record batches as on disk: read as a view of the frame, written from any of these types."""

Versions: TypeAlias = tuple[int, int]
"""First and last version, both included."""

Field: TypeAlias = tuple[str, str, Versions, Versions | None, int | None, object]
"""One row of a schema, in wire order:

    name              attribute of the message
    type              int8..int64, uint16, float64, bool, uuid, string, bytes, records,
                      or a class in the same module; "[]" before it makes a list
    versions          where the field exists
    nullable versions where null is legal
    tag               a tagged field's number, else None
    default           the value of an absent field; () is a fresh empty list or struct
"""

NULL_UUID: Final = b"\0" * 16
NEVER: Final = 32767
"""A value of `FLEXIBLE_FROM`: the API has no flexible version."""

MAX_TAGGED_FIELDS: Final = 10_000
"""The limit for one struct, as in Kafka's decoder."""

ONE_BYTE: Final = [bytes((value,)) for value in range(256)]

FRESH: Final[Any] = type("Fresh", (), {"__repr__": lambda self: "FRESH"})()
"""Default argument of lists and structs: each message gets its own empty value."""


class Message:
    """Base of all generated messages: a plain record with value equality."""

    __slots__: tuple[str, ...] = ()

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    VERSIONS: ClassVar[Versions]
    FLEXIBLE_FROM: ClassVar[int]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable: the contents are the identity

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({inside})"


class Encoded:
    """Mixed into a subclass of a message that is already encoded, in the version in which it is sent."""

    __slots__ = ()
    encoded: bytes


def read_uvarint(buffer: Buffer, offset: int) -> tuple[int, int]:
    """The unsigned varint at `offset` and the offset after it; IndexError past the end."""
    byte = buffer[offset]
    if byte < 0x80:
        return byte, offset + 1
    return read_long_uvarint(buffer, offset + 1, byte)


def read_long_uvarint(buffer: Buffer, offset: int, first: int) -> tuple[int, int]:
    """Reads the rest of a varint after `first`, a byte with the continuation bit set."""
    byte = buffer[offset]
    value = first & 0x7F | (byte & 0x7F) << 7
    offset += 1
    if byte < 0x80:
        return value, offset
    for shift in (14, 21, 28):
        byte = buffer[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise ProtocolError("varint is longer than 5 bytes")


def skip_tagged_fields(buffer: Buffer, offset: int, count: int, size: int) -> int:
    """Skips `count` tagged fields."""
    for _ in range(count):
        _, offset = read_uvarint(buffer, offset)
        length, offset = read_uvarint(buffer, offset)
        offset += length
        if offset > size:
            raise ProtocolError("tagged field runs past the end of the message")
    return offset


def skip_tagged_section(buffer: Buffer, offset: int, size: int) -> int:
    """Skips the tagged fields of a header, with their number."""
    count, offset = read_uvarint(buffer, offset)
    if count > MAX_TAGGED_FIELDS:
        raise ProtocolError(f"more than {MAX_TAGGED_FIELDS} tagged fields")
    return skip_tagged_fields(buffer, offset, count, size)


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:  # 2 MiB: the length of most fetch payloads
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tagged_section(fields: list[tuple[int, bytes]]) -> bytes:
    """The tagged fields that end a flexible struct; `fields` are in order of their tags."""
    out = [uvarint(len(fields))]
    for tag, body in fields:
        out += (uvarint(tag), uvarint(len(body)), body)
    return b"".join(out)
