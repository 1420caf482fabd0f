"""The findings of `penstock doctor` about Spark: whether PySpark is installed, and whether a session would start.

It does not import PySpark or start a JVM: both take seconds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from penstock.cli.doctor.command import Diagnosis

SUPPORTED = (4, 3)
INSTALL = "Install it: pip install 'penstock[spark]'."

MISSING = {
    "pyarrow": Diagnosis("problem", "spark", "pyarrow is missing: the source and the sink need it", INSTALL),
    "numba": Diagnosis("warning", "spark", "numba is missing: source and sink run in plain Python, slowly", INSTALL),
    "protobuf": Diagnosis("warning", "spark", "protobuf is missing: pipelines and transformWithState need it", INSTALL),
}


def spark() -> Iterator[Diagnosis]:
    installed = _version("pyspark")
    if installed is None:
        yield Diagnosis("info", "spark", "not installed (pip install 'penstock[spark]')")
        return
    yield _packages(installed)
    yield from (finding for name, finding in MISSING.items() if _version(name) is None)
    yield _java()
    if _version("numba") is not None:
        yield _compiled_code()


def _packages(installed: str) -> Diagnosis:
    others = (f"{name} {found}" for name in MISSING if (found := _version(name)) is not None)
    sentence = ", ".join([f"PySpark {installed}", *others])
    numbers = tuple(map(int, re.findall(r"\d+", installed)[:2]))
    if numbers != SUPPORTED:
        wanted = ".".join(map(str, SUPPORTED))
        return Diagnosis("warning", "spark", sentence, f"Tested with PySpark {wanted}. {INSTALL}")
    return Diagnosis("ok", "spark", sentence)


def _java() -> Diagnosis:
    from penstock.spark.session.java import JavaNotFound, find_java

    try:
        java = find_java()
    except JavaNotFound as error:
        return Diagnosis("problem", "spark", str(error))
    return Diagnosis("ok", "spark", f"Java {java.version} in {java.home} (from {java.source})")


def _compiled_code() -> Diagnosis:
    from penstock.arrow.cache.warmup import is_warm, numba_cache

    place = numba_cache()
    ground = next(one for one in (place, *place.parents) if one.exists())
    if not os.access(ground, os.W_OK | os.X_OK):
        advice = (
            "Each Spark worker compiles the code again, for some seconds: set NUMBA_CACHE_DIR to a writable directory."
        )
        return Diagnosis("warning", "spark", f"compiled code cannot be kept in {place}", advice)
    if is_warm():
        return Diagnosis("ok", "spark", f"compiled code is in {place}")
    return Diagnosis(
        "ok",
        "spark",
        f"the first session or worker compiles some code, for some seconds, and keeps it in {place}",
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
