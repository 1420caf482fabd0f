"""The start of workers: the interpreter, the cache of compiled code."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from penstock.arrow.cache import warmup
from penstock.arrow.cache.files import cache_directory, write_once
from penstock.arrow.cache.warmup import WarmUp, place_numba_cache
from penstock.spark.session.interpreter import worker_python

SPARK_HOME = Path(pyspark.__file__).parent
ARCHIVE = SPARK_HOME / "python" / "lib" / "pyspark.zip"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.delenv("SPARK_HOME", raising=False)


def said_by(python: str, code: str, path: list[Path]) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    ran = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_workers_import_the_pyspark_of_site_packages(tmp_path: Path) -> None:
    own = tmp_path / "with space"
    path = [ARCHIVE, *ARCHIVE.parent.glob("py4j*.zip"), *SPARK_HOME.glob("jars/spark-core*.jar"), own]
    assert said_by(sys.executable, "import pyspark; print(pyspark.__file__)", path).startswith(str(ARCHIVE))
    code = "import sys, pyspark; print(pyspark.__file__, sys.executable, *sys.path, sep='\\n')"
    origin, executable, *found = said_by(worker_python(), code, path).splitlines()
    assert (origin, executable) == (pyspark.__file__, sys.executable)
    assert str(own) in found
    assert not {str(entry) for entry in path if entry != own} & set(found)


def test_arguments_reach_the_interpreter(tmp_path: Path) -> None:
    ran = subprocess.run(
        [worker_python(), "-c", "import sys; print(sys.argv[1:])", "a b", "*", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "['a b', '*', '']\n"


def test_the_python_of_another_spark_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert worker_python() == sys.executable


def test_there_is_still_no_bytecode_in_the_archive() -> None:
    """When PySpark brings some, `penstock.spark.interpreter` has done its duty."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".pyc")]


def test_a_home_that_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = cache_directory()
    assert directory.parent == tmp_path
    assert directory.stat().st_mode & 0o077 == 0


def test_a_file_of_the_cache_is_written_once(tmp_path: Path) -> None:
    path = write_once(tmp_path / "a" / "b", "text", 0o755)
    first = path.stat()
    assert write_once(path, "text", 0o755).stat().st_ino == first.st_ino
    assert write_once(path, "other", 0o755).read_text() == "other"
    assert [entry.name for entry in path.parent.iterdir()] == ["b"]


def test_numba_keeps_its_cache_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert place_numba_cache() == tmp_path / "cache" / "penstock" / "numba"
    assert os.environ["NUMBA_CACHE_DIR"] == str(tmp_path / "cache" / "penstock" / "numba")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/elsewhere")
    assert place_numba_cache() == Path("/elsewhere")


def test_what_is_compiled_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("subprocess.Popen", lambda *arguments, **_: started.append(arguments))
    for package in warmup.COMPILED_PACKAGES:
        assert not warmup.is_warm()
        with warmup.compiled_once(package):
            pass
    assert warmup.is_warm()
    WarmUp().wait()
    assert started == []


def test_changed_code_is_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(warmup, "__file__", str(tmp_path / "cache" / "warmup.py"))
    monkeypatch.setattr(warmup, "COMPILED_PACKAGES", ("kernels",))
    source = tmp_path / "kernels" / "loops.py"
    source.parent.mkdir()
    source.write_text("one = 1\n")
    before = warmup._mark("kernels")
    assert warmup._mark("kernels") == before
    source.write_text("three = 3\n")
    assert warmup._mark("kernels") != before


COMPILING = """
import sys, time
from penstock.arrow.cache import warmup

with warmup.compiled_once("decode"):
    print(time.monotonic(), warmup._mark("decode").exists())
    time.sleep(0.3)
    print(time.monotonic())
"""


def test_one_worker_compiles_and_the_others_wait() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    workers = [
        subprocess.Popen([sys.executable, "-c", COMPILING], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = sorted(worker.communicate(timeout=200)[0].split() for worker in workers)
    assert [worker.returncode for worker in workers] == [0, 0]
    (began, was_compiled, ended), (began_later, was_compiled_later, _) = told
    assert (was_compiled, was_compiled_later) == ("False", "True")
    assert float(began) < float(ended) <= float(began_later)


def test_a_worker_that_dies_while_it_compiles_leaves_it_to_the_next() -> None:
    with pytest.raises(ZeroDivisionError), warmup.compiled_once("decode"):
        _ = 1 / 0
    assert not warmup._mark("decode").exists()
    with warmup.compiled_once("decode"):
        assert not warmup._mark("decode").exists()
    assert warmup._mark("decode").exists()


def test_without_a_place_for_the_cache_each_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    with warmup.compiled_once("decode"):
        pass
    assert not warmup.is_warm()


def test_the_cache_of_a_read_only_image_is_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    image = tmp_path / "image"
    (image / "decode_1").mkdir(parents=True)
    (image / "decode_1" / "walk.nbi").write_text("compiled")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(image))
    monkeypatch.setattr(warmup.os, "access", lambda path, mode: Path(path) != image)
    copy = place_numba_cache()
    assert copy.parent == cache_directory()
    assert (copy / "decode_1" / "walk.nbi").read_text() == "compiled"
    (copy / "decode_1" / "walk.nbi").write_text("newer")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(image))
    assert place_numba_cache() == copy
    assert (copy / "decode_1" / "walk.nbi").read_text() == "newer"
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


def test_a_warm_up_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(warmup, "__name__", "penstock.arrow.cache.no_such_module")
    with caplog.at_level(logging.WARNING):
        WarmUp().wait()
    (record,) = caplog.records
    assert "each Spark worker compiles for itself" in record.getMessage()
    assert "no_such_module" in record.getMessage()
