"""Values with a schema: the columns, what becomes of values that do not fit, and what each mistake is told."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from penstock.arrow.decode import KAFKA_SCHEMA
from penstock.spark.datasource import PenstockDataSource
from penstock.spark.options.known import InvalidOption
from penstock.spark.source.columns import arrow_schema, check_schema, source_schema
from penstock.spark.source.options import SourceOptions
from penstock.spark.source.typed_values import BadValue, TypedRows
from penstock.spark.source.value_options import ValueOptions

SCHEMA = (
    "id long not null, user struct<country: string, age: int not null>, tags array<string>, "
    "prices map<string, decimal(5, 2)>, at timestamp, day date, ratio float, is_new boolean, raw binary, n byte"
)
VALUES = [b'{"id": 1, "user": {"age": 7}, "prices": {"x": 1.5}}', b"no json", None, b'{"id": "2"}', b'{"id": 3}']


def records(columns: Any, values: list[bytes | None]) -> Any:
    count = len(values)
    made = {"topic": ["t"] * count, "partition": [3] * count, "offset": range(40, 40 + count), "value": values}
    arrays = [pa.array(made.get(field.name, [None] * count), field.type) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def rows_of(options: ValueOptions, names: list[str] | None = None, values: list[bytes | None] = VALUES) -> Any:
    schema = arrow_schema(source_schema(True, options))
    if names is not None:
        schema = pa.schema([schema.field(name) for name in names])
    typed = TypedRows(options, schema)
    (rows,) = typed.rows(iter([records(typed.columns, values)]))
    rows.validate(full=True)
    assert rows.schema == schema
    return rows


def test_a_row_that_does_not_fit_keeps_its_reason_and_bytes() -> None:
    rows = rows_of(ValueOptions(SCHEMA)).to_pylist()
    assert [row["offset"] for row in rows] == [40, 41, 42, 43, 44]
    assert [row["value"] and row["value"]["id"] for row in rows] == [1, None, None, None, 3]
    assert rows[0]["value"]["user"] == {"country": None, "age": 7}
    assert [row["badValue"] for row in rows] == [None, b"no json", None, b'{"id": "2"}', None]
    reasons = [row["valueError"] for row in rows]
    assert reasons[1].startswith("JSON is malformed")
    assert reasons[3] == "Expected `int`, got `str` - at `$.id`"
    assert reasons[0] is reasons[2] is reasons[4] is None  # a tombstone is no bad value


def test_bad_values_may_be_dropped() -> None:
    rows = rows_of(ValueOptions(SCHEMA, "drop")).to_pylist()
    assert [(row["offset"], row["valueError"]) for row in rows] == [(40, None), (42, None), (44, None)]
    assert rows_of(ValueOptions(SCHEMA, "drop"), ["offset"]).column("offset").to_pylist() == [40, 42, 44]
    assert rows_of(ValueOptions(SCHEMA, "drop"), values=[b"x"]).num_rows == 0


@pytest.mark.parametrize("names", [None, ["key"], ["valueError", "offset"]])
def test_a_bad_value_may_be_an_error(names: list[str] | None) -> None:
    with pytest.raises(
        BadValue, match=r"the value at offset 41 of partition 3 of 't' does not fit the option 'valueSchema': JSON is"
    ):
        rows_of(ValueOptions(SCHEMA, "fail"), names)
    assert rows_of(ValueOptions(SCHEMA, "fail"), names, [b'{"id": 1}', None]).num_rows == 2


def test_only_columns_that_are_asked_for_are_made() -> None:
    schema = arrow_schema(source_schema(False, ValueOptions(SCHEMA)))
    plain = TypedRows(ValueOptions(SCHEMA), pa.schema([schema.field("offset"), schema.field("key")]))
    assert (plain.columns.names, plain.is_decoding) == (["offset", "key"], False)
    errors = TypedRows(ValueOptions(SCHEMA), pa.schema([schema.field("valueError")]))
    assert errors.columns == pa.schema([KAFKA_SCHEMA.field("value")])
    assert rows_of(ValueOptions("id long"), ["badValue"]).column(0).to_pylist() == [
        None,
        b"no json",
        None,
        b'{"id": "2"}',
        None,
    ]


def test_nothing_to_decode() -> None:
    assert rows_of(ValueOptions(SCHEMA), values=[]).num_rows == 0
    assert rows_of(ValueOptions(SCHEMA), values=[None]).to_pylist()[0]["value"] is None


def test_columns_that_spark_sees() -> None:
    source = PenstockDataSource({"valueformat": "JSON", "valueSchema": "id int not null, at timestamp"})
    assert source.schema().simpleString() == (
        "struct<key:binary,value:struct<id:int,at:timestamp>,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,valueError:string,badValue:binary>"
    )
    headers = source_schema(True, ValueOptions("id int"))
    assert headers.names[-3:] == ["headers", "valueError", "badValue"]
    assert PenstockDataSource({"valueFormat": "binary"}).schema() == source_schema(False)


def test_a_user_s_schema() -> None:
    values = ValueOptions("id int not null")
    struct = StructType([StructField("id", IntegerType())])
    chosen = StructType([StructField("value", struct), StructField("offset", LongType())])
    assert check_schema(chosen, values) is chosen
    with pytest.raises(InvalidOption, match=r"'value' as struct<id:int>.* as struct<id:bigint>: the type follows from"):
        check_schema(chosen, ValueOptions("id long"))
    with pytest.raises(InvalidOption, match=r"'value' as struct<id:int>.* as binary: the type follows from"):
        check_schema(chosen)
    with pytest.raises(InvalidOption, match=r"has only key, .* \(with the option valueFormat also valueError and badV"):
        check_schema(StructType([StructField("badValue", LongType())]))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"valueFormat": "avro"}, "option 'valueFormat' is 'avro': write json or binary"),
        ({"valueFormat": "json"}, "give the fields with the option 'valueSchema', such as 'id long, name string'"),
        ({"valueSchema": "id long"}, "option 'valueSchema' is for typed values: give the option 'valueFormat'"),
        ({"onBadValue": "drop"}, "option 'onBadValue' is for typed values: give the option 'valueFormat'"),
        (
            {"valueFormat": "json", "valueSchema": "id long", "onBadValue": "skip"},
            "option 'onBadValue' is 'skip': write null, fail or drop",
        ),
        (
            {"valueFormat": "json", "valueSchema": "id long, name strng"},
            r"option 'valueSchema': the schema has 'strng' where a type .* is expected \(character 15\)",
        ),
        (
            {"valueFormat": "json", "valueSchema": "m map<int, int>"},
            "option 'valueSchema': column 'm': names in JSON are strings",
        ),
        ({"valueFormat": "json", "valueShema": "id long"}, "did you mean 'valueSchema'"),
    ],
)
def test_mistakes(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        SourceOptions.for_batch({"subscribe": "t"} | options)
    if "valueShema" not in options:
        with pytest.raises(InvalidOption, match=reason):
            PenstockDataSource(options).schema().simpleString()
