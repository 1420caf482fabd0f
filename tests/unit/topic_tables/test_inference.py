"""Schemas from values."""

from __future__ import annotations

import pytest

from penstock.arrow.values import schema_text
from penstock.model.errors import ConfigError
from penstock.topic_tables.inference import infer


def test_a_schema_of_values() -> None:
    values = [
        b'{"id": 1, "user": {"country": "NO", "age": null}, "prices": [1, 2.5], "gone": null, "none": [], "big": 1}',
        b'{"id": 2, "is_new": true, "big": 1e300, "at": "2026-01-31T12:00:00Z"}',
        b"no json",
        b"[1]",
        None,
    ]
    assert schema_text(infer(values)) == (
        "id long, user struct<country: string>, prices array<double>, big double, is_new boolean, at string"
    )


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([b'{"a": {"b": 1}}', b'{"a": {"b": "x"}}'], "field 'a.b' is long in some values and string in others"),
        ([b'{"a": [1, "x"]}'], r"field 'a\[\]' is long in some values and string in others"),
        ([b'{"a": ' * 500 + b"1" + b"}" * 500], "within more than 64 objects and arrays: give --schema"),
        ([b"1", None], "no JSON objects to infer a schema from"),
        ([b'{"a": null}'], "no fields to infer a schema from"),
    ],
)
def test_values_without_a_schema(values: list[bytes | None], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        infer(values)


def test_names_that_cannot_be_columns_are_left_out() -> None:
    value = b'{"id": 1, "u": {"a": 1, "A": 2, " b": 3, "": 4}}'
    assert schema_text(infer([value])) == "id long, u struct<a: long>"
