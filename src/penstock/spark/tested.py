"""The process behind the pytest fixture `penstock_pipeline`: one warm Spark for the pipelines of many tests.

Spark Connect and an ordinary session do not go together in one process, and tests may have a session of their own. So
the fixture starts this process with a connected socket, and sends it calls as pickles: the name of a method of
`WarmSpark` and its arguments. The answer is a pair: whether it succeeded, and the value or the error in one sentence.

A pipeline is run as `penstock pipeline run` does it, by `run_once`. What it writes is in the directory of this process,
which is emptied for the next one. The process ends when the other end of the socket is closed.
"""

from __future__ import annotations

import shutil
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock.model.errors import PenstockError
from penstock.spark.pipeline.definitions import checked_definitions
from penstock.spark.pipeline.engine import PipelineEngine
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.graph import registered
from penstock.spark.pipeline.lag import LagMeter
from penstock.spark.pipeline.project import SERVERS_KEY, SPARK_PREFIX, PipelineProject
from penstock.spark.pipeline.runner import RunFailed, run_once
from penstock.spark.pipeline.tables import find_table, read_rows

MASTER = "local[2]"  # a task that fails is not tried again
MOST_ROWS = 1_000_000


class WarmSpark:
    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._engine: PipelineEngine | None = None

    def open(self, directory: str, servers: str, settings: dict[str, str]) -> list[str]:
        """Makes ready for a run of the project, with empty tables and no offsets. Returns its topics.

        Raises DefinitionError, and PipelineError if a definition would reach another cluster.
        """
        project = PipelineProject.find(Path(directory)).for_test(servers, self._workspace, settings).resolved()
        checked_definitions(project)
        engine = self._engine_for(project)
        with registered(engine) as graph:
            elsewhere = sorted(graph.servers - {servers})
        if elsewhere:
            raise PipelineError(
                f"the definitions name the brokers {', '.join(elsewhere)} themselves, so that a test would reach them: "
                f'let them read spark.conf.get("{SERVERS_KEY}")'
            )
        return list(dict.fromkeys([*graph.reads, *graph.writes, *project.configured_topics]))

    def run(self) -> dict[str, dict[str, Any]]:
        """Returns the flows. Raises PipelineError."""
        engine = self._running()
        try:
            with LagMeter(engine.project.client_options) as meter:
                report = run_once(engine, meter)
        except RunFailed as failed:
            raise failed.error from failed
        engine.poll_without_pause()
        return {
            name: {
                "state": str(flow.state),
                "rows_read": flow.rows_read,
                "rows_written": flow.rows_written,
                "violations": flow.violations,
            }
            for name, flow in report.flows.items()
        }

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_rows(find_table(self._running().project, name), MOST_ROWS).to_pylist()
        return rows

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def _running(self) -> PipelineEngine:
        assert self._engine is not None
        return self._engine

    def _engine_for(self, project: PipelineProject) -> PipelineEngine:
        """Its session has the project's settings and no tables."""
        engine = self._engine
        if engine is None or not engine.is_alive or _static(project) != _static(engine.project):
            self.close()
            self._engine = None
            self._empty()
            self._engine = PipelineEngine(project, master=MASTER, fast_start=True, persistent=False).start()
            return self._engine
        before, engine.project = engine.project, project
        _drop_tables(engine)
        self._empty()
        if _needs_new_session(before, project):
            _forget_modules(before.root)
            engine.renew_session()
        else:
            engine.renew_settings()
        return engine

    def _empty(self) -> None:
        """Removes what the last pipeline has written, except Spark's log and scratch files, which are open."""
        state = self._workspace / ".penstock"
        for path in (self._workspace / "storage", self._workspace / "warehouse"):
            shutil.rmtree(path, ignore_errors=True)
        for path in (state / "status.json", state / "tables.json", state / "definitions.json"):
            path.unlink(missing_ok=True)


def _static(project: PipelineProject) -> dict[str, str]:
    return {name: value for name, value in project.configuration.items() if name.startswith(SPARK_PREFIX)}


def _needs_new_session(before: PipelineProject, now: PipelineProject) -> bool:
    """Workers have the modules of a project loaded, and settings that are gone would stay."""
    return (before.root, before.database) != (now.root, now.database) or not set(before.configuration) <= set(
        now.configuration
    )


def _forget_modules(root: Path) -> None:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).is_relative_to(root):
            del sys.modules[name]


def _drop_tables(engine: PipelineEngine) -> None:
    for (database,) in engine.session.sql("SHOW DATABASES").collect():
        views = {view.viewName for view in engine.session.sql(f"SHOW VIEWS IN `{database}`").collect()}
        for table in engine.session.sql(f"SHOW TABLES IN `{database}`").collect():
            if not table.isTemporary:
                kind = "VIEW" if table.tableName in views else "TABLE"
                engine.session.sql(f"DROP {kind} IF EXISTS `{database}`.`{table.tableName}`")


def answer(connection: Connection, warm: WarmSpark) -> None:
    """Answers calls until the other end is closed."""
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        try:
            told: tuple[bool, Any] = (True, getattr(warm, name)(*arguments))
        except PenstockError as error:
            told = (False, str(error))
        connection.send(told)


def main(descriptor: str, workspace: str) -> None:
    warm = WarmSpark(Path(workspace))
    try:
        answer(Connection(int(descriptor)), warm)
    finally:
        warm.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
