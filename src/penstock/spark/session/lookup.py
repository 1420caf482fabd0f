"""Lets a plain Spark session find the formats "penstock" and "penstock-table", if its Python would not.

Spark looks for data sources with PYSPARK_DRIVER_PYTHON, else PYSPARK_PYTHON, else the `python3` on PATH. If a program
is started as `venv/bin/python job.py`, that is another Python without this package, and Spark says
DATA_SOURCE_NOT_FOUND. So importing `penstock.spark` sets PYSPARK_PYTHON in that case, for a session that is created
later. For one that runs already, it registers the formats. A Python that somebody has chosen is never replaced.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from typing import Any

from penstock.spark.session.interpreter import worker_python

PYTHON, DRIVER_PYTHON = "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"
CHOSEN_BY = (PYTHON, DRIVER_PYTHON, "PYSPARK_GATEWAY_PORT")  # the last one: `spark-submit` has started this program

_from_import: str | None = None


def use_this_python() -> None:
    """Called on import. Imports nothing of Spark: workers import this, too."""
    global _from_import
    if any(name in os.environ for name in CHOSEN_BY) or _is_on_path():
        return
    contexts = sys.modules.get("pyspark.core.context")
    running = contexts.SparkContext._active_spark_context if contexts is not None else None
    if running is not None:
        _register(running)
        return
    _from_import = os.environ[PYTHON] = sys.executable


def choose_worker_python() -> str:
    """Sets PYSPARK_PYTHON for workers on this machine, unless somebody has chosen one."""
    if os.environ.get(PYTHON) in (None, _from_import):
        os.environ[PYTHON] = worker_python()
    return os.environ[PYTHON]


def _is_on_path() -> bool:
    """Whether `python3` is this Python. Those of virtual environments are links to one program, so places count."""
    found = shutil.which("python3")
    return found is not None and os.path.realpath(os.path.dirname(found)) == os.path.realpath(
        os.path.dirname(sys.executable)
    )


def _register(context: Any) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if not str(context.master).startswith("local"):
        theirs = shutil.which("python3") or "python3"
        warnings.warn(
            f"Spark looks for the format penstock with {theirs}, which is not this Python ({sys.executable}): "
            f"import penstock.spark before the session is created, or set {PYTHON}",
            stacklevel=4,
        )
        return
    from pyspark_penstock import DefaultSource as Topics
    from pyspark_penstock_table import DefaultSource as Tables

    session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    context.pythonExec = sys.executable  # of sources, sinks and Python functions from now on
    for source in (Topics, Tables):
        try:
            session.dataSource.register(source)
        except PySparkException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                warnings.warn(f"the running session does not take the format {source.name()}: {error}", stacklevel=4)
