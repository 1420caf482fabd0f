"""Values of records as typed columns.

    json_values.py   decodes JSON, and says of each value that does not fit why
    json_columns.py  does the plain ones quickly, by loops that numba compiles (kernels.py)
    avro_values.py   decodes Avro records, one by one
    decoded.py       what decoding gives; prefix.py: the number of a schema before a value
    schema_text.py   has schemas as text

It knows no topics, tables or Spark: who decodes values decides what becomes of those that do not fit.
"""

from __future__ import annotations

from penstock.arrow.cache.warmup import kernels_of
from penstock.arrow.values.decoded import DecodedValues, Misfit
from penstock.arrow.values.json_values import JsonValues
from penstock.arrow.values.schema_text import parse_schema, schema_text

__all__ = ["DecodedValues", "JsonValues", "Misfit", "parse_schema", "schema_text", "warm_up"]


def warm_up() -> None:
    """Compiles the kernel, or loads it from the cache, by importing its module."""
    kernels_of("values")
