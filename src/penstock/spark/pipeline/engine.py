"""A running Spark for one project: the JVM with Spark Connect, and the pipeline's session.

Spark's pipelines are controlled by Spark Connect. The server is a plugin of an ordinary session that this process
starts, so there is one JVM, with the settings of `penstock.spark.session`. It listens on a free loopback port and
requires a token. The output of the JVM and its workers goes to a file of the project, not to the terminal.

Static settings (catalog, warehouse) can be set only here, when the JVM starts: a flow that set them would fail.
Invariant: one engine per process, because there is one JVM per process. `close` restores the environment.
"""

from __future__ import annotations

import io
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, cast

from penstock.model.errors import PenstockError
from penstock.spark.pipeline.connect_fix import apply_fix
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.events import cause_of
from penstock.spark.pipeline.project import DEFAULT_DATABASE, SPARK_PREFIX, PipelineProject
from penstock.spark.pipeline.secrets import Secrets
from penstock.spark.pipeline.table_catalog import catalog_settings, compile_catalog, has_open_tables, note_format
from penstock.spark.pipeline.table_upkeep import TableUpkeep
from penstock.spark.session.batch_metrics import BatchListeners, Metrics
from penstock.spark.session.driver_log import output_to, trim_log
from penstock.spark.session.session import session
from penstock.spark.source.group_progress import GROUPS_BY_FLOW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
_CONNECT_VARIABLES = ("SPARK_CONNECT_AUTHENTICATE_TOKEN", "SPARK_CONNECT_MODE_ENABLED")

_DETAILS = "# Detailed Table Information"
_IDLE_TALK = re.compile(r"\s+at |\s*\.\.\. \d+ more|\S+ \S+ (?:INFO|WARN|DEBUG) |WARNING: |Using Spark's default log4j")
_LAST_WORDS_BYTES = 64 << 10
_POLLING = "spark.sql.pipelines.execution.streamstate.pollingInterval"
# The runner decides on retries, because it knows permanent errors; Spark would try everything three times in 25 s.
_RUNTIME = {
    "spark.sql.pipelines.maxFlowRetryAttempts": "0",
    _POLLING: "1",
    "spark.sql.connect.serverStacktrace.enabled": "false",
}


class PipelineEngine:
    """`persistent` keeps the tables' catalog in the project, where one process at a time can open it. Without it the
    catalog is temporary, which is enough to check definitions and seconds faster."""

    def __init__(
        self, project: PipelineProject, *, master: str | None = None, fast_start: bool = False, persistent: bool = True
    ) -> None:
        self.project = project
        self._master = master or project.configuration.get("spark.master")
        self._fast_start = fast_start
        self._persistent = persistent
        self._environment: dict[str, str | None] = {}
        self._host: SparkSession | None = None
        self._session: Any = None
        self._listeners: BatchListeners | None = None
        self._runtime_names: frozenset[str] = frozenset()
        self._given: dict[str, str] = {}
        self._log_start = 0
        self._warnings = LinesToLog(project)
        self.upkeep = TableUpkeep()

    def start(self) -> PipelineEngine:
        if self._host is not None:
            return self
        self._check_place()
        self._clear_scratch()
        self._log_start = self.project.log_path.stat().st_size if self.project.log_path.exists() else 0
        logging.getLogger().addHandler(self._warnings)
        self._environment = {name: os.environ.pop(name, None) for name in (*_CONNECT_VARIABLES, GROUPS_BY_FLOW)}
        os.environ[GROUPS_BY_FLOW] = "1"  # the JVM passes its environment on to sources
        os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = secrets.token_hex(16)
        try:
            with output_to(self.project.log_path), _interrupt_kept(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PySpark warns about versions of other packages
                self._host = session(
                    f"pipeline {self.project.name}",
                    self._master,
                    config=self._static(),
                    secrets=self._static_secrets(),
                    fast_start=self._fast_start,
                )
                self._runtime_names = _runtime_names(self._host)
                if self._has_open_tables:
                    compile_catalog(_jvm(self._host), self.project)
                self._open_session()
        except Exception as error:
            self.close()
            if isinstance(error, PenstockError):
                raise
            raise self._not_started(error) from error
        except BaseException:
            self.close()
            raise
        return self

    @property
    def session(self) -> Any:
        """Spark Connect's session, for reading definitions and for runs."""
        if self._session is None:
            raise PipelineError("Spark is not running")
        return self._session

    def graph_settings(self) -> dict[str, str]:
        """The project's configuration for flows, without static settings."""
        return self._settings_of(self.project)

    def _settings_of(self, project: PipelineProject) -> dict[str, str]:
        chosen = {
            name: value
            for name, value in project.configuration.items()
            if name in self._runtime_names or not name.startswith(SPARK_PREFIX)
        }
        return chosen | project.secrets.session_settings(project.configuration)

    def renew_settings(self) -> bool:
        """Gives the session the present values of files that settings refer to. Returns whether they have changed.

        Raises PipelineError if a file is missing. Settings that are fixed when Spark starts stay as they are.
        """
        from pyspark.errors import PySparkException

        project = self.project.resolved()
        changed = {name: value for name, value in self._settings_of(project).items() if self._given.get(name) != value}
        try:
            for name, value in changed.items():
                self.session.conf.set(name, value)
                self._given[name] = value
        except PySparkException as error:  # the next run tries again
            raise PipelineError(f"Spark does not take {', '.join(changed)}: {cause_of(str(error))}") from error
        self.project = project
        return bool(changed)

    def table_location(self, table: Sequence[str]) -> str | None:
        """The catalog's location of (catalog, database, table); None if it has no such table or no files of it."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        name = ".".join(f"`{part.replace('`', '``')}`" for part in table)
        try:
            rows = cast(Any, self._host)._jsparkSession.sql(f"DESCRIBE TABLE EXTENDED {name}").collectAsList()
            told = [(row.getString(0), row.getString(1)) for row in rows]
        except (PySparkException, Py4JError, OSError):  # the last two mean that the JVM is gone, which the run reports
            return None
        names = [key for key, _ in told]
        details = told[names.index(_DETAILS) :] if _DETAILS in names else []  # columns with any names come before it
        return next((value for key, value in details if key == "Location"), None)

    @contextmanager
    def batch_metrics(self, take: Callable[[Metrics], None]) -> Iterator[None]:
        """Calls `take` with the observed metrics of batch queries, which compute views, in another thread."""

        def failed(reason: str) -> None:
            with self.quiet():
                print(f"metrics of views may be missing: {reason}")

        if self._listeners is None:
            self._listeners = BatchListeners(self._host, self.session)
        with self._listeners.told(take, failed):
            yield

    @property
    def is_alive(self) -> bool:
        """Whether the JVM answers."""
        from py4j.protocol import Py4JError

        try:
            return self._host is not None and _jvm(self._host).System.currentTimeMillis() > 0
        except (Py4JError, OSError):
            return False

    def poll_without_pause(self) -> None:
        """Makes Spark check for ended flows all the time instead of once a second. That keeps a core busy during a run.
        It is worth that in a warm Spark with runs of a few seconds, but not when the JVM starts."""
        from pyspark.errors import PySparkException

        try:
            self.session.conf.set(_POLLING, "0")
        except PySparkException as error:  # the JVM died after the run; the next run notices and restarts it
            with self.quiet():
                print(f"{_POLLING} could not be set: {error}")

    def renew_session(self) -> None:
        """Opens a new session, after the server dropped the old one or it broke. Python workers restart with it."""
        with self.quiet():
            self._release()
            try:
                self._open_session()
            except Exception as error:
                raise self._not_started(error) from error

    def restart(self) -> None:
        """Starts a new JVM in place of the old one, which may have died. Raises PipelineError if the new one does not
        start.
        """
        self.close()
        self.start()

    def trim_log(self) -> None:
        """Bounds the log, so that a pipeline that is served for months does not fill the disk."""
        trim_log(self.project.log_path)

    def close(self) -> None:
        with self.quiet():
            self._release()
            if self._host is not None:
                os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
                if self.is_alive:
                    self._host.stop()
                else:
                    _forget_jvm(self._host)
                self._host = None
        logging.getLogger().removeHandler(self._warnings)
        shutil.rmtree(self._scratch, ignore_errors=True)
        for name, value in self._environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        self._environment = {}

    def __enter__(self) -> PipelineEngine:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- how it is started --------------------------------------------------------------

    def _check_place(self) -> None:
        """Refuses a moved or copied project: the catalog's absolute paths would lead to the original's tables."""
        place = self.project.state / "root"
        here = str(self.project.root.resolve())
        self.project.state.mkdir(parents=True, exist_ok=True)
        if not self._persistent:
            return
        if self.project.reset_path.exists():
            raise PipelineError(
                "a reset of this project is not finished, and a run now would lose rows: "
                "finish it with `penstock pipeline reset`"
            )
        if self.project.metastore.exists() and place.exists() and place.read_text(encoding="utf-8") != here:
            raise PipelineError(
                f"this project has run as {place.read_text(encoding='utf-8')} before, and its tables are recorded "
                "there: move it back, or reset it here with `penstock pipeline reset`"
            )
        place.write_text(here, encoding="utf-8")
        note_format(self.project)

    @property
    def _has_open_tables(self) -> bool:
        return self._persistent and has_open_tables(self.project)

    @property
    def _scratch(self) -> Path:
        return self.project.state / "scratch" / str(os.getpid())

    def _clear_scratch(self) -> None:
        """Removes leftovers of killed processes. A process that checks definitions may be running meanwhile."""
        for left in self._scratch.parent.glob("[0-9]*"):
            if not Path("/proc", left.name).exists():
                shutil.rmtree(left, ignore_errors=True)
        self._scratch.mkdir(parents=True, exist_ok=True)

    def _static(self) -> dict[str, str]:
        project = self.project
        settings = {
            "spark.plugins": CONNECT_PLUGIN,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.connect.session.manager.defaultSessionTimeout": "-1",  # or an idle pipeline loses its session
            # With isolation every query of every run starts its own Python processes, which is half the cost of a run.
            # There are no other users to isolate.
            "spark.sql.artifact.isolation.enabled": "false",
            "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
            "spark.sql.warehouse.dir": project.warehouse.resolve().as_uri(),
            "spark.local.dir": str(self._scratch),
            **{name: value for name, value in project.configuration.items() if name.startswith(SPARK_PREFIX)},
            **project.secrets.jvm_settings(project.configuration),
        }
        for name in self._static_secrets():
            del settings[name]
        if self._has_open_tables:
            settings |= catalog_settings(project, settings)
        if self._persistent:
            derby_log = f'-Dderby.stream.error.file="{project.state / "derby.log"}"'
            options = settings.get("spark.driver.extraJavaOptions", "")
            settings |= {
                "spark.sql.catalogImplementation": "hive",
                "spark.hadoop.javax.jdo.option.ConnectionURL": (
                    f"jdbc:derby:;databaseName={project.metastore};create=true"
                ),
                # The default is /tmp/hive, which belongs to the machine's first user of it.
                "spark.hadoop.hive.exec.scratchdir": str(self._scratch / "hive"),
                "spark.hadoop.hive.exec.local.scratchdir": str(self._scratch / "hive-local"),
                # The default is a new directory in /tmp for each run, which is never deleted.
                "spark.hadoop.hive.downloaded.resources.dir": str(self._scratch / "hive-resources"),
                "spark.driver.extraJavaOptions": f"{derby_log} {options}".strip(),
            }
        return settings

    def _static_secrets(self) -> dict[str, str]:
        return {
            name: value
            for name, value in self.project.configuration.items()
            if name.startswith(SPARK_PREFIX) and self.project.secrets.is_noted(name)
        }

    def _open_session(self) -> None:
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        apply_fix()
        port = _connect_port(self._host)
        # Functions such as pyspark.sql.functions.col must make Spark Connect's columns in definitions.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        self._session = ConnectSession.builder.remote(f"sc://localhost:{port}").create()
        # A local JVM that is silent for seconds is gone. The default timeout is ten minutes.
        self._session.client.set_retry_policies([DefaultPolicy(max_retries=4, max_backoff=1000)])
        self._given = self.graph_settings()
        for name, value in {**_RUNTIME, **self._given}.items():
            self._session.conf.set(name, value)
        if self.project.database != DEFAULT_DATABASE:
            self._session.sql(f"CREATE DATABASE IF NOT EXISTS `{self.project.database}`")

    def _not_started(self, error: Exception) -> PipelineError:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        log = self.project.relative(self.project.log_path)
        last = last_words(self.project.log_path, self._log_start)
        said = f"the last error in {log}: {last}" if last else f"its output: {log}"
        return PipelineError(self.project.secrets.hide(f"Spark did not start: {reason} ({said})"))

    def _release(self) -> None:
        self._listeners = None
        if self._session is not None:
            gone, self._session = self._session, None
            gone.stop()

    # -- what it prints -----------------------------------------------------------------

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Sends the output of this process to the log meanwhile, because PySpark prints and warns freely."""
        with self.project.log_path.open("a", encoding="utf-8", buffering=1) as log, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out, err = sys.stdout, sys.stderr
            sys.stdout = sys.stderr = cast(Any, WithoutSecrets(log, self.project.secrets))
            try:
                yield
            finally:
                sys.stdout, sys.stderr = out, err


class LinesToLog(logging.Handler):
    """Sends the log records of libraries to Spark's log. When the JVM has died, Py4J logs a traceback with the root
    logger, which would go to the terminal."""

    def __init__(self, project: PipelineProject) -> None:
        super().__init__()
        self._project = project

    def emit(self, record: logging.LogRecord) -> None:
        with self._project.log_path.open("a", encoding="utf-8") as log:
            log.write(f"{self._project.secrets.hide(self.format(record))}\n")


class WithoutSecrets(io.TextIOBase):
    """A definition may print its settings."""

    def __init__(self, log: TextIO, hidden: Secrets) -> None:
        super().__init__()
        self._log = log
        self._hidden = hidden

    def write(self, text: str) -> int:
        self._log.write(self._hidden.hide(text))
        return len(text)

    def flush(self) -> None:
        self._log.flush()


def last_words(log_path: Path, start: int) -> str:
    """The last error line after `start`, without stack frames and other output."""
    with log_path.open("rb") as log:
        log.seek(max(start, log_path.stat().st_size - _LAST_WORDS_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip() and not _IDLE_TALK.match(line)), "")


@contextmanager
def _interrupt_kept() -> Iterator[None]:
    """Restores the handler of SIGINT: a starting SparkContext sets its own, which raises."""
    before = signal.getsignal(signal.SIGINT)
    yield
    is_own = before not in (signal.default_int_handler, signal.SIG_DFL, None)
    if is_own and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def _jvm(host: SparkSession | None) -> Any:
    return cast(Any, host)._jvm


def _forget_jvm(host: SparkSession) -> None:
    """Makes PySpark drop its JVM: it would use the same one for ever, even after that has died."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    context = cast(Any, host.sparkContext)
    context._jsc = None  # there is no JVM to notify
    context.stop()
    with SparkContext._lock:
        gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    if gateway is not None:
        gateway.shutdown()


def _connect_port(host: SparkSession | None) -> int:
    service = getattr(_jvm(host), "org.apache.spark.sql.connect.service.SparkConnectService$")
    return int(getattr(service, "MODULE$").localPort())


def _runtime_names(host: SparkSession) -> frozenset[str]:
    return frozenset(entry._1() for entry in _jvm(host).PythonSQLUtils.listRuntimeSQLConfigs())
