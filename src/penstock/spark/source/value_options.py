"""Typed values: the options that ask for them, and the columns that they give.

The struct column `value` takes the place of the bytes, as from_json(...) AS value would: fields have a namespace of
their own, so that no field of a schema can collide with a column of the record. `valueError` has the reason why a value
does not fit, and `badValue` its bytes, so a row that does not fit loses nothing; both are null for other rows.

Must not know: how values are decoded. Arrow is imported only if there is a schema: Spark looks up a data source in a
new process each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.model.errors import ConfigError
from penstock.spark.options.known import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT, SCHEMA, ON_BAD = "valueFormat", "valueSchema", "onBadValue"
VALUE_OPTIONS: Final = (FORMAT, SCHEMA, ON_BAD)
BINARY, JSON = "binary", "json"
NULL, FAIL, DROP = "null", "fail", "drop"
VALUE, ERROR, BAD = "value", "valueError", "badValue"


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """How values are decoded."""

    schema: str
    """As text."""
    on_bad: str = NULL
    """What becomes of a row whose value does not fit: `null` keeps it, with its reason."""

    def fields(self) -> Any:
        """The schema as Arrow has it. Raises InvalidOption."""
        from penstock.arrow.values import JsonValues, parse_schema

        try:
            fields = parse_schema(self.schema)
            JsonValues(fields)  # not every type has a form in JSON
        except ConfigError as error:
            raise InvalidOption(f"option '{SCHEMA}': {error}") from None
        return fields

    def struct(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.fields())


def value_options(texts: Mapping[str, str]) -> ValueOptions | None:
    """None: values stay binary. `texts` are by names in lower case. Raises InvalidOption."""
    kind = texts.get(FORMAT.lower(), BINARY).strip().lower()
    if kind not in (BINARY, JSON):
        raise InvalidOption(f"option '{FORMAT}' is '{texts[FORMAT.lower()]}': write {JSON} or {BINARY}")
    schema = texts.get(SCHEMA.lower(), "")
    if kind == BINARY:
        for name in (SCHEMA, ON_BAD):
            if name.lower() in texts:
                raise InvalidOption(f"option '{name}' is for typed values: give the option '{FORMAT}', too ({JSON})")
        return None
    if not schema.strip():
        raise InvalidOption(
            f"option '{FORMAT}' is {kind}: give the fields with the option '{SCHEMA}', such as 'id long, name string'"
        )
    on_bad = texts.get(ON_BAD.lower(), NULL).strip().lower()
    if on_bad not in (NULL, FAIL, DROP):
        raise InvalidOption(f"option '{ON_BAD}' is '{texts[ON_BAD.lower()]}': write {NULL}, {FAIL} or {DROP}")
    options = ValueOptions(schema, on_bad)
    options.fields()
    return options
