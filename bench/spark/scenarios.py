"""The measurements of Spark, as a table. Only data."""

from __future__ import annotations

from bench.scenarios import Compare, Scenario, SparkDelivery, SparkOverhead, SparkRead, SparkTyped, SparkWrite, Target

SOURCE = "Source: a stream from a topic of two partitions"
SINK = "Sink: a batch write to a topic of two partitions"
TYPED = "Typed values: a stream of JSON objects from a topic of two partitions, all fields to noop"
OVERHEAD = "Micro-batches"
DELIVERY = "Exactly once: a stream from topic to topic, two partitions each"


def _read(name: str, title: str, load: SparkRead, at_least: float) -> Scenario:
    return Scenario(name, SOURCE, title, load, targets=(Target("rows_s", Compare.RATIO_AT_LEAST, at_least),))


def _delivery(name: str, title: str, load: SparkDelivery, *targets: Target) -> Scenario:
    return Scenario(name, DELIVERY, title, load, targets=targets, sides=("exactly once", "at least once"))


AT_1_S = Target("rows_s", Compare.RATIO_AT_LEAST, 0.7)
"""Of batches that take about a second with at-least-once delivery."""

SCENARIOS = (
    _read("spark-100b-noop", "100 B to noop", SparkRead(100, 8_000_000, 1_000_000, "noop"), 1.3),
    _read("spark-1k-noop", "1 KB to noop", SparkRead(1000, 2_400_000, 300_000, "noop"), 1.3),
    _read("spark-100b-parquet", "100 B to Parquet", SparkRead(100, 8_000_000, 1_000_000, "parquet"), 1.0),
    _read("spark-1k-parquet", "1 KB to Parquet", SparkRead(1000, 2_400_000, 300_000, "parquet"), 1.0),
    Scenario(
        "typed-json",
        TYPED,
        "1 KB, ten fields",
        SparkTyped(1_200_000, 150_000),
        targets=(Target("rows_s", Compare.RATIO_AT_LEAST, 1.5),),
        sides=("valueSchema", "from_json"),
    ),
    Scenario("spark-sink-100b", SINK, "100 B", SparkWrite(100, 2_000_000)),
    Scenario("spark-sink-1k", SINK, "1 KB", SparkWrite(1000, 600_000)),
    Scenario("spark-overhead", OVERHEAD, "settings of `penstock.spark.session()`", SparkOverhead("penstock")),
    Scenario("spark-overhead-stock", OVERHEAD, "Spark's own settings", SparkOverhead("stock")),
    _delivery("spark-delivery-100b", "100 B, batches of about 1 s", SparkDelivery(100, 10_000_000, 1_000_000), AT_1_S),
    _delivery("spark-delivery-1k", "1 KB, batches of about 1 s", SparkDelivery(1000, 2_000_000, 200_000), AT_1_S),
    _delivery("spark-delivery-few", "batches of 2 rows", SparkDelivery(100, 120, 2)),
)
