"""Serves a pipeline: repeated runs in one warm Spark, until it is stopped.

After a failed run another follows, with a pause that doubles. A failed flow into a sink is left out meanwhile, so that
the others continue at their pace. A failed table stops all flows, because others read it. After too many consecutive
failures of the same flow, serving ends with its error. While no broker answers there are no runs and no failures: it
waits, with a message. A dead JVM counts as a failure of the whole pipeline and is restarted.

Definitions are read again for each run. While they are wrong, the last good ones run (`served`), and that is no
failure. A changed file ends every pause, so that a repair counts at once. The specification is read once, because most
of it is fixed when Spark starts. Without new records there is no run: asking a broker is cheap, while a run starts
a dozen processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.spark.pipeline.engine import PipelineEngine
from penstock.spark.pipeline.errors import DefinitionError, FlowFailed, PipelineError, SparkFailed
from penstock.spark.pipeline.groups import FlowGroups
from penstock.spark.pipeline.lag import LagMeter
from penstock.spark.pipeline.runner import RunFailed, RunReport, RunScope, pause_s, run_once
from penstock.spark.pipeline.runs.status_file import StatusFile
from penstock.spark.pipeline.served import ServedDefinitions

# The server drops an unused session after an hour, and workers end after a minute.
MAX_INTERVAL_S = 1800.0
LOOK_EVERY_S = 0.5


@dataclass(slots=True)
class Setbacks:
    """The number of consecutive failures of each flow, and the time of its next attempt. `now` is in seconds."""

    limit: int
    counts: dict[str, int] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)

    def failed(self, name: str, now: float) -> float:
        """Counts a failure. Returns the pause before the next attempt. Beyond `limit` a flow is `exhausted`."""
        self.counts[name] = self.counts.get(name, 0) + 1
        wait_s = pause_s(self.counts[name])
        self.due[name] = now + wait_s
        return wait_s

    def succeeded(self, name: str) -> None:
        self.counts.pop(name, None)
        self.due.pop(name, None)

    def forgive(self) -> None:
        """Everything may be tried again at once."""
        self.due.clear()

    def resting(self, now: float) -> set[str]:
        return {name for name, due in self.due.items() if due > now}

    @property
    def exhausted(self) -> list[str]:
        return [name for name, count in self.counts.items() if count > self.limit]

    @property
    def failures(self) -> int:
        return max(self.counts.values(), default=0)


WHOLE = ""  # the name for failures of the pipeline itself


class Server:
    """`say` prints messages for the user. `stopping` ends serving after the current run."""

    def __init__(
        self,
        engine: PipelineEngine,
        meter: LagMeter,
        status: StatusFile,
        *,
        interval_s: float,
        max_failures: int,
        say: Callable[[str], None],
        stopping: threading.Event,
    ) -> None:
        self._engine = engine
        self._meter = meter
        self._status = status
        self._interval_s = interval_s
        self._say = say
        self._setbacks = Setbacks(max_failures)
        self._groups = FlowGroups(engine.project, meter)
        self._sink_of: dict[str, str] = {}
        self._caught_up: RunReport | None = None
        self._definitions = ServedDefinitions(engine.project)
        self._specification = self._specification_time()
        self._unresolved = ""
        self._stopping = stopping

    def serve(self) -> None:
        """Returns when it is stopped. Raises the error of a flow, or of the definitions, that failed too often."""
        self._status.withdraw_run()  # Spark is there, and no run has begun
        while not self._stopping.is_set():
            self._await_broker()
            if self._stopping.is_set():
                return
            begun = time.monotonic()
            wait_s = self._run()
            if wait_s is None:
                wait_s = max(0.0, self._interval_s - (time.monotonic() - begun))
            self._engine.trim_log()
            self._look_at_specification()
            self._status.change(state="waiting")
            self._pause(wait_s)
            while not self._stopping.is_set() and self._is_idle():
                self._stopping.wait(LOOK_EVERY_S)
                self._look_at_specification()

    def _pause(self, seconds: float) -> None:
        """Ends early if a definition has changed."""
        until = time.monotonic() + seconds
        while not self._stopping.is_set() and (left_s := until - time.monotonic()) > 0:
            if self._definitions.is_changed():
                self._setbacks.forgive()
                return
            self._stopping.wait(min(left_s, LOOK_EVERY_S))

    def _await_broker(self) -> None:
        servers = self._engine.project.servers
        if not servers or self._meter.is_answered():
            return
        self._say(f"waiting for {servers}: no broker answers")
        self._status.change(state="waiting", message=f"no broker answers at {servers}")
        while not self._stopping.is_set():
            self._stopping.wait(LOOK_EVERY_S)
            if self._meter.is_answered():
                self._say(f"{servers} answers: continuing")
                self._status.change(message="")
                return

    def _run(self) -> float | None:
        """Makes one run. Returns the pause before the next one if it differs from the usual."""
        if not self._engine.is_alive:
            self._say("Spark has ended: restarting it")
            self._status.change(state="starting")
            try:
                self._engine.restart()
            except PipelineError as error:
                failed = SparkFailed(str(error), is_transient=True)
                return self._take_failure(RunFailed(failed, RunReport()))
        self._renew_settings()
        resting = self._setbacks.resting(time.monotonic())
        left_out = frozenset(self._sink_of[name] for name in resting if name in self._sink_of)
        self._status.begin_run(failures=self._setbacks.failures)
        self._caught_up = None
        try:
            definitions = self._definitions.choose()
            report = run_once(
                self._engine,
                self._meter,
                self._status.take,
                RunScope(definitions, left_out),
                self._groups,
            )
        except DefinitionError as error:
            return self._take_wrong_definitions(RunFailed(error, RunReport()))
        except RunFailed as failed:
            if isinstance(failed.error, DefinitionError):
                return self._take_wrong_definitions(failed)
            if isinstance(failed.error, FlowFailed):
                self._take_good_definitions()
            self._status.end_run(failed.report.flows, failed.report.seconds, str(failed.error))
            return self._take_failure(failed)
        self._take_good_definitions()
        self._status.end_run(report.flows, report.seconds, is_whole=not left_out)
        self._status.change(message="")
        self._engine.poll_without_pause()
        self._recover([WHOLE, *report.flows])
        if not left_out and not report.has_other_sources:
            self._caught_up = report
        if report.rows_read:
            self._say(f"{report.rows_read} records in {report.seconds:.1f} s")
        return None

    def _renew_settings(self) -> None:
        """A password in a file may have changed. If it is missing for a moment, the former one stays in force."""
        try:
            is_changed = self._engine.renew_settings()
        except PipelineError as error:
            if str(error) != self._unresolved:
                self._say(f"{error}: the former value stays in force")
            self._unresolved = str(error)
            return
        self._unresolved = ""
        if is_changed:
            self._say("a value that the settings refer to has changed")
            self._meter.use(self._engine.project.client_options)

    def _take_wrong_definitions(self, failed: RunFailed) -> float | None:
        assert isinstance(failed.error, DefinitionError)
        served, before = self._definitions, self._definitions.broken
        has_others = served.reject(failed.error)
        self._status.change(broken=served.to_json())
        if not has_others:
            present = served.broken or failed.error  # not the last good ones, if these fail as well
            self._status.end_run(failed.report.flows, failed.report.seconds, str(present))
            return self._take_failure(RunFailed(present, failed.report))
        self._status.withdraw_run()
        if str(before) != str(served.broken):
            assert served.good is not None
            self._say(f"{failed.error}\nThe definitions of {served.good.since} run until this is repaired.")
        return 0.0

    def _take_good_definitions(self) -> None:
        if self._definitions.accept():
            self._say("the definitions are repaired")
        self._status.change(broken=self._definitions.to_json())

    def _is_idle(self) -> bool:
        """Whether the last run finished everything and nothing has changed since."""
        if self._caught_up is None or self._definitions.is_changed() or self._definitions.is_retry_due():
            return False
        for flow in self._caught_up.flows.values():
            self._groups.report(flow.name, flow.offsets)  # offsets expire if nobody commits them again
        readers = [flow for flow in self._caught_up.flows.values() if any(offset.positions for offset in flow.offsets)]
        return bool(readers) and all(self._meter.is_caught_up(flow.offsets) for flow in readers)

    def _take_failure(self, failed: RunFailed) -> float | None:
        error, report = failed.error, failed.report
        names = [name for name, _ in error.flows] if isinstance(error, FlowFailed) else [WHOLE]
        self._recover(name for name, flow in report.flows.items() if not flow.error and flow.state.is_final)
        now = time.monotonic()
        waits_s = {name: self._setbacks.failed(name, now) for name in names}
        self._status.change(message=str(error), failures=self._setbacks.failures)
        self._sink_of.update(report.sinks)
        if self._setbacks.exhausted or not isinstance(error, DefinitionError | FlowFailed | SparkFailed):
            raise error
        if isinstance(error, SparkFailed) and self._engine.is_alive:
            self._renew_session()
        attempts = f"attempt {self._setbacks.failures} of {self._setbacks.limit + 1}"
        self._say(f"{error} ({attempts}; again in {max(waits_s.values()):g} s)")
        others = [wait_s for name, wait_s in waits_s.items() if name not in self._sink_of]
        return max(others) if others else None

    def _renew_session(self) -> None:
        try:
            self._engine.renew_session()
        except PipelineError as error:
            self._say(str(error))
            self._engine.close()  # the next run restarts it

    def _specification_time(self) -> int:
        try:
            return self._engine.project.spec_path.stat().st_mtime_ns
        except OSError:  # missing while an editor replaces it
            return 0

    def _look_at_specification(self) -> None:
        found = self._specification_time()
        if found not in (0, self._specification):
            self._specification = found
            name = self._engine.project.spec_path.name
            self._say(f"{name} has changed: the old version stays in force until serve is restarted")

    def _recover(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._setbacks.counts:
                self._setbacks.succeeded(name)
                self._say(f"flow {name} runs again" if name else "the pipeline runs again")
