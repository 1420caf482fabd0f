"""Spark for one job of the command line: a session whose output goes to a file, and which ends with the job."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.session.driver_log import output_to, trim_log
from penstock.spark.session.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_for(
    name: str,
    log_path: Path,
    master: str | None = None,
    *,
    fast_start: bool = False,
    config: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """An existing session (of a notebook or a test) is used and kept."""
    from pyspark.sql import SparkSession

    existing = SparkSession.getActiveSession()
    if existing is not None:
        yield existing
        return
    log_path.parent.mkdir(parents=True, exist_ok=True)
    trim_log(log_path)
    with output_to(log_path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark warns about versions of other packages
        spark = session(name, master, config=config, fast_start=fast_start)
    try:
        yield spark
    finally:
        spark.stop()
