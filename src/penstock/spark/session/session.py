"""`session()` makes a Spark session with settings that suit topics; `config_for()` returns only the settings.

Spark's defaults are for large batch jobs on clusters. With these settings a micro-batch on one idle machine takes about
50 ms instead of more than 200. `config` can override each of them.

This module knows nothing of sources and sinks, except `query_watch`. Facts that Spark needs before the JVM starts
(Java, Python, addresses) are put into this process's environment, unless the variable is already set. Every Python
worker imports this module indirectly, so modules for the driver are imported only when they are used.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model.errors import ConfigError
from penstock.spark.options.cores import CORES_VARIABLE, cores_of
from penstock.spark.options.secret_names import MORE_NAMES, REDACTED_OPTIONS, REDACTED_OPTIONS_DEFAULT, is_secret_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.arrow.cache.warmup import WarmUp

DEFAULT_MASTER = "local[*,4]"  # four attempts per task; plain local[*] makes only one
BOOTSTRAP_VARIABLE = "PENSTOCK_BOOTSTRAP_SERVERS"  # the same as for the command line

_EXECUTORS_PYTHON = "spark.sql.execution.pyspark.python"  # by default the driver's, which starts sources and sinks
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_QUIET = f"-Dlog4j2.configurationFile=file:{Path(__file__).resolve().with_name('log4j2.properties')}"
_FAST_START = "-XX:TieredStopAtLevel=1"

# Settings for every master.
_ANYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    # With loopback TCP the worker waits 40 ms for a delayed acknowledgement several times per batch.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Columns of topics hardly repeat, so a dictionary would be built in vain.
    "spark.hadoop.parquet.enable.dictionary#key": "false",
    "spark.hadoop.parquet.enable.dictionary#value": "false",
    "spark.hadoop.parquet.enable.dictionary#offset": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark hides passwords in plans. It does not know Kafka's names of keys and logins.
    REDACTED_OPTIONS: f"{REDACTED_OPTIONS_DEFAULT}|{MORE_NAMES}",
}

# Settings for local masters: checkpoints are local files, and nobody uses the web interface.
_LOCAL = {
    "spark.ui.enabled": "false",
    # Without Hadoop's C library the others start `readlink` and `chmod` processes, twenty for each micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # RawLocalFileSystem would also avoid the .crc files, but the RocksDB state store cannot commit on it.
}

# Not changed in an existing session: they change the results or plans of its other queries, or only apply at JVM start.
_OF_ITS_MAKER = frozenset(
    (
        "spark.sql.session.timeZone",
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.stateStore.providerClass",
        _DRIVER_OPTIONS,
    )
)


class SparkNotInstalled(ConfigError, ImportError):
    """PySpark is missing: it comes with the extra `spark`."""


def is_local(master: str) -> bool:
    return re.match(r"local(\[|$)", master) is not None


def config_for(master: str | None = None, *, fast_start: bool = False) -> dict[str, str]:
    """The settings of `session(master=master)` by name, for other ways to start Spark (submit, Connect, pipelines).

    `fast_start` is for tests and short jobs: the JVM starts faster, without its full optimization.
    """
    master = master or DEFAULT_MASTER
    settings = {"spark.master": master, **_ANYWHERE}
    # A cluster has its own logging.
    java = ([_QUIET] if is_local(master) else []) + ([_FAST_START] if fast_start else [])
    if java:
        settings[_DRIVER_OPTIONS] = " ".join(java)
    if is_local(master):
        settings |= _LOCAL
        settings["spark.sql.shuffle.partitions"] = str(cores_of({"spark.master": master}))
    return settings


def session(
    app_name: str = "penstock",
    master: str | None = None,
    *,
    config: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    bootstrap_servers: str | None = None,
    fast_start: bool = False,
) -> SparkSession:
    """A Spark session with the settings of `config_for(master)`; `config` overrides them.

    master: the Spark master; by default that of `spark-submit`, else all cores of this machine.
    config: Spark settings by name. Options of the driver's JVM are added to ours, all others replace ours.
    secrets: the same, but never on the JVM's command line, which all users of the machine can read.
    bootstrap_servers: the default brokers of sources and sinks.
    fast_start: for tests and short jobs, see `config_for`.

    An existing session is returned: missing settings that can be changed are set, and also `config`. A warning names
    settings that only a new session would take. Settings that change the results or plans of its other queries (time
    zone, shuffle partitions, the state store) are set only by `config`. Raises JavaNotFound without Java, and
    SparkNotInstalled without PySpark.
    """
    _refuse_connect(master)
    _require_pyspark()
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    from penstock.spark.source.query_watch import watch_queries

    hidden = dict(secrets or {})
    asked = {**(config or {}), **hidden}
    if master is not None:
        asked["spark.master"] = master
    if SparkContext._active_spark_context is not None:
        existing = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()  # active: per thread
        _adjust(existing, config_for(existing.sparkContext.master), asked)
        if bootstrap_servers is not None:
            _name_brokers(bootstrap_servers)
        watch_queries(existing)
        return existing
    told = {**_submitted(), **asked}
    if bootstrap_servers is not None:
        _name_brokers(bootstrap_servers)
        told[f"spark.executorEnv.{BOOTSTRAP_VARIABLE}"] = bootstrap_servers
    settings = config_for(told.get("spark.master"), fast_start=fast_start)
    if _DRIVER_OPTIONS in told and _DRIVER_OPTIONS in settings:
        told[_DRIVER_OPTIONS] = f"{settings[_DRIVER_OPTIONS]} {told[_DRIVER_OPTIONS]}"
    settings |= {**told, "spark.app.name": app_name}
    warm_up = _prepare(settings["spark.master"], cores_of(settings))
    if not is_local(settings["spark.master"]):
        settings.setdefault(_EXECUTORS_PYTHON, os.environ["PYSPARK_PYTHON"])
    try:
        if hidden:
            _start_jvm({name: value for name, value in settings.items() if name not in hidden})
        spark = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    except BaseException:
        if warm_up is not None:
            warm_up.stop()
        raise
    if warm_up is not None:
        warm_up.wait()
    watch_queries(spark)
    return spark


def _prepare(master: str, cores: int | None) -> WarmUp | None:
    """Sets the environment for Spark; workers on this machine inherit it from the JVM."""
    from penstock.arrow.cache.warmup import WarmUp, place_numba_cache
    from penstock.spark.session.interpreter import worker_python
    from penstock.spark.session.java import use_java
    from penstock.spark.session.lookup import choose_worker_python

    os.environ.pop(CORES_VARIABLE, None)
    if cores is not None:
        os.environ[CORES_VARIABLE] = str(cores)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise the JVM already runs
        asked_for = os.environ.get("JAVA_HOME")
        java = use_java()
        if asked_for and java.source != "JAVA_HOME":
            warnings.warn(
                f"JAVA_HOME={asked_for} has no Java that can run Spark: using Java {java.version} in {java.home}",
                stacklevel=3,
            )
    if not is_local(master):
        # Planning runs here; reading and writing run on executors, which may have their Python elsewhere.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python()
        return None
    python = choose_worker_python()  # else PATH's python3, without this package
    if "PYSPARK_DRIVER_PYTHON" in os.environ:  # set for notebooks; sources and sinks would be started with it
        os.environ["PYSPARK_DRIVER_PYTHON"] = python
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    place_numba_cache()
    return WarmUp()


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Without an application. Settings that are set later reach the JVM through its private connection."""
    from pyspark import SparkConf
    from pyspark.core.context import SparkContext

    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())))


def _name_brokers(servers: str) -> None:
    """Sources and sinks find the servers in the JVM's environment, which is this process's at the start of the JVM."""
    from pyspark.core.context import SparkContext

    os.environ[BOOTSTRAP_VARIABLE] = servers
    jvm = SparkContext._jvm
    if jvm is not None and (known := jvm.System.getenv(BOOTSTRAP_VARIABLE)) != servers:
        warnings.warn(
            f"bootstrap_servers={servers} is too late: the JVM already runs, with {known or 'none'}; "
            "give each source and sink the option kafka.bootstrap.servers.",
            stacklevel=3,
        )


def _submitted() -> dict[str, str]:
    """The settings of `spark-submit`, if it started this program. They override our defaults."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf
    from pyspark.core.context import SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _adjust(spark: SparkSession, defaults: dict[str, str], asked: dict[str, str]) -> None:
    """Applies the settings to an existing session as far as possible, and warns of differences.

    Explicit settings of the session stay unless the caller's `config` has them.
    """
    present = {**dict(spark.sparkContext.getConf().getAll()), **spark.conf.getAll}
    left_alone = {*present, *_OF_ITS_MAKER}
    wanted = {name: value for name, value in defaults.items() if name not in left_alone}
    different = []
    for name, value in {**wanted, **asked}.items():
        if present.get(name) == value:
            continue
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
        else:
            shown, now = ("...", "another") if is_secret_name(name) else (value, present.get(name, "not set"))
            different.append(f"{name}={shown} (is {now})")
    if different:
        warnings.warn(
            "a Spark session already exists, and these settings are fixed when a session is created: "
            f"{', '.join(different)}. Call stop() on it first to apply them.",
            stacklevel=3,
        )


def _require_pyspark() -> None:
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise SparkNotInstalled("PySpark is not installed: pip install 'penstock[spark]'") from None


def _refuse_connect(master: str | None) -> None:
    for name, value in (("master", master), ("SPARK_REMOTE", os.environ.get("SPARK_REMOTE"))):
        if value and (name == "SPARK_REMOTE" or value.startswith("sc://")):
            raise ConfigError(
                f"{name}={value} is a Spark Connect server, whose settings were fixed at its start: "
                "use SparkSession.builder.remote(...) for it, and start the server with config_for()."
            )
