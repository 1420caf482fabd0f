"""The end of the process that plans a query's batches.

Spark ends it by SIGTERM when the query stops, without a word to the source. If Spark itself is gone, the process sees
the end of its input, and calls `stop()` of the reader. Must not know: what there is to do at the end.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

RUNTIME = "SPARK_PYTHON_RUNTIME"
"""Set in the environment of processes that Spark starts for Python code."""


def is_sparks() -> bool:
    """Whether Spark started this process for Python code."""
    return RUNTIME in os.environ


def before_termination(last: Callable[[], None]) -> None:
    """Calls `last` when Spark ends this process, and then ends it. `last` must not take long."""
    is_possible = threading.current_thread() is threading.main_thread()
    if not is_possible or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            last()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminate)
