"""Who reads tables: each gives the rows of several directories as text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.brokers import WORK
from bench.elsewhere.plain import plain_row
from bench.maven import fetch_jars
from penstock.model.errors import PenstockError
from penstock.spark.session.java import find_java
from penstock.tables import Table

HERE = Path(__file__).resolve().parent
OLDER = "3.5"
TIMEOUT_S = 900
LAST_LINES = 15

Rows = list[str]
Reader = Callable[[Sequence[Path]], Iterator[Rows]]


class ReaderUnavailable(RuntimeError):
    """It cannot be had on this machine."""


def by_penstock(directory: Path) -> Rows:
    return [plain_row(row) for batch in Table.open(directory).scan() for row in batch.to_pylist()]


def by_polars(directory: Path) -> Rows:
    import polars as pl

    maps = {field.name for field in Table.open(directory).schema if pa.types.is_map(field.type)}

    def told(row: dict[str, Any]) -> str:
        """It gives maps as dictionaries, which structs are, too."""
        return plain_row({name: list(value.items()) if name in maps else value for name, value in row.items()})

    return [told(row) for row in pl.scan_delta(str(directory)).collect().to_dicts()]


def by_duckdb(directory: Path) -> Rows:
    import duckdb
    from deltalake import DeltaTable

    given = DeltaTable(directory).to_pyarrow_dataset()  # found by name in the query
    found = duckdb.sql("select * from given").to_arrow_table() if given is not None else None
    return [plain_row(row) for row in found.to_pylist()] if found is not None else []


def each(read: Callable[[Path], Rows]) -> Reader:
    return lambda directories: (read(directory) for directory in directories)


def present() -> Mapping[str, Reader]:
    """Those that are in this environment."""
    return {f"Polars {version('polars')}": each(by_polars), f"DuckDB {version('duckdb')}": each(by_duckdb)}


class OlderSpark:
    """Spark 3.5 in an environment of its own, made once. Raises ReaderUnavailable, JarsUnavailable."""

    def __init__(self) -> None:
        self._jars = fetch_jars(HERE / "pom.xml", WORK / "delta-jars", "Delta's connector for Spark")
        try:
            self._java = find_java()
        except PenstockError as error:
            raise ReaderUnavailable(str(error)) from error
        self._python = _environment(WORK / f"spark-{OLDER}")
        self.version = ""

    def __call__(self, directories: Sequence[Path]) -> Iterator[Rows]:
        out = directories[0].parent / "older-spark.out"
        command = [str(self._python), str(HERE / "older_spark.py"), str(self._jars), str(out)]
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
        variables |= {"TZ": "UTC", "JAVA_HOME": str(self._java.spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
        variables.pop("PYTHONPATH", None)
        run = subprocess.run(
            [*command, *map(str, directories)],
            env=variables,
            cwd=directories[0].parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if run.returncode:
            raise ReaderUnavailable(f"Spark {OLDER} did not read the tables:\n{_end(run.stdout)}")
        told, *tables = out.read_text(encoding="utf-8").splitlines()
        self.version = json.loads(told)
        yield from map(json.loads, tables)


def _environment(place: Path) -> Path:
    """Its Python."""
    python = place / "bin" / "python"
    if (place / ".complete").exists():
        return python
    print(f"installing PySpark {OLDER} from PyPI (300 MB) into {place} ...", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"pyspark=={OLDER}.*"],
    ):
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode:
            raise ReaderUnavailable(f"PySpark {OLDER} cannot be installed from PyPI:\n{_end(run.stdout)}")
    (place / ".complete").touch()
    return python


def _end(text: str) -> str:
    return "\n".join(text.splitlines()[-LAST_LINES:])
