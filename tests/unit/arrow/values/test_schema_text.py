"""Schemas as text: read, written, and refused with the place."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.arrow.values import parse_schema, schema_text
from penstock.model.errors import ConfigError


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
        ("a int, A long", "a column 'A' twice (character 8)"),
        ("s struct<b: int, B: int>", "a column 'B' twice (character 18)"),
        ("s struct<>", "'>' where the name of a column is expected (character 10)"),
        ("a int,\n  b lng", "'lng' where a type"),
        ("  a decimal(50, 2)", "at most 38 digits is expected (character 5)"),
        ("a `b", "the schema cannot be read from '`b' (character 3) on"),
    ],
)
def test_a_schema_that_cannot_be_read_says_where(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_schema(text)
    assert reason in str(refused.value)
