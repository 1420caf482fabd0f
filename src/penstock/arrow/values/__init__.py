"""Values of records as typed columns: `json_values.py` decodes them, `schema_text.py` has schemas as text.

It knows no topics, tables or Spark: who decodes values decides what becomes of those that do not fit.
"""

from __future__ import annotations

from penstock.arrow.values.json_values import DecodedValues, JsonValues, Misfit
from penstock.arrow.values.schema_text import parse_schema, schema_text

__all__ = ["DecodedValues", "JsonValues", "Misfit", "parse_schema", "schema_text"]
