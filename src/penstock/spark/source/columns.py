"""The columns of the source: the same as those of Spark's Kafka source, in the same order."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark.options.known import InvalidOption

HEADERS = "headers"
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def source_schema(include_headers: bool) -> StructType:
    names = [name for name in COLUMNS if name != HEADERS or include_headers]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def check_schema(schema: StructType) -> StructType:
    """Checks a user's schema: any of the columns in any order, each with its type. Raises InvalidOption."""
    for found in schema.fields:
        wanted = COLUMNS.get(found.name)
        if wanted is None:
            raise InvalidOption(
                f"the schema has a column '{found.name}', and the penstock source has only {', '.join(COLUMNS)}"
            )
        if found.dataType.simpleString() != wanted.simpleString():
            raise InvalidOption(
                f"the schema has '{found.name}' as {found.dataType.simpleString()}, and the penstock source reads it "
                f"as {wanted.simpleString()}: cast it after reading"
            )
    return schema


def arrow_schema(schema: StructType) -> Any:
    """The Arrow schema that Spark requires of every RecordBatch."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
