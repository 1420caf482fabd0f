"""Records as lines of text, as `penstock consume` writes them and `penstock produce` reads them.

The JSON form is the same in both directions, so that the output of one command is input for the other. Bytes that are
not UTF-8 are written as {"base64": "..."}.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import string
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.cli.arguments.numbers import INT32_MAX, INT64_MAX
from penstock.model.errors import ConfigError

if TYPE_CHECKING:
    from penstock.sdk import NewRecord, Record

Line: TypeAlias = "Callable[[Record], bytes]"

FIELDS = ("topic", "partition", "offset", "timestamp", "time", "key", "value", "headers")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\", "\\0": "\0"}


# -- writing -------------------------------------------------------------------------------------------------


def raw_line(record: Record, *, with_key: bool, with_headers: bool, separator: str) -> bytes:
    parts: list[bytes] = []
    if with_headers:
        parts.append(_headers_text(record).encode())
    if with_key:
        parts.append(b"null" if record.key is None else record.key)
    parts.append(b"null" if record.value is None else record.value)
    return separator.encode().join(parts) + b"\n"


def hex_line(record: Record, *, with_key: bool, with_headers: bool, separator: str) -> bytes:
    parts: list[str] = []
    if with_headers:
        parts.append(",".join(f"{name}:{(value or b'').hex()}" for name, value in record.headers))
    if with_key:
        parts.append("null" if record.key is None else record.key.hex())
    parts.append("null" if record.value is None else record.value.hex())
    return separator.join(parts).encode() + b"\n"


def json_line(record: Record) -> bytes:
    shown = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": _json_bytes(record.key),
        "value": _json_bytes(record.value),
        "headers": [[name, _json_bytes(value)] for name, value in record.headers],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def template_line(template: str) -> Line:
    """{offset} {key} {value} {header.trace} {json.user.id}; a newline is added unless the template ends in one."""
    text = re.sub(r"\\[nt\\0]", lambda match: _ESCAPES[match[0]], template)
    text += "" if text.endswith(("\n", "\0")) else "\n"
    try:
        pieces = [(literal, name) for literal, name, _, _ in string.Formatter().parse(text)]
    except ValueError as error:
        raise ConfigError(f"--template {template!r}: {error}") from error
    for _, name in pieces:
        if name is not None and name not in FIELDS and not name.startswith(("header.", "json.")):
            raise ConfigError(
                f"--template: unknown field {{{name}}}, use {', '.join(FIELDS)}, header.NAME or json.PATH"
            )

    def line(record: Record) -> bytes:
        return b"".join(
            literal.encode() + (b"" if name is None else field_text(record, name).encode(errors="surrogateescape"))
            for literal, name in pieces
        )

    return line


def field_texts(record: Record, name: str) -> list[str]:
    """All values of a field: a record may repeat a header."""
    if name.startswith("header."):
        wanted = name.removeprefix("header.")
        return [_text(value) for key, value in record.headers if key == wanted] or [""]
    return [field_text(record, name)]


def field_text(record: Record, name: str) -> str:
    """A field as text. Bytes that are not UTF-8 become surrogates."""
    if name.startswith("header."):
        return _text(record.header(name.removeprefix("header.")))
    if name.startswith("json."):
        return _json_field(record.value, name.removeprefix("json."))
    match name:
        case "key":
            return _text(record.key)
        case "value":
            return _text(record.value)
        case "headers":
            return _headers_text(record)
        case "timestamp":
            return "" if record.timestamp_ms is None else str(record.timestamp_ms)
        case "time":
            if record.timestamp_ms is None:
                return ""
            return datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return str(getattr(record, name))


def _headers_text(record: Record) -> str:
    return ",".join(f"{name}:{_text(value)}" for name, value in record.headers)


def _json_field(value: bytes | None, path: str) -> str:
    """The field as text; empty if the value is not JSON or has no such field."""
    try:
        found: Any = json.loads(value or b"null")
    except (ValueError, RecursionError):
        return ""
    for step in path.split("."):
        if isinstance(found, dict) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        else:
            return ""
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="surrogateescape")


def _json_bytes(value: bytes | None) -> object:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


# -- reading -------------------------------------------------------------------------------------------------


def read_json(line: bytes) -> NewRecord:
    """Raises ValueError with the reason."""
    from penstock.sdk import NewRecord

    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    if not isinstance(found, dict) or "value" not in found:
        raise ValueError('a JSON record is an object with "value"; key, headers, partition and timestamp are optional')
    headers = found.get("headers") or []
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError("headers must be an object or a list of [name, value]")
    for name, most in (("partition", INT32_MAX), ("timestamp", INT64_MAX)):
        number = found.get(name)
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= most):
            raise ValueError(f"{name} must be a number from 0 to {most}, not {json.dumps(number)}")
    return NewRecord(
        _bytes_of(found["value"]),
        _bytes_of(found.get("key")),
        [(str(name), _bytes_of(value)) for name, value in pairs],
        partition=found.get("partition"),
        timestamp_ms=found.get("timestamp"),
    )


def read_hex(text: bytes) -> bytes:
    try:
        return binascii.unhexlify(text.strip())
    except binascii.Error as error:
        raise ValueError(f"not hexadecimal: {error}") from error


def _bytes_of(value: object) -> bytes | None:
    """A string as its UTF-8 bytes, {"base64": ...} decoded, any other value as JSON text."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64: {error}") from error
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
