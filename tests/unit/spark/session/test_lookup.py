"""The Python with which a plain session looks for the format. No Spark is started here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.core.context import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.spark.session import lookup
from penstock.spark.session.interpreter import worker_python
from penstock.spark.session.lookup import choose_worker_python, use_this_python
from pyspark_penstock import DefaultSource as Topics
from pyspark_penstock_table import DefaultSource as Tables


@pytest.fixture(autouse=True)
def not_active(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As in `venv/bin/python job.py`: the python3 of PATH is another one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "python3").chmod(0o755)
    for name in lookup.CHOSEN_BY:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(lookup, "_from_import", None)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    yield
    os.environ.pop(lookup.PYTHON, None)


def test_a_later_session_gets_this_python() -> None:
    use_this_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_session_still_gives_workers_their_faster_start() -> None:
    use_this_python()
    assert choose_worker_python() == os.environ["PYSPARK_PYTHON"] == worker_python()
    os.environ["PYSPARK_PYTHON"] = "/usr/bin/another"
    assert choose_worker_python() == "/usr/bin/another"


def test_what_was_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in lookup.CHOSEN_BY:
        with monkeypatch.context() as chosen:
            chosen.setenv(name, "/usr/bin/another")
            use_this_python()
            assert os.environ[name] == "/usr/bin/another"
            assert name == "PYSPARK_PYTHON" or "PYSPARK_PYTHON" not in os.environ


def test_in_an_active_environment_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    use_this_python()
    assert "PYSPARK_PYTHON" not in os.environ


class Session:
    """One that somebody else has made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, master: str) -> None:
        self.registered: list[object] = []
        self.refusal: str | None = None
        self.dataSource = self
        self.context = SimpleNamespace(master=master, pythonExec="python3")
        monkeypatch.setattr(SparkContext, "_active_spark_context", self.context)
        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: self)

    def register(self, source: object) -> None:
        if self.refusal is not None:
            raise AnalysisException("no", errorClass=self.refusal, messageParameters={})
        self.registered.append(source)


def test_a_running_session_is_given_the_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(monkeypatch, "local[2]")
    use_this_python()
    assert session.registered == [Topics, Tables]
    assert session.context.pythonExec == sys.executable
    assert "PYSPARK_PYTHON" not in os.environ, "it would be too late"


def test_a_refusal_is_a_warning_and_knowing_it_already_is_none(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    session: Any = Session(monkeypatch, "local[2]")
    monkeypatch.setattr(AnalysisException, "getCondition", lambda error: session.refusal)
    session.refusal = "DATA_SOURCE_ALREADY_EXISTS"
    use_this_python()
    assert [str(one.message) for one in recwarn] == []
    session.refusal = "ANOTHER"
    with pytest.warns(UserWarning, match="does not take the format penstock"):
        use_this_python()


def test_a_running_session_of_a_cluster_cannot_be_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(monkeypatch, "spark://host:7077")
    with pytest.warns(UserWarning, match=r"import penstock\.spark before the session is created, or set PY"):
        use_this_python()
    assert session.registered == []
    assert session.context.pythonExec == "python3"


def test_the_import_does_it_and_imports_no_spark() -> None:
    code = "import os, sys, penstock.spark; print(os.environ['PYSPARK_PYTHON'], 'pyspark' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{sys.executable} False\n"
