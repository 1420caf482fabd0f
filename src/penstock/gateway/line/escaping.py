r"""Lossless escaping of a record's bytes as text on one line.

    \\  backslash    \n \r \t  line feed, carriage return, tab    \s  blank (in keys only)
    \-  a key that is "-"      \N  no value (a tombstone)         \xHH  any other byte

UTF-8 is unchanged. Control characters and bytes that are not UTF-8 become \xHH.
"""

from __future__ import annotations

import re

NO_KEY = b"-"
NO_VALUE = rb"\N"

_NAMED = {"\\": rb"\\", "\n": rb"\n", "\r": rb"\r", "\t": rb"\t"}
_SPECIAL = re.compile("[\\\\\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\udc80-\\udcff]")
_SPECIAL_IN_KEY = re.compile("[\\\\ \\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\udc80-\\udcff]")
_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|[\\nrts-])")
_MEANING = {b"\\": b"\\", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"s": b" ", b"-": b"-"}


def escape_value(value: bytes | None) -> bytes:
    return NO_VALUE if value is None else _escape(value, _SPECIAL)


def escape_key(key: bytes | None) -> bytes:
    if key is None:
        return NO_KEY
    if key == NO_KEY:
        return rb"\-"
    return _escape(key, _SPECIAL_IN_KEY)


def _escape(data: bytes, special: re.Pattern[str]) -> bytes:
    # Each byte that is not UTF-8 becomes a lone surrogate.
    text = data.decode("utf-8", "surrogateescape")
    return special.sub(lambda match: _escaped(match[0]), text).encode("utf-8")


def _escaped(character: str) -> str:
    named = _NAMED.get(character)
    if named is not None:
        return named.decode()
    if character == " ":
        return r"\s"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def unescape(text: bytes) -> bytes | None:
    """Reverses `escape_value`; None for a tombstone."""
    if text == NO_VALUE:
        return None
    return _ESCAPE.sub(lambda match: _unescaped(match[1]), text)


def _unescaped(sequence: bytes) -> bytes:
    return _MEANING.get(sequence) or bytes.fromhex(sequence[1:].decode())
