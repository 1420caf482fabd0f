"""The settings of a session, and what refuses to become one. No Spark is started here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from penstock.model.errors import ConfigError
from penstock.spark import config_for, session
from penstock.spark.session import session as session_module
from penstock.spark.session.session import _adjust, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = "spark.sql.shuffle.partitions"
OPTIONS = "spark.driver.extraJavaOptions"


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[*]", True), ("local[2,4]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_what_is_local(master: str, local: bool) -> None:
    assert is_local(master) is local


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[5,4]", 5), ("local[*,4]", len(os.sched_getaffinity(0)))],
)
def test_as_many_shuffle_partitions_as_cores(master: str, cores: int) -> None:
    assert config_for(master)[PARTITIONS] == str(cores)


def test_the_default_retries_tasks() -> None:
    assert config_for()["spark.master"] == "local[*,4]"


def test_a_cluster_keeps_its_own_files_and_partitions() -> None:
    settings = config_for("spark://host:7077")
    assert settings["spark.master"] == "spark://host:7077"
    assert not {PARTITIONS, "spark.sql.streaming.checkpointFileManagerClass"} & settings.keys()
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"


def test_a_fast_start_is_asked_for() -> None:
    assert "TieredStopAtLevel" not in config_for()[OPTIONS]
    assert "-XX:TieredStopAtLevel=1" in config_for(fast_start=True)[OPTIONS].split()


def test_the_file_that_makes_spark_quiet_exists() -> None:
    (option,) = config_for()[OPTIONS].split()
    assert Path(option.partition("=file:")[2]).is_file()


def test_a_cluster_logs_as_it_does() -> None:
    assert OPTIONS not in config_for("spark://host:7077")
    assert config_for("yarn", fast_start=True)[OPTIONS] == "-XX:TieredStopAtLevel=1"


def test_plans_do_not_show_keys_and_logins() -> None:
    pattern = config_for()["spark.sql.redaction.options.regex"]
    for name in ("url", "kafka.sasl.jaas.config", "kafka.ssl.keystore.key", "kafka.ssl.key.pem"):
        assert re.search(pattern, name), name
    assert not re.search(pattern, "subscribe")


def test_secrets_are_not_on_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    started: list[dict[str, str]] = []
    asked: list[dict[str, str]] = []

    class Enough(Exception):
        pass

    class Builder:
        def config(self, map: dict[str, str]) -> Builder:  # noqa: A002
            asked.append(map)
            raise Enough

    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr(session_module, "_prepare", lambda *_: None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda conf: started.append(dict(conf.getAll())))
    secrets = {"spark.hadoop.fs.account.key": "hunter22"}
    with pytest.raises(Enough):
        session(master="local[1]", config={"spark.a": "b"}, secrets=secrets)
    assert started[0]["spark.a"] == asked[0]["spark.a"] == "b"
    assert "hunter22" not in str(started)
    assert asked[0]["spark.hadoop.fs.account.key"] == "hunter22"
    with pytest.raises(Enough):
        session(master="local[1]")
    assert len(started) == 1, "without secrets as ever"


class OthersSession:
    """Made by somebody else, with nothing set. As much of a session as is asked for settings."""

    def __init__(self) -> None:
        self.conf = self
        self.sparkContext = SimpleNamespace(getConf=lambda: SimpleNamespace(getAll=dict))
        self.getAll: dict[str, str] = {}

    def isModifiable(self, name: str) -> bool:  # noqa: N802
        return name.startswith("spark.sql.")

    def set(self, name: str, value: str) -> None:
        self.getAll[name] = value


def test_what_others_queries_give_is_theirs_to_set() -> None:
    theirs = OthersSession()
    with pytest.warns(UserWarning, match="fixed when a session is created"):
        _adjust(cast("SparkSession", theirs), config_for("local[2]"), {})
    assert theirs.getAll["spark.sql.python.filterPushdown.enabled"] == "true"
    decisive = {"spark.sql.session.timeZone", PARTITIONS, "spark.sql.streaming.stateStore.providerClass"}
    assert not decisive & theirs.getAll.keys()
    with pytest.warns(UserWarning, match="fixed when a session is created"):
        _adjust(cast("SparkSession", theirs), config_for("local[2]"), {PARTITIONS: "7"})
    assert theirs.getAll[PARTITIONS] == "7"


def test_a_connect_server_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"master=sc://host is a Spark Connect server"):
        session(master="sc://host")
    monkeypatch.setenv("SPARK_REMOTE", "local[2]")
    with pytest.raises(ConfigError, match=r"SPARK_REMOTE=local\[2\]"):
        session()


def test_importing_the_package_imports_nothing_heavy() -> None:
    """Each Python worker of Spark does it, on the way to a module that it needs."""
    heavy = ("pyspark", "pyarrow", "numba", "pandas", "numpy", "subprocess", "asyncio", "confluent_kafka")
    code = f"import sys, penstock.spark; print([name for name in {heavy!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_without_pyspark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ConfigError, match=r"PySpark is not installed: pip install 'penstock\[spark\]'") as raised:
        session()
    assert isinstance(raised.value, ImportError)
