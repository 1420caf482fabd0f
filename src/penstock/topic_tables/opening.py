"""The table of a topic: made, or found and checked.

A table remembers in its properties which topic it has, by id, and its shape. So a topic that was deleted and created
again, and another topic's table, are refused before anything is written.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.arrow.values import schema_text
from penstock.model.errors import ConfigError
from penstock.tables import NoTable, Table
from penstock.tables.schema import stored_schema
from penstock.topic_tables.growth import GrowingShape
from penstock.topic_tables.json_rows import OF_RECORD, JsonShape
from penstock.topic_tables.keyed import KeyedShape, check_key
from penstock.topic_tables.newest import KeyColumns
from penstock.topic_tables.raw import RawShape
from penstock.topic_tables.shapes import DATE, Shape

RAW, JSON = "raw", "json"
TOPIC, TOPIC_ID, MODE = "penstock.topic", "penstock.topic.id", "penstock.mode"
KEY = "penstock.key"
"""KeyColumns, as JSON, if the table has the newest row of each key."""
DATE_OF = "penstock.date"
"""There if the column `date` is that of the record's timestamp, and not a field."""
STREAM_PREFIX: Final = "penstock"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a command asks for. None and empty: what the table has."""

    topic: str
    topic_id: str
    mode: str | None = None
    schema: Any = None
    """Of JSON objects."""
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    evolve: bool = False
    """Lets the schema grow with the values."""


def key_of(table: Table) -> tuple[str, ...]:
    """Empty if the table has a row for each record."""
    return tuple(json.loads(table.properties.get(KEY, "[]")))


def topic_id_text(topic_id: bytes) -> str:
    """As Kafka prints it; empty for a broker without topic ids."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=") if any(topic_id) else ""


def stream_of(topic: str, topic_id: str, partition: int) -> str:
    return f"{STREAM_PREFIX}/{topic_id or topic}/{partition}"


def open_topic_table(
    directory: Path, wanted: Wanted, infer: Callable[[], Any], say: Callable[[str], None]
) -> tuple[Table, Shape]:
    """`infer` makes a schema of the topic's values. Raises ConfigError, TableError."""
    try:
        table = Table.open(directory)
    except NoTable:
        return _create(directory, wanted, infer, say)
    return table, shape_of(table, wanted, say)


def _create(
    directory: Path, wanted: Wanted, infer: Callable[[], Any], say: Callable[[str], None]
) -> tuple[Table, Shape]:
    shape: Shape
    if (wanted.mode or RAW) == RAW:
        _check_raw(wanted)
        shape = RawShape(DATE in wanted.partition_by)
    else:
        fields = wanted.schema
        if fields is None:
            fields = infer()
            say(f"Inferred the schema '{schema_text(fields)}'")
        shape = _json(_never_null(stored_schema(fields), wanted.key), wanted.partition_by, wanted)
    properties = {TOPIC: wanted.topic, TOPIC_ID: wanted.topic_id, MODE: wanted.mode or RAW}
    if shape.has_date:
        properties[DATE_OF] = "timestamp"
    if wanted.key:
        check_key(shape.schema, wanted.key)
        properties[KEY] = json.dumps(wanted.key)
    shape = _keyed(shape, wanted.mode or RAW, wanted.key)
    table = Table.create(directory, shape.schema, wanted.partition_by, properties)
    return table, shape


def _json(fields: Any, partition_by: tuple[str, ...], wanted: Wanted) -> Shape:
    return GrowingShape(fields, partition_by) if wanted.evolve else JsonShape(fields, partition_by)


def _never_null(fields: Any, names: tuple[str, ...]) -> Any:
    """A key is there in each value."""
    return pa.schema([field.with_nullable(field.nullable and field.name not in names) for field in fields])


def _keyed(plain: Shape, mode: str, key: tuple[str, ...]) -> Shape:
    if not key:
        return plain
    if mode == JSON:
        return KeyedShape(plain, KeyColumns(key, "_key", ("_partition", "_offset", "_timestamp")))
    if key != ("key",):
        raise ConfigError("raw rows have one key, that of the record: --key key. --mode json has fields to choose from")
    return KeyedShape(plain, KeyColumns(key, "key", ("partition", "offset", "timestamp")))


def shape_of(table: Table, wanted: Wanted, say: Callable[[str], None]) -> Shape:
    """Of a table that is there. Raises ConfigError if it is not the wanted one."""
    told = table.properties
    if TOPIC not in told:
        raise ConfigError(f"{table.directory} is a table that was not made from a topic: give another directory")
    if told[TOPIC] != wanted.topic:
        raise ConfigError(f"{table.directory} is the table of topic {told[TOPIC]}: give another directory")
    if told.get(TOPIC_ID, "") and wanted.topic_id and told[TOPIC_ID] != wanted.topic_id:
        raise ConfigError(
            f"topic {wanted.topic} was deleted and created again since its table was made (its id was "
            f"{told[TOPIC_ID]}, now {wanted.topic_id}), so its offsets began again: give another directory"
        )
    mode = told.get(MODE, RAW)
    if wanted.mode not in (None, mode):
        raise ConfigError(f"{table.directory} has rows of mode {mode}, not {wanted.mode}: give another directory")
    if wanted.partition_by and wanted.partition_by != table.partition_by:
        raise ConfigError(
            f"{table.directory} is partitioned by {', '.join(table.partition_by) or 'nothing'}, which cannot be "
            "changed: give another directory"
        )
    key = key_of(table)
    if wanted.key and wanted.key != key:
        has = f"the newest row of each {', '.join(key)}" if key else "a row for each record"
        raise ConfigError(f"{table.directory} has {has}, which cannot be changed: give another directory")
    if mode == RAW:
        _check_raw(wanted)
        return _keyed(RawShape(DATE_OF in told), mode, key)
    if wanted.schema is not None:
        _evolve(table, _never_null(wanted.schema, key), say)
    added = {*OF_RECORD, DATE} if DATE_OF in told else {*OF_RECORD}
    fields = pa.schema([field for field in table.schema if field.name not in added])
    return _keyed(_json(fields, table.partition_by, wanted), mode, key)


def _check_raw(wanted: Wanted) -> None:
    for option, is_given in (("--schema", wanted.schema is not None), ("--evolve", wanted.evolve)):
        if is_given:
            raise ConfigError(f"{option} is for --mode json: raw rows have the columns of records")


def _evolve(table: Table, schema: Any, say: Callable[[str], None]) -> None:
    """Raises ConfigError, and then changes nothing."""
    if OF_RECORD.keys() & set(schema.names):
        raise ConfigError(f"the schema has a column {min(OF_RECORD.keys() & set(schema.names))!r} of the record's own")
    found = table.evolve(schema)
    if found.breaking:
        raise ConfigError(
            f"the schema does not fit {table.directory}: {'; '.join(map(str, found.breaking))}. Columns can be "
            "added, and types can get wider: give another directory"
        )
    for names, what in ((found.added, "Added"), (found.widened, "Widened")):
        if names:
            say(f"{what} {', '.join(names)} in {table.directory}")
