"""Spark for one job of the command line: a session whose output goes to a file, ended with the job.

What the JVM and its Python workers print is of no use on a terminal until something fails; then the file is named.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_LIMIT_BYTES = 64 << 20


@contextmanager
def spark_for(
    name: str,
    log_path: Path,
    master: str | None = None,
    *,
    fast_start: bool = False,
    config: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Whoever has a session already (a notebook, a test) keeps it."""
    from pyspark.sql import SparkSession

    existing = SparkSession.getActiveSession()
    if existing is not None:
        yield existing
        return
    log_path.parent.mkdir(parents=True, exist_ok=True)
    if log_path.exists() and log_path.stat().st_size > LOG_LIMIT_BYTES:
        os.truncate(log_path, 0)
    with _output_to(log_path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PySpark, about versions of others
        spark = session(name, master, config=config, fast_start=fast_start)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """A process started meanwhile has the file as its standard output and error, for good."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(number, os.dup(number)) for number in (1, 2)]
    try:
        for number, _ in saved:
            os.dup2(log, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in saved:
            os.dup2(copy, number)
            os.close(copy)
        os.close(log)
