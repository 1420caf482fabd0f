"""The columns of the source: the same as those of Spark's Kafka source, in the same order; then those of typed values
(`value_options`)."""

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
from penstock.spark.source.value_options import BAD, ERROR, FORMAT, SCHEMA, VALUE, ValueOptions

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


def source_schema(include_headers: bool, values: ValueOptions | None = None) -> StructType:
    columns = _columns(values)
    return StructType([StructField(name, columns[name]) for name in columns if name != HEADERS or include_headers])


def _columns(values: ValueOptions | None) -> dict[str, DataType]:
    if values is None:
        return COLUMNS
    return {**COLUMNS, VALUE: values.struct(), ERROR: StringType(), BAD: BinaryType()}


def check_schema(schema: StructType, values: ValueOptions | None = None) -> StructType:
    """Checks a user's schema: any of the columns in any order, each with its type. Raises InvalidOption."""
    columns = _columns(values)
    for found in schema.fields:
        wanted = columns.get(found.name)
        if wanted is None:
            hint = f" (with the option {FORMAT} also {ERROR} and {BAD})" if found.name in (ERROR, BAD) else ""
            raise InvalidOption(
                f"the schema has a column '{found.name}', and the penstock source has only {', '.join(columns)}{hint}"
            )
        if found.dataType.simpleString() != wanted.simpleString():
            hint = "cast it after reading"
            if found.name == VALUE and (values is not None or isinstance(found.dataType, StructType)):
                hint = f"the type follows from the options {FORMAT} and {SCHEMA}"
            raise InvalidOption(
                f"the schema has '{found.name}' as {found.dataType.simpleString()}, and the penstock source reads it "
                f"as {wanted.simpleString()}: {hint}"
            )
    return schema


def arrow_schema(schema: StructType) -> Any:
    """The Arrow schema that Spark requires of every RecordBatch."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
