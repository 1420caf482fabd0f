"""A Spark session with the settings that suit topics: `session()`; the settings alone: `config_for()`.

Spark's defaults are made for large batch jobs on clusters. With these a micro-batch on one idle machine costs about
50 ms instead of more than 200. Every one of them can be set otherwise by `config`.

Knows nothing of sources and sinks, but for the watch over their progress. What has to be known before the JVM starts
(Java, Python, addresses) is put into this process's environment, where Spark looks for it; a variable that is set
already is left alone. Every Python worker imports this module on its way to another: what only a driver needs is
imported when it is called.
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.warmup import WarmUp

DEFAULT_MASTER = "local[*,4]"  # four attempts a task; plain local[*] gives up after one
BOOTSTRAP_VARIABLE = "PENSTOCK_BOOTSTRAP_SERVERS"  # as the command line has it

_EXECUTORS_PYTHON = "spark.sql.execution.pyspark.python"  # else that of the driver, which starts sources and sinks
_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_QUIET = f"-Dlog4j2.configurationFile=file:{Path(__file__).resolve().with_name('log4j2.properties')}"
_FAST_START = "-XX:TieredStopAtLevel=1"

# Of every master.
_ANYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Loopback TCP makes the worker wait 40 ms for a delayed acknowledgement several times a batch.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Columns of topics hardly repeat: a dictionary is built and thrown away.
    "spark.hadoop.parquet.enable.dictionary#key": "false",
    "spark.hadoop.parquet.enable.dictionary#value": "false",
    "spark.hadoop.parquet.enable.dictionary#offset": "false",
    "spark.ui.showConsoleProgress": "false",
}

# Of local masters: checkpoints are local files, and the user interface is nobody's but the terminal's.
_LOCAL = {
    "spark.ui.enabled": "false",
    # Without Hadoop's C library the others start `readlink` and `chmod` processes, twenty for each micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # RawLocalFileSystem would spare the .crc files, too, but the RocksDB state store cannot commit on it.
}

# Of a session that others made: these change what their queries give, or how they are planned, or start the JVM.
_OF_ITS_MAKER = frozenset(
    (
        "spark.sql.session.timeZone",
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.stateStore.providerClass",
        _DRIVER_OPTIONS,
    )
)


class SparkNotInstalled(ConfigError, ImportError):
    """PySpark comes with an extra that was not asked for."""


def is_local(master: str) -> bool:
    return re.match(r"local(\[|$)", master) is not None


def config_for(master: str | None = None, *, fast_start: bool = False) -> dict[str, str]:
    """The settings of `session(master=master)` by name, for who starts Spark otherwise (submit, Connect, pipelines).

    `fast_start` is for tests and jobs of a minute: the JVM starts sooner and never optimises fully.
    """
    master = master or DEFAULT_MASTER
    settings = {"spark.master": master, **_ANYWHERE}
    # What a cluster logs, and where, is its own affair.
    java = ([_QUIET] if is_local(master) else []) + ([_FAST_START] if fast_start else [])
    if java:
        settings[_DRIVER_OPTIONS] = " ".join(java)
    if is_local(master):
        settings |= _LOCAL
        settings["spark.sql.shuffle.partitions"] = str(_cores(master))
    return settings


def session(
    app_name: str = "penstock",
    master: str | None = None,
    *,
    config: Mapping[str, str] | None = None,
    bootstrap_servers: str | None = None,
    fast_start: bool = False,
) -> SparkSession:
    """A Spark session with the settings of `config_for(master)`; `config` adds to them and wins.

    master: where Spark runs; by default what `spark-submit` was told, else every core of this machine.
    config: Spark settings by name. Options of the driver's JVM are added to ours, all others replace ours.
    bootstrap_servers: the brokers of sources and sinks that name none.
    fast_start: for tests and jobs of a minute, see `config_for`.

    If there is a session already, it is the one returned: settings it has not got and that can be changed are set,
    `config` too; a warning names those that only a new session would take. Those that decide what its other queries
    give, or how they are planned, are set only by `config`: time zone, shuffle partitions, the state store. Raises
    JavaNotFound when there is no Java to start, SparkNotInstalled when there is no PySpark.
    """
    _refuse_connect(master)
    _require_pyspark()
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    from penstock.spark.query_watch import watch_queries

    asked = dict(config or {})
    if master is not None:
        asked["spark.master"] = master
    if SparkContext._active_spark_context is not None:
        existing = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()  # active is a thread's
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
    warm_up = _prepare(settings["spark.master"])
    if not is_local(settings["spark.master"]):
        settings.setdefault(_EXECUTORS_PYTHON, os.environ["PYSPARK_PYTHON"])
    try:
        spark = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    except BaseException:
        if warm_up is not None:
            warm_up.stop()
        raise
    if warm_up is not None:
        warm_up.wait()
    watch_queries(spark)
    return spark


def _prepare(master: str) -> WarmUp | None:
    """What Spark looks for in the environment; workers on this machine inherit it from the JVM."""
    from penstock.spark.interpreter import worker_python
    from penstock.spark.java import use_java
    from penstock.spark.warmup import WarmUp, place_numba_cache

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else the JVM runs already
        asked_for = os.environ.get("JAVA_HOME")
        java = use_java()
        if asked_for and java.source != "JAVA_HOME":
            warnings.warn(
                f"JAVA_HOME={asked_for} is no Java that Spark runs on: taking Java {java.version} of {java.home}",
                stacklevel=3,
            )
    if not is_local(master):
        # Planning runs here, reading and writing on executors, which may have their Python elsewhere.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python()
        return None
    python = os.environ.setdefault("PYSPARK_PYTHON", worker_python())  # else PATH's python3, without this package
    if "PYSPARK_DRIVER_PYTHON" in os.environ:  # of a notebook; sources and sinks would be started by it
        os.environ["PYSPARK_DRIVER_PYTHON"] = python
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    place_numba_cache()
    return WarmUp()


def _name_brokers(servers: str) -> None:
    """Sources and sinks find them in the environment of the JVM, which is that of this process when it was started."""
    from pyspark.core.context import SparkContext

    os.environ[BOOTSTRAP_VARIABLE] = servers
    jvm = SparkContext._jvm
    if jvm is not None and (known := jvm.System.getenv(BOOTSTRAP_VARIABLE)) != servers:
        warnings.warn(
            f"bootstrap_servers={servers} comes too late: the JVM runs already, with {known or 'none'} there; "
            "name them in each source and sink, as option kafka.bootstrap.servers.",
            stacklevel=3,
        )


def _submitted() -> dict[str, str]:
    """What `spark-submit` was told, if this program was started by it: that wins over our defaults."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf
    from pyspark.core.context import SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _adjust(spark: SparkSession, defaults: dict[str, str], asked: dict[str, str]) -> None:
    """Bring a session that others made as near to the settings as can be, and say what stays different.

    What its maker chose is left unless the caller asks for something else by name.
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
            different.append(f"{name}={value} (is {present.get(name, 'not set')})")
    if different:
        warnings.warn(
            "there is a Spark session already, and these settings are fixed when one is made: "
            f"{', '.join(different)}. Call stop() on it first to have them.",
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
                f"{name}={value} is a Spark Connect server, whose settings were fixed when it was started: "
                "take SparkSession.builder.remote(...) for it, and start the server with config_for()."
            )


def _cores(master: str) -> int:
    found = re.match(r"local\[(\*|\d+)", master)
    if found is None:
        return 1
    return len(os.sched_getaffinity(0)) if found[1] == "*" else int(found[1])
