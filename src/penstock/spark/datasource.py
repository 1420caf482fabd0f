"""`spark.read.format("penstock")` and its kin: what Spark looks up by that name.

Every lookup of a data source in Spark imports this module in a process of its own. So it imports nothing but Spark's
base class; readers and writers come when they are asked for.
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

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PenstockDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        from penstock.spark.columns import source_schema
        from penstock.spark.options import to_flag

        return source_schema(to_flag("includeHeaders", self.options.get("includeHeaders", "false")))

    # Spark passes `schema` and `overwrite` by name.

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.batch_reader import PenstockBatchReader

        return PenstockBatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from penstock.spark.stream_reader import PenstockStreamReader

        return PenstockStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from penstock.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from penstock.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
