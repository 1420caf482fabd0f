"""Makes Spark find the format "penstock": it looks for a `DefaultSource` in every package named pyspark_*."""

from penstock.spark.datasource import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
