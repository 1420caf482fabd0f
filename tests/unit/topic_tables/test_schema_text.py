"""Schemas as text, and schemas from values."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.model.errors import ConfigError
from penstock.topic_tables.ddl import parse_schema, schema_text
from penstock.topic_tables.inference import infer


def test_a_schema_as_text_and_back() -> None:
    text = (
        "id long not null, user struct<country: string, `my age`: int not null>, tags array<string>, "
        "prices map<string, decimal(5, 2)>, at timestamp, day date, ratio float, amount double, is_new boolean, "
        "raw binary, a byte, b short"
    )
    schema = parse_schema(text)
    assert schema_text(schema) == text
    assert schema.field("id") == pa.field("id", pa.int64(), nullable=False)
    assert schema.field("user").type == pa.struct([("country", pa.string()), pa.field("my age", pa.int32(), False)])
    assert schema.field("prices").type == pa.map_(pa.string(), pa.decimal128(5, 2))


def test_words_of_other_databases() -> None:
    text = "A BIGINT NOT NULL, b VARCHAR(20), c numeric, d smallint, e text, f bool, g struct<h int, i array<real>>"
    assert schema_text(parse_schema(text)) == (
        "A long not null, b string, c decimal(10, 0), d short, e string, f boolean, g struct<h: int, i: array<float>>"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the schema is empty"),
        ("id", "its end where a type (byte, short, int, long"),
        ("id lng", "'lng' where a type"),
        ("id long name string", "'name' where ',' is expected"),
        ("id long,", "its end where the name of a column is expected"),
        ("a struct<b: int", "its end where ',' is expected"),
        ("a decimal(50, 2)", "at most 38 digits"),
        ("a decimal(x)", "a number is expected"),
        ("a map<string>", "'>' where ',' is expected"),
        ("a int not nil", "NULL after NOT"),
        ("a int, A long", "a column 'a' twice"),
    ],
)
def test_a_schema_that_cannot_be_read_says_where(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_schema(text)
    assert reason in str(refused.value)


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
        ([b"1", None], "no JSON objects to infer a schema from"),
        ([b'{"a": null}'], "no fields to infer a schema from"),
    ],
)
def test_values_without_a_schema(values: list[bytes | None], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        infer(values)
