"""`pip install 'penstock[spark]'` is all there is to do: no jar, no call to register anything.

Lines are run in a process of their own, as somebody would type them: those of the README, and others with a session
that PySpark makes by itself. The environment is this one, or with `make test-install` an empty one that the package is
installed into first.
"""

from __future__ import annotations

import os
import re
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

README_TOPIC = "greetings"
README_VALUES = ("hello", "hallo", "bonjour")

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


def run(python: Path, program: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}  # as `activate` does
    environment.pop("PYSPARK_PYTHON", None)
    environment["PYTHONUNBUFFERED"] = "1"  # else what Python prints comes after all that the JVM does
    environment["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1"  # half the time
    ran = subprocess.run(
        [python, "-c", program],
        cwd=directory,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[:4000]
    return ran


def run_with_a_plain_session(python: Path, topics: Topics, directory: Path) -> None:
    topic = topics.create(partitions=2)
    topics.fill(topic, [(b"k%d" % number, b"v%d" % number) for number in range(5)])
    program = (BATCH + STREAM + SQL).replace("SERVERS", topics.bootstrap_servers).replace("TOPIC", topic)
    values = [f"v{number}" for number in range(5)]
    expected = [str([(way, value) for value in values]) for way in ("batch", "stream", "sql")]
    ran = run(python, program, directory)
    assert ran.stdout.splitlines() == expected
    assert ran.stderr.count("set spark.python.unix.domain.socket.enabled=true") == 1


BEFORE = "import penstock.spark\n"
AFTER = BATCH.replace("source = {", "import penstock.spark\nsource = {", 1)
USED = """\
import sys
print(set(spark.range(2).rdd.map(lambda _: sys.executable).collect()) == {sys.executable})
"""


@pytest.mark.parametrize("program", [BEFORE + BATCH, AFTER], ids=["before", "after"])
def test_an_import_is_enough_if_the_environment_is_not_active(topics: Topics, tmp_path: Path, program: str) -> None:
    """As `venv/bin/python job.py`: the python3 of PATH knows neither PySpark nor Penstock."""
    topic = topics.create(partitions=2)
    topics.fill(topic, [(b"k", b"v0")])
    path = tmp_path / "path"
    path.mkdir()
    for name in ("java", "bash", "sh", "env", "dirname", "basename", "ps", "cat", "ls", "readlink", "chmod", "uname"):
        found = shutil.which(name)
        if found is not None:
            (path / name).symlink_to(found)
    (path / "python3").write_text(f'#!/bin/sh\nexec {sys._base_executable} -S -E "$@"\n')  # type: ignore[attr-defined]
    (path / "python3").chmod(0o755)
    program = (program + STREAM + USED).replace("SERVERS", topics.bootstrap_servers).replace("TOPIC", topic)
    printed = run(Path(sys.executable), program, tmp_path, PATH=str(path)).stdout.splitlines()
    assert printed == ["[('batch', 'v0')]", "[('stream', 'v0')]", "True"]


def run_lines_of_the_readme(python: Path, topics: Topics, directory: Path) -> None:
    _, _, section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Spark\n")
    blocks = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    assert len(blocks) == 2
    assert len([line for line in blocks[0].splitlines() if line]) <= 5
    topics.create(README_TOPIC, partitions=2)
    try:
        topics.fill(README_TOPIC, [(b"en", value.encode()) for value in README_VALUES])
        program = "".join(blocks)
        printed = run(python, program, directory, PENSTOCK_BOOTSTRAP_SERVERS=topics.bootstrap_servers).stdout
    finally:
        topics.admin.delete_topic(README_TOPIC)
    batch, _, rest = printed.partition("Batch: 0")
    for value in README_VALUES:
        assert f"|{value}" in batch.replace(" ", "")
        assert f"|{value}" in rest.replace(" ", "")
    assert "|en|3|" in rest.replace(" ", "")


def test_a_plain_session_knows_the_format(topics: Topics, tmp_path: Path) -> None:
    run_with_a_plain_session(Path(sys.executable), topics, tmp_path)


def test_lines_of_the_readme_print_rows(topics: Topics, tmp_path: Path) -> None:
    run_lines_of_the_readme(Path(sys.executable), topics, tmp_path)


@pytest.fixture
def empty_environment(tmp_path: Path) -> Iterator[Path]:
    """Its Python. It is large, and so does not stay."""
    directory = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    yield directory / "bin" / "python"
    shutil.rmtree(directory)


@pytest.mark.install
@pytest.mark.timeout(INSTALL_TIMEOUT_S + 2 * RUN_TIMEOUT_S)
def test_lines_in_an_empty_environment(
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
    run_lines_of_the_readme(empty_environment, topics, tmp_path)
    run_with_a_plain_session(empty_environment, topics, tmp_path)
