"""Typed values: the options that ask for them, and the columns that they give.

The struct column `value` takes the place of the bytes, as from_json(...) AS value would: fields have a namespace of
their own, so that no field of a schema can collide with a column of the record. `valueError` has the reason why a value
does not fit, and `badValue` its bytes, so a row that does not fit loses nothing; both are null for other rows.

Files of schemas are read where the query is planned: workers get what they say. Must not know: how values are decoded.
Arrow is imported only if there is a schema: Spark looks up a data source in a new process each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock.model.errors import ConfigError
from penstock.spark.options.known import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.arrow.values.decoded import ValueDecoder

FORMAT, SCHEMA, ON_BAD = "valueFormat", "valueSchema", "onBadValue"
MESSAGE, SCHEMA_ID, REGISTRY = "valueMessage", "valueSchemaId", "schemaRegistry"
VALUE_OPTIONS: Final = (FORMAT, SCHEMA, ON_BAD, MESSAGE, SCHEMA_ID, REGISTRY)
BINARY, JSON, AVRO, PROTOBUF = "binary", "json", "avro", "protobuf"
FORMATS: Final = (JSON, AVRO, PROTOBUF)
_OF: Final = {MESSAGE: (PROTOBUF,), SCHEMA_ID: (AVRO, PROTOBUF), REGISTRY: (AVRO,)}
"""The formats of options that not all have."""
NULL, FAIL, DROP = "null", "fail", "drop"
VALUE, ERROR, BAD = "value", "valueError", "badValue"
_NEEDED: Final = {AVRO: ("fastavro", "avro"), PROTOBUF: ("google", "protobuf")}
"""By format, a module, and the extra that brings it."""
_EXAMPLES: Final = {
    JSON: f"give the fields with the option '{SCHEMA}', such as 'id long, name string'",
    AVRO: f"give a record schema with the option '{SCHEMA}', as JSON or as the path of a file",
    PROTOBUF: f"give with the option '{SCHEMA}' the path of a file that protoc --descriptor_set_out wrote",
}


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """How values are decoded."""

    schema: str
    """As text; empty if it is that of `schema_id` in the registry."""
    on_bad: str = NULL
    """What becomes of a row whose value does not fit: `null` keeps it, with its reason."""
    kind: str = JSON
    schema_id: int | None = None
    """The schema that values name in Confluent's prefix."""
    registry: str | None = None
    """Where the schemas are that values were written with."""
    descriptors: bytes = b""
    message: str = ""
    """Of Protobuf, instead of a text."""

    def decoder(self, types: list[Any] | None = None) -> ValueDecoder:
        """`types`: those of the columns, as Spark has them. Raises InvalidOption."""
        try:
            if self.kind == AVRO:
                return self._avro(types)
            if self.kind == PROTOBUF:
                from penstock.arrow.values.protobuf_values import ProtobufValues

                return ProtobufValues(self.descriptors, self.message, types, schema_id=self.schema_id)
            from penstock.arrow.values import JsonValues, parse_schema

            return JsonValues(parse_schema(self.schema), types)  # not every type has a form in JSON
        except ConfigError as error:
            raise InvalidOption(f"option '{SCHEMA}': {error}") from None
        except ModuleNotFoundError as error:
            module, extra = _NEEDED.get(self.kind, ("", ""))
            if error.name is None or error.name.partition(".")[0] != module:
                raise
            raise InvalidOption(
                f"option '{FORMAT}' is {self.kind}, and Python has no module {error.name}: on the driver and the "
                f"workers run pip install 'penstock[{extra}]'"
            ) from None

    def _avro(self, types: list[Any] | None) -> ValueDecoder:
        from penstock.arrow.values.avro_values import AvroValues

        if self.registry is None:
            return AvroValues(self.schema, types, schema_id=self.schema_id)
        from penstock.spark.source.schema_registry import registry_at

        registry = registry_at(self.registry)
        return AvroValues(self.schema, types, writer_schemas=registry.schema)

    def struct(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.decoder().fields)


def value_options(texts: Mapping[str, str]) -> ValueOptions | None:
    """None: values stay binary. `texts` are by names in lower case. Raises InvalidOption."""
    kind = texts.get(FORMAT.lower(), BINARY).strip().lower()
    if kind not in (BINARY, *FORMATS):
        known = ", ".join(FORMATS)
        raise InvalidOption(f"option '{FORMAT}' is '{texts[FORMAT.lower()]}': write {known} or {BINARY}")
    if kind == BINARY:
        for name in VALUE_OPTIONS[1:]:
            if name.lower() in texts:
                known = ", ".join(FORMATS)
                raise InvalidOption(f"option '{name}' is for typed values: give the option '{FORMAT}', too ({known})")
        return None
    on_bad = texts.get(ON_BAD.lower(), NULL).strip().lower()
    if on_bad not in (NULL, FAIL, DROP):
        raise InvalidOption(f"option '{ON_BAD}' is '{texts[ON_BAD.lower()]}': write {NULL}, {FAIL} or {DROP}")
    for name, formats in _OF.items():
        if name.lower() in texts and kind not in formats:
            raise InvalidOption(f"option '{name}' is for {FORMAT}={' or '.join(formats)}: it is {kind}")
    options = _protobuf(texts, on_bad) if kind == PROTOBUF else _textual(texts, kind, on_bad)
    options.decoder()
    return options


def _textual(texts: Mapping[str, str], kind: str, on_bad: str) -> ValueOptions:
    schema_id, registry = _schema_id(texts), texts.get(REGISTRY.lower(), "").strip() or None
    if registry is not None and not _is_url(registry):
        raise InvalidOption(  # without the value: it may have a password
            f"option '{REGISTRY}' is no URL, such as http://registry:8081 (escape / ? # in a password)"
        )
    schema = texts.get(SCHEMA.lower(), "")
    if kind == AVRO and schema.strip() and schema.strip()[0] not in '{["':
        try:
            schema = _content(schema.strip()).decode()
        except UnicodeDecodeError:
            raise InvalidOption(f"option '{SCHEMA}': {schema} is no text") from None
    if not schema.strip() and registry is not None and schema_id is not None:
        schema = _registered(registry, schema_id)
    if not schema.strip():
        more = "" if registry is None else f", or with '{SCHEMA_ID}' the number of one in the registry"
        raise InvalidOption(f"option '{FORMAT}' is {kind}: {_EXAMPLES[kind]}{more}")
    return ValueOptions(schema, on_bad, kind, schema_id, registry)


def _is_url(text: str) -> bool:
    """False also if a password ends the host too early: what is behind would be shown."""
    try:
        parts = urlsplit(text)
        is_reachable = bool(parts.hostname) and parts.port != 0  # a port that is no number raises
    except ValueError:
        return False
    behind = parts.path + parts.query + parts.fragment
    return parts.scheme in ("http", "https") and is_reachable and "@" not in behind and text.isprintable()


def _protobuf(texts: Mapping[str, str], on_bad: str) -> ValueOptions:
    path, message = texts.get(SCHEMA.lower(), "").strip(), texts.get(MESSAGE.lower(), "").strip()
    if not path:
        raise InvalidOption(f"option '{FORMAT}' is {PROTOBUF}: {_EXAMPLES[PROTOBUF]}")
    if not message:
        raise InvalidOption(
            f"option '{FORMAT}' is {PROTOBUF}: give with the option '{MESSAGE}' the full name of a message"
        )
    return ValueOptions(path, on_bad, PROTOBUF, _schema_id(texts), None, _content(path), message)


def _content(path: str) -> bytes:
    try:
        return Path(path.removeprefix("file://")).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidOption(f"option '{SCHEMA}': the file {path} cannot be read: {reason}") from None


def _schema_id(texts: Mapping[str, str]) -> int | None:
    if SCHEMA_ID.lower() not in texts:
        return None
    text = texts[SCHEMA_ID.lower()].strip()
    if not text.isdecimal() or int(text) >= 1 << 32:
        raise InvalidOption(f"option '{SCHEMA_ID}' is '{text}': give the number of a schema")
    return int(text)


def _registered(registry: str, schema_id: int) -> str:
    from penstock.arrow.values.prefix import NotThere
    from penstock.spark.source.schema_registry import registry_at

    try:
        return registry_at(registry).schema(schema_id)
    except NotThere as error:
        raise InvalidOption(f"option '{SCHEMA_ID}' is {schema_id}: {error}") from None
