"""The data source of the format "penstock".

Every lookup of a data source in Spark imports this module in a new process. So it imports nothing but Spark's base
class and a few lines of ours; readers and writers are imported on request. Spark pickles them by module name, but only
from the driver to its workers: no checkpoint has a module name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from penstock.spark.plain_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@plain_errors
class PenstockDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        from penstock.spark.options.known import to_flag
        from penstock.spark.source.columns import source_schema
        from penstock.spark.source.value_options import value_options

        values = value_options({name.lower(): text for name, text in self.options.items()})
        return source_schema(to_flag("includeHeaders", self.options.get("includeHeaders", "false")), values)

    # Spark passes `schema` and `overwrite` by name.

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.source.batch_reader import PenstockBatchReader

        return PenstockBatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from penstock.spark.source.stream_reader import PenstockStreamReader

        return PenstockStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from penstock.spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from penstock.spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)
