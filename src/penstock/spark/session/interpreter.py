"""The Python of Spark's workers: the driver's interpreter, with its installed PySpark.

Spark puts an archive of PySpark, `pyspark.zip`, first on the workers' PYTHONPATH. It has no bytecode, so each of the
half dozen processes of a first query compiles PySpark again: half a second each, three for the first batch. The same
PySpark is installed and compiled in site-packages. So PYSPARK_PYTHON is a program that removes the archives from the
path and executes the driver's interpreter.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from penstock.arrow.cache.files import cache_directory, write_once

_PROGRAM = """\
#!/bin/sh
# Python for Spark's workers, with the PySpark of site-packages in place of the archive that Spark puts before it.
set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
  case $entry in
    {home}/python/lib/*.zip | {home}/jars/*.jar) ;;
    *) kept=$kept${{kept:+:}}$entry ;;
  esac
done
unset IFS
PYTHONPATH=$kept exec {python} "$@"
"""


def worker_python() -> str:
    """The value of PYSPARK_PYTHON, for workers on this machine only."""
    home = _unpacked_pyspark()
    if home is None:
        return sys.executable
    text = _PROGRAM.format(home=shlex.quote(home), python=shlex.quote(sys.executable))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    return str(write_once(cache_directory() / "python" / name / "python", text, 0o755))


def _unpacked_pyspark() -> str | None:
    """The home of a Spark whose PySpark and py4j this interpreter imports from site-packages."""
    found = [find_spec("pyspark"), find_spec("py4j")]
    origins = [spec.origin for spec in found if spec is not None and spec.origin is not None]
    if len(origins) < len(found) or not all(map(os.path.isfile, origins)):  # inside an archive
        return None
    home = str(Path(origins[0]).parent)
    return home if os.environ.get("SPARK_HOME", home) == home else None
