"""Run by the Python of an environment with an older PySpark: the rows of tables, read with Delta's own connector.

    python older_spark.py JARS OUT TABLE...

OUT gets a line for each table: a JSON list of its rows as text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from plain import plain_row  # beside this file: the environment has no package of ours


def main(jars: Path, out: Path, tables: list[str]) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f
    from pyspark.sql.types import MapType

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, sorted(jars.glob("*.jar")))))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")  # a short job
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    with out.open("w", encoding="utf-8") as told:
        told.write(json.dumps(spark.version) + "\n")
        for table in tables:
            found = spark.read.format("delta").load(table)
            maps = {field.name for field in found.schema if isinstance(field.dataType, MapType)}
            columns = [f.map_entries(name).alias(name) if name in maps else f.col(name) for name in found.columns]
            rows = [plain_row(row.asDict(recursive=True)) for row in found.select(*columns).collect()]
            told.write(json.dumps(rows) + "\n")
            told.flush()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
