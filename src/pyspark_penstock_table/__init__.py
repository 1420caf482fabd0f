"""Makes Spark find the format "penstock-table": it looks for a `DefaultSource` in every package named pyspark_*."""

from penstock.spark.tables.datasource import TableDataSource as DefaultSource

__all__ = ["DefaultSource"]
