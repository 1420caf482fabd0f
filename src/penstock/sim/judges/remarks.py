"""Copies log lines of brokers into the trace; logged defects and damage go to the watch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.api.fetch.fetch_answers import NOT_SERVED
from penstock.sim.judges.history import Violation
from penstock.sim.judges.watch import Watch
from penstock.sim.machine.process import current_process
from penstock.sim.machine.trace import Trace


class _Remarks(logging.Handler):
    """Copies log lines into the trace. A log line with a traceback is a defect."""

    def __init__(self, trace: Trace, watch: Watch) -> None:
        super().__init__()
        self._trace = trace
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        who = process.name if process else "world"
        self._trace.remark(who, f"{record.levelname}: {record.getMessage()}")
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Exception):
            violation = Violation("brokers have no defects", f"{who}: {record.getMessage()}: {error!r}")
            violation.__cause__ = error
            self._watch.failed(violation)
        elif record.levelno == logging.CRITICAL and NOT_SERVED in record.getMessage():
            self._watch.found_damage(who, record.getMessage())


@contextmanager
def remarks(trace: Trace, watch: Watch, *, is_wanted: bool) -> Iterator[None]:
    """Broker logs go into the trace, or nowhere."""
    logger = logging.getLogger("penstock")
    handler, level, propagates = _Remarks(trace, watch), logger.level, logger.propagate
    logger.propagate = False
    logger.setLevel(logging.INFO if is_wanted else logging.ERROR)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
