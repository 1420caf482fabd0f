"""Rows as they are in the topic: key, value, headers, offset, timestamp. Every record fits."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.arrow.decode import KAFKA_SCHEMA
from penstock.topic_tables.shapes import DATE, Shaped, dates_of

NAMES = ("partition", "offset", "timestamp", "timestampType", "key", "value", "headers")


class RawShape:
    def __init__(self, has_date: bool) -> None:
        self.columns: Any = pa.schema([KAFKA_SCHEMA.field(name) for name in NAMES])
        self.has_date = has_date
        self.schema: Any = self.columns.append(pa.field(DATE, pa.date32())) if has_date else self.columns

    def shape(self, records: Any) -> Shaped:
        if not self.has_date:
            return Shaped(records)
        columns = [*records.columns, dates_of(records.column("timestamp"))]
        return Shaped(pa.RecordBatch.from_arrays(columns, schema=self.schema))
