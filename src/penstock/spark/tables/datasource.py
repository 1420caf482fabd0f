"""The data source of the format "penstock-table". As every lookup imports it, it imports next to nothing."""

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

FORMAT = "penstock-table"


@plain_errors
class TableDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from penstock.spark.tables.reading import table_schema

        return table_schema(self.options)

    # Spark passes `schema` and `overwrite` by name.

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.tables.reading import TableReader

        return TableReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from penstock.spark.tables.streaming import TableStreamReader

        return TableStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from penstock.spark.tables.writing import TableWriter

        return TableWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from penstock.spark.tables.writing import TableStreamWriter

        return TableStreamWriter(self.options, schema, overwrite)
