"""The engine, as far as it can be tested without starting it."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark.pipeline import engine as engine_module
from penstock.spark.pipeline.engine import PipelineEngine, last_words
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.project import PipelineProject
from penstock.spark.session.driver_log import LOG_LIMIT_BYTES


def test_settings_of_the_jvm(project: PipelineProject) -> None:
    text = project.spec_path.read_text()
    secret = 'penstock.kafka.sasl.password: "hunter22"\n  spark.driver.memory: "2g"\n  penstock.kafka.bootstrap'
    project.spec_path.write_text(text.replace("penstock.kafka.bootstrap", secret))
    project = PipelineProject.load(project.spec_path)
    static = PipelineEngine(project)._static()
    assert static["spark.driver.memory"] == "2g"
    assert static["spark.sql.warehouse.dir"] == project.warehouse.as_uri()
    assert str(project.metastore) in static["spark.hadoop.javax.jdo.option.ConnectionURL"]
    places = [value for name, value in static.items() if name.startswith("spark.hadoop.hive.")]
    assert len(places) == 3
    assert all(place.startswith(f"{project.state}/scratch/") for place in places), "nothing is left in /tmp"
    assert "hunter22" not in str(static), "these are seen by everybody in the list of processes"
    assert "spark.sql.catalogImplementation" not in PipelineEngine(project, persistent=False)._static()


def test_a_copied_project_does_not_write_into_the_first(project: PipelineProject, tmp_path: Path) -> None:
    engine = PipelineEngine(project)
    engine._check_place()
    project.metastore.mkdir()
    engine._check_place()
    shutil.copytree(project.root, tmp_path / "copy")
    copy = PipelineProject.find(tmp_path / "copy")
    with pytest.raises(PipelineError, match=rf"has run as {project.root} before"):
        PipelineEngine(copy)._check_place()
    PipelineEngine(copy, persistent=False)._check_place()
    shutil.rmtree(copy.metastore)
    PipelineEngine(copy)._check_place()


def test_scratch_of_the_dead_is_cleared(project: PipelineProject) -> None:
    scratch = project.state / "scratch"
    dead, alive = scratch / str(2**22 + 1), scratch / str(os.getppid())
    for directory in (dead, alive):
        directory.mkdir(parents=True)
    PipelineEngine(project)._clear_scratch()
    assert not dead.exists()
    assert alive.exists()
    assert (scratch / str(os.getpid())).exists()


def test_the_log_is_bounded(project: PipelineProject) -> None:
    engine = PipelineEngine(project)
    engine.trim_log()
    project.state.mkdir()
    with project.log_path.open("ab") as log:
        log.write(b"x")
        log.flush()
        engine.trim_log()
        assert project.log_path.stat().st_size == 1
        log.truncate(LOG_LIMIT_BYTES + 1)
        engine.trim_log()
        log.write(b"later")
    assert project.log_path.read_bytes() == b"later"


def test_without_spark_there_is_no_session(project: PipelineProject) -> None:
    with pytest.raises(PipelineError, match="Spark is not running"):
        _ = PipelineEngine(project).session
    assert not PipelineEngine(project).is_alive


def test_a_jvm_that_died_after_a_run_is_the_next_run_s_business(project: PipelineProject) -> None:
    from pyspark.errors import PySparkException

    def refuse(name: str, value: str) -> None:
        raise PySparkException("Connection refused")

    project.state.mkdir()
    engine = PipelineEngine(project)
    engine._session = SimpleNamespace(conf=SimpleNamespace(set=refuse))
    engine.poll_without_pause()
    assert "Connection refused" in project.log_path.read_text()


def test_what_libraries_log_goes_to_the_log_of_spark(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_module, "session", lambda *_, **__: SimpleNamespace(stop=lambda: None, _jvm=None))
    monkeypatch.setattr(engine_module, "_runtime_names", lambda host: frozenset())
    monkeypatch.setattr(engine_module, "compile_catalog", lambda jvm, project: None)
    monkeypatch.setattr(engine_module, "_forget_jvm", lambda host: None)
    monkeypatch.setattr(PipelineEngine, "_open_session", lambda self: None)
    monkeypatch.setattr(PipelineEngine, "is_alive", False)
    with PipelineEngine(project):
        logging.error("the JVM is gone")
    assert "the JVM is gone" in project.log_path.read_text()
    assert "the JVM is gone" not in capsys.readouterr().err
    handlers = logging.getLogger().handlers
    assert not [handler for handler in handlers if isinstance(handler, engine_module.LinesToLog)]


def test_a_handler_of_ctrl_c_outlives_the_start_of_spark(
    project: PipelineProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's raises KeyboardInterrupt, and `serve` ends after its run. After each start, so also after a restart."""

    def of_spark(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def start(*arguments: object, **options: object) -> Any:
        signal.signal(signal.SIGINT, of_spark)
        return SimpleNamespace(stop=lambda: None, _jvm=SimpleNamespace(System=SimpleNamespace(currentTimeMillis=int)))

    asked: list[int] = []

    def handler(number: int, frame: object) -> None:
        asked.append(number)

    monkeypatch.setattr(engine_module, "session", start)
    monkeypatch.setattr(engine_module, "_runtime_names", lambda host: frozenset())
    monkeypatch.setattr(engine_module, "compile_catalog", lambda jvm, project: None)
    monkeypatch.setattr(engine_module, "_forget_jvm", lambda host: None)
    monkeypatch.setattr(PipelineEngine, "_open_session", lambda self: None)
    before = signal.signal(signal.SIGINT, handler)
    try:
        with PipelineEngine(project) as engine:
            signal.raise_signal(signal.SIGINT)
            engine.restart()
            signal.raise_signal(signal.SIGINT)
        assert asked == [signal.SIGINT, signal.SIGINT]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with PipelineEngine(project):
            assert signal.getsignal(signal.SIGINT) is of_spark, "a run that nobody waits for is cancelled by Spark's"
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_spark_that_does_not_start_is_quoted(project: PipelineProject, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["/usr/bin/env: 'bash': No such file or directory\n", ""]

    def start(*arguments: object, **options: object) -> Any:
        os.write(1, said.pop(0).encode())
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited.\nmore")

    monkeypatch.setattr(engine_module, "session", start)
    with pytest.raises(PipelineError) as first:
        PipelineEngine(project).start()
    assert str(first.value) == (
        "Spark did not start: [JAVA_GATEWAY_EXITED] Java gateway process exited (the last error in "
        ".penstock/spark.log: /usr/bin/env: 'bash': No such file or directory)"
    )
    with pytest.raises(PipelineError, match=r"process exited \(its output: \.penstock/spark\.log\)"):
        PipelineEngine(project).start()


def test_last_words(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text(
        "Exception in thread main: SparkException: Could not parse Master URL\n"
        "\tat org.apache.spark.SparkContext$.create(SparkContext.scala:1)\n"
        "Caused by: java.net.BindException: in use\n"
        "\tat org.apache.spark.Main(Main.scala:1)\n"
        "\t... 12 more\n"
        "26/11/15 10:00:00 INFO ShutdownHookManager: Shutdown hook called\n\n"
    )
    assert last_words(log, 0) == "Caused by: java.net.BindException: in use"
    assert last_words(log, log.stat().st_size) == ""
