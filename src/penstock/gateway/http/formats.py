"""Conversion of keys and values between JSON and bytes, in three formats, chosen by Content-Type and Accept.

    application/json                     values are JSON; a string key is stored as its text
    application/vnd.kafka.json.v2+json   keys and values are JSON, as in Confluent's REST proxy
    application/vnd.kafka.binary.v2+json keys and values are base64, as in Confluent's REST proxy

In the JSON formats a value is stored exactly as it was sent. On reading, a key or value that is not JSON is shown as
text, or as base64 if it is not UTF-8; `value_encoding` or `key_encoding` says which. So every record can be shown.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec

from penstock.gateway.http.errors import Refused
from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record

Given = msgspec.Raw | msgspec.UnsetType
"""Any JSON as it was sent, or an absent field."""


class Format(Enum):
    PLAIN = "application/json"
    JSON = "application/vnd.kafka.json.v2+json"
    BINARY = "application/vnd.kafka.binary.v2+json"


V2 = "application/vnd.kafka.v2+json"
BY_NAME = {"json": Format.JSON, "binary": Format.BINARY, "plain": Format.PLAIN}
_BY_TYPE = {kind.value: kind for kind in Format} | {V2: Format.PLAIN}


def of_content_type(header: str) -> Format:
    """The format of a body. Raises Refused(415) for a type not served here, and without a type.

    Any web page may send bodies without a type or with the type of a form.
    """
    kind = header.partition(";")[0].strip().lower()
    found = _BY_TYPE.get(kind)
    if found is None:
        what = f"content type '{kind[:100]}' is not served" if kind else "the body has no content type"
        raise Refused(
            415,
            f"{what}: send {', '.join(k.value for k in Format)} or {V2}, "
            "with curl by -H 'Content-Type: application/json'",
        )
    return found


def of_accept(header: str) -> Format:
    """The first format that is served here, or plain JSON."""
    for item in header.split(","):
        kind = item.partition(";")[0].strip().lower()
        if kind and kind in _BY_TYPE:
            return _BY_TYPE[kind]
    return Format.PLAIN


# -- in -----------------------------------------------------------------------------------


def encode_key(raw: Given, kind: Format) -> bytes | None:
    if kind is Format.PLAIN and isinstance(raw, msgspec.Raw) and bytes(raw).startswith(b'"'):
        return _string(raw, "a key").encode()
    return encode_value(raw, kind, "a key")


def encode_value(raw: Given, kind: Format, what: str = "a value") -> bytes | None:
    if isinstance(raw, msgspec.UnsetType):
        return None
    data = bytes(raw)
    if data == b"null":
        return None
    return from_base64(_string(raw, what)) if kind is Format.BINARY else data


def _string(raw: msgspec.Raw, what: str) -> str:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(422, f"{what} in this format must be a string") from error


def from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(422, f"not base64: {error}") from error


# -- out ----------------------------------------------------------------------------------


def show_records(partition: TopicPartition, records: Iterable[Record], kind: Format) -> list[dict[str, Any]]:
    return [show_record(partition, record, kind) for record in records]


def show_record(partition: TopicPartition, record: Record, kind: Format) -> dict[str, Any]:
    key, key_encoding = _show(record.key, kind, text_first=kind is Format.PLAIN)
    value, value_encoding = _show(record.value, kind, text_first=False)
    shown: dict[str, Any] = {
        "topic": partition.topic,
        "key": key,
        "value": value,
        "partition": partition.partition,
        "offset": record.offset,
    }
    if kind is Format.PLAIN:
        shown["timestamp"] = record.timestamp_ms
        if record.headers:
            shown["headers"] = [
                {"name": name, "value": None if value is None else to_base64(value)} for name, value in record.headers
            ]
    if key_encoding:
        shown["key_encoding"] = key_encoding
    if value_encoding:
        shown["value_encoding"] = value_encoding
    return shown


def _show(data: bytes | None, kind: Format, *, text_first: bool) -> tuple[object, str | None]:
    """The JSON value, and its encoding if it differs from the format's own."""
    if data is None:
        return None, None
    if kind is Format.BINARY:
        return to_base64(data), None
    if not text_first and is_json(data):
        return msgspec.Raw(data), None
    try:
        return data.decode("utf-8"), None if text_first else "text"
    except UnicodeDecodeError:
        return to_base64(data), "base64"


def is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
