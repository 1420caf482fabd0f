"""Rows from JSON values (`arrow.values`): an object's fields become columns of a schema.

A value that does not fit is no row. Next to the fields there are columns of the record: `_partition`, `_offset`,
`_timestamp`, `_key`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.decode import KAFKA_SCHEMA
from penstock.arrow.values import JsonValues, Misfit
from penstock.model.errors import ConfigError
from penstock.topic_tables.shapes import DATE, Shaped, dates_of

OF_RECORD: Final = {"_partition": "partition", "_offset": "offset", "_timestamp": "timestamp", "_key": "key"}
MAX_PARTITION_BYTES = 200
"""Of a string to partition by, as a part of a file name."""
_NEEDED = ("partition", "offset", "timestamp", "key", "value", "headers")


class JsonShape:
    """`fields`: the schema of the objects, in stored types."""

    def __init__(self, fields: Any, partition_by: Sequence[str] = ()) -> None:
        taken = sorted(OF_RECORD.keys() & set(fields.names))
        if taken:
            raise ConfigError(f"the schema has a column {taken[0]!r}, which the table has for the record's own")
        self.has_date = DATE in partition_by and DATE not in fields.names
        self._partition_strings = {
            index: field
            for index, field in enumerate(fields)
            if field.name in partition_by and field.type == pa.string()
        }
        self.columns: Any = pa.schema([KAFKA_SCHEMA.field(name) for name in _NEEDED])
        of_record = [pa.field(name, KAFKA_SCHEMA.field(source).type) for name, source in OF_RECORD.items()]
        dates = [pa.field(DATE, pa.date32())] if self.has_date else []
        self.schema: Any = pa.schema([*fields, *of_record, *dates])
        self._values = JsonValues(fields)

    def shape(self, records: Any) -> Shaped:
        columns, misfits = self._values.decode_array(records.column("value"))
        misfits = sorted([*misfits, *self._no_partitions(columns)])
        if misfits:
            fits = [True] * records.num_rows
            for misfit in misfits:
                fits[misfit.at] = False
            chosen = pa.array(fits)
            records = records.filter(chosen)
            columns = [column.filter(chosen) for column in columns]
        of_record = [records.column(source) for source in OF_RECORD.values()]
        dates = [dates_of(records.column("timestamp"))] if self.has_date else []
        return Shaped(pa.RecordBatch.from_arrays([*columns, *of_record, *dates], schema=self.schema), misfits)

    def _no_partitions(self, columns: Sequence[Any]) -> list[Misfit]:
        """Strings that cannot be the value of a partition."""
        found: dict[int, Misfit] = {}
        for index, field in self._partition_strings.items():
            lengths = pc.binary_length(columns[index])
            for at in pc.indices_nonzero(pc.greater(lengths, MAX_PARTITION_BYTES // 3)).to_pylist():
                text = columns[index][at].as_py()
                if len(quote(text)) > MAX_PARTITION_BYTES:
                    found[at] = Misfit(at, f"field {field.name!r} is too long to partition by: {text[:40]}...")
            if not field.nullable:
                for at in pc.indices_nonzero(pc.equal(lengths, 0)).to_pylist():
                    found[at] = Misfit(at, f"field {field.name!r} is empty, which as a partition is null")
        return list(found.values())
