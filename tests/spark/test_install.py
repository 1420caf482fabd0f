"""`pip install 'penstock[spark]'` is all there is to do: no jar, no call to register anything.

The five lines are run in a process of their own with a plain PySpark session, as somebody would type them. The
environment is this one, or with `make test-install` an empty one that the package is installed into first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from spark_topics import Topics

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 240
INSTALL_TIMEOUT_S = 900

BATCH = """\
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
source = {"kafka.bootstrap.servers": "SERVERS", "subscribe": "TOPIC", "startingOffsets": "earliest"}
rows = spark.read.format("penstock").options(**source).load().selectExpr("'batch'", "string(value)")
print(sorted(map(tuple, rows.collect())))
"""

STREAM = """\
stream = spark.readStream.format("penstock").options(**source).load().selectExpr("'stream'", "string(value)")
query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
query.awaitTermination()
print(sorted(map(tuple, spark.table("seen").collect())))
"""

SQL = """\
spark.sql("CREATE TEMPORARY VIEW events USING penstock OPTIONS ("
          "'kafka.bootstrap.servers' 'SERVERS', subscribe 'TOPIC')")
print(sorted(map(tuple, spark.sql("SELECT 'sql', string(value) FROM events").collect())))
"""


def run_five_lines(python: Path, topics: Topics, directory: Path) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, [(b"k%d" % number, b"v%d" % number) for number in range(5)])
    program = (BATCH + STREAM + SQL).replace("SERVERS", topics.bootstrap_servers).replace("TOPIC", topic)
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}  # as `activate` does
    environment.pop("PYSPARK_PYTHON", None)
    environment["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1"  # half the time
    ran = subprocess.run(
        [python, "-c", program],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[:4000]
    values = [f"v{number}" for number in range(5)]
    assert ran.stdout.splitlines() == [str([(way, value) for value in values]) for way in ("batch", "stream", "sql")]


def test_five_lines_print_rows(topics: Topics, tmp_path: Path) -> None:
    run_five_lines(Path(sys.executable), topics, tmp_path)


@pytest.fixture
def empty_environment(tmp_path: Path) -> Iterator[Path]:
    """Its Python. It is large, and so does not stay."""
    directory = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    yield directory / "bin" / "python"
    shutil.rmtree(directory)


@pytest.mark.install
@pytest.mark.timeout(INSTALL_TIMEOUT_S + RUN_TIMEOUT_S)
def test_five_lines_in_an_empty_environment(
    topics: Topics, tmp_path: Path, empty_environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    checkout = tmp_path / "checkout"  # a build writes into it
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, checkout)
    install = f"-m pip install --quiet --disable-pip-version-check -c {checkout}/constraints.txt {checkout}[spark]"
    subprocess.run([empty_environment, *install.split()], check=True, timeout=INSTALL_TIMEOUT_S)
    run_five_lines(empty_environment, topics, tmp_path)
