from __future__ import annotations

import base64
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.http.errors import Refused
from penstock.gateway.http.formats import (
    Format,
    encode_key,
    encode_value,
    of_accept,
    of_content_type,
    show_record,
)
from penstock.model.topic_partition import TopicPartition
from penstock.records.builder import Record

PARTITION = TopicPartition("t", 3)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def shown(record: Record, kind: Format) -> dict[str, object]:
    result: dict[str, object] = json.loads(msgspec.json.encode(show_record(PARTITION, record, kind)))
    return result


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


@given(JSON_VALUES)
def test_json_values_come_back(value: object) -> None:
    for kind in (Format.PLAIN, Format.JSON):
        stored = encode_value(raw(value), kind)
        assert shown(Record(None, stored), kind)["value"] == value


@given(st.text())
def test_plain_keys_are_their_text(key: str) -> None:
    stored = encode_key(raw(key), Format.PLAIN)
    assert stored == key.encode()
    assert shown(Record(stored, None), Format.PLAIN)["key"] == key


@given(st.binary() | st.none(), st.binary() | st.none())
def test_whatever_lies_in_the_log_can_be_shown_and_found_again(key: bytes | None, value: bytes | None) -> None:
    for kind in Format:
        result = shown(Record(key, value, (("h", value),)), kind)
        for name, data in (("key", key), ("value", value)):
            text, encoding = result[name], result.get(f"{name}_encoding")
            if kind is Format.BINARY or encoding == "base64":
                assert (None if text is None else base64.b64decode(str(text))) == data
            elif encoding == "text" or (kind is Format.PLAIN and name == "key"):
                assert text == (None if data is None else data.decode())
            else:
                assert text == (None if data is None else json.loads(data))
    assert encode_value(raw(base64.b64encode(value or b"").decode()), Format.BINARY) == (value or b"")


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("", Format.PLAIN),
        ("*/*", Format.PLAIN),
        ("text/html, application/vnd.kafka.binary.v2+json;q=0.5", Format.BINARY),
        ("application/vnd.kafka.json.v2+json, application/json", Format.JSON),
        ("Application/JSON", Format.PLAIN),
    ],
)
def test_accept(header: str, kind: Format) -> None:
    assert of_accept(header) is kind


def test_content_types() -> None:
    assert of_content_type("application/vnd.kafka.binary.v2+json; charset=utf-8") is Format.BINARY
    assert of_content_type("application/json") is Format.PLAIN
    for kind in ("", "application/vnd.kafka.avro.v2+json", "application/x-www-form-urlencoded", "text/plain"):
        with pytest.raises(Refused) as refused:
            of_content_type(kind)
        assert refused.value.status == 415
        assert "-H 'Content-Type: application/json'" in refused.value.message


@pytest.mark.parametrize("value", [1, "=", "a", "ä", {}])
def test_what_is_no_base64(value: object) -> None:
    with pytest.raises(Refused) as refused:
        encode_value(raw(value), Format.BINARY)
    assert refused.value.status == 422
