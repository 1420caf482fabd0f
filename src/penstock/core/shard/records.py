"""Records of coordinator topics: their common parts, and the fields that they are made of.

A key begins with an int16 for the kind of the record, a value with an int16 for its version. A null value is a
tombstone. Must not know: the meaning of any kind of record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct, error
from typing import Final, Protocol

from penstock.model.errors import StorageError

MAX_STRING_BYTES: Final = 32_767

_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")


class CoordinatorRecord(Protocol):
    """One change of one shard. Only the shard's `replay` defines its effect."""

    def encode_key(self) -> bytes: ...

    def encode_value(self) -> bytes | None:
        """None is a tombstone."""
        ...


Decoder = Callable[[bytes, bytes | None], CoordinatorRecord]
"""(key, value), both with their version in front -> record."""


def decode(topic: str, key: bytes, value: bytes | None, decoders: Mapping[int, Decoder]) -> CoordinatorRecord | None:
    """The record, or None for a kind that is not in the table: a newer broker wrote it, and it is left alone."""
    try:
        decoder = decoders.get(_INT16.unpack_from(key)[0])
        return None if decoder is None else decoder(key, value)
    except (error, IndexError, ValueError) as problem:
        raise StorageError(f"a record of {topic} cannot be decoded: {problem}; key {key!r}") from problem


def fits(*texts: str | None) -> bool:
    """Whether these strings can be stored: the wire protocol allows longer ones than the records."""
    return all(
        text is None or len(text) <= MAX_STRING_BYTES // 4 or len(text.encode()) <= MAX_STRING_BYTES for text in texts
    )


def string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else string(text)


def uvarint(value: int) -> bytes:
    if 0 <= value <= 0x7F:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact(data: bytes) -> bytes:
    """A string or bytes in the form of flexible versions."""
    return uvarint(len(data) + 1) + data


class Fields:
    """Reads one field after the other; raises IndexError or struct.error past the end."""

    __slots__ = ("_at", "_data", "_flexible")

    def __init__(self, data: bytes, at: int, *, flexible: bool = False) -> None:
        self._data = data
        self._at = at
        self._flexible = flexible

    def _number(self, form: Struct) -> int:
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return int(value)

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def length(self, form: Struct) -> int:
        """The length of a string, bytes or an array: -1 is null."""
        if not self._flexible:
            return self._number(form)
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value - 1
            shift += 7

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise IndexError(f"{size} bytes at {self._at} of {len(self._data)}")
        data = self._data[self._at : end]
        self._at = end
        return data

    def string(self) -> str:
        return self._take(self.length(_INT16)).decode()

    def nullable_string(self) -> str | None:
        size = self.length(_INT16)
        return None if size < 0 else self._take(size).decode()

    def data(self) -> bytes:
        return self._take(self.length(_INT32))

    def skip(self, size: int) -> None:
        self._take(size)

    def tags(self) -> dict[int, bytes]:
        """The tagged fields at the end of a flexible version."""
        if not self._flexible:
            return {}
        count = self.length(_INT32) + 1
        return {self.length(_INT32) + 1: self._take(self.length(_INT32) + 1) for _ in range(count)}
