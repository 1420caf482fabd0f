"""The columns of Spark's Kafka source as Arrow arrays, limited to those of a schema.

A schema may have any of them in any order, each with the type below. Spark refuses a RecordBatch whose schema differs
from the announced one, so arrays have exactly the types of the given schema, not equivalent ones.

    key            binary                               null if the record has none
    value          binary                               null for a tombstone
    topic          string
    partition      int32
    offset         int64
    timestamp      timestamp[us]                        of the record, or of the append with LogAppendTime
    timestampType  int32                                0 CreateTime, 1 LogAppendTime
    headers        list<struct<key: string, value: binary>>   null if the record has none, as in Spark
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from penstock.arrow.decode.errors import CorruptRecordBatch
from penstock.model.errors import ConfigError

RecordBatch = Any  # pyarrow comes without types
Schema = Any
Array = Any

KAFKA_SCHEMA: Final[Schema] = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
    ]
)

# The limit of a RecordBatch, unless a single row is larger. Arrow's own limit for a binary column is 2^31.
MAX_BYTES: Final = 32 << 20

# The range of microseconds in 64 bits. Milliseconds outside it (from a producer that wrote nanoseconds) become the
# nearest limit: the row matters more than its date.
MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000
MIN_TIMESTAMP_MS: Final = -MAX_TIMESTAMP_MS


class Columns:
    """A checked schema, and the two columns with the same value in every row."""

    def __init__(self, schema: Schema, topic: str, partition: int, max_rows: int) -> None:
        check(schema)
        if max_rows < 1:
            raise ConfigError(f"max_rows {max_rows}: a RecordBatch needs at least one row")
        self.schema = schema
        self.topic = topic
        self.partition = partition
        self.max_rows = max_rows
        self.names: frozenset[str] = frozenset(schema.names)
        constants = {"topic": topic, "partition": partition}
        self._constants: dict[str, Array] = {
            field.name: pa.repeat(pa.scalar(constants[field.name], field.type), max_rows)
            for field in schema
            if field.name in constants
        }

    def corrupt(self, base_offset: int, reason: str) -> CorruptRecordBatch:
        return CorruptRecordBatch(self.topic, self.partition, base_offset, reason)

    def record_batch(self, rows: int, make: Callable[[str, Any], Array]) -> RecordBatch:
        """`make(name, arrow type)` returns the columns whose values differ by row."""
        arrays = []
        for field in self.schema:
            constant = self._constants.get(field.name)
            arrays.append(make(field.name, field.type) if constant is None else constant.slice(0, rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def check(schema: Schema) -> None:
    """Raises ConfigError, which names the column."""
    if not len(schema):
        raise ConfigError("the schema has no columns: give at least one of " + ", ".join(KAFKA_SCHEMA.names))
    if len(set(schema.names)) != len(schema):
        raise ConfigError(f"the schema has a column twice: {', '.join(schema.names)}")
    for field in schema:
        index = KAFKA_SCHEMA.get_field_index(field.name)
        if index < 0:
            raise ConfigError(f"no column {field.name!r}: a topic has {', '.join(KAFKA_SCHEMA.names)}")
        wanted = KAFKA_SCHEMA.field(index).type
        if not _is_alike(field.type, wanted):
            raise ConfigError(f"column {field.name!r} is requested as {field.type}: it is {wanted}")


def _is_alike(given: Any, wanted: Any) -> bool:
    """Whether types are equal, except for time zones and the names and nullability inside lists."""
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(given) and given.unit == wanted.unit)
    if pa.types.is_list(wanted):
        if not pa.types.is_list(given) or not pa.types.is_struct(given.value_type):
            return False
        inner = [(field.name, field.type) for field in given.value_type]
        return inner == [(field.name, field.type) for field in wanted.value_type]
    return bool(given == wanted)
