"""Being here puts `tests/` on the import path: what several directories share lies beside this file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

# Machines that run tests are shared: how long an example takes says nothing of the code.
hypothesis.settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("shared machine")

# Tests that run only when they are asked for, as in `-m kafka_jars`.
ON_REQUEST = {
    "kafka_jars": "needs Java and Apache Kafka's jars (make test-kafka-jars)",
    "crashes": "kills pipelines with state, a start of Spark each time (make pipeline-crashes)",
    "install": "installs the package into an empty environment, hundreds of megabytes (make test-install)",
}


def pytest_configure(config: pytest.Config) -> None:
    for marker, meaning in ON_REQUEST.items():
        config.addinivalue_line("markers", f"{marker}: {meaning}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.markexpr:
        left_out = [item for item in items if any(map(item.get_closest_marker, ON_REQUEST))]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """`tools/run_tests.py` says at the very end, for all lanes together, what could not run here."""
    if path := os.environ.get("PENSTOCK_NOT_RUN"):
        reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(reason.removeprefix("Skipped: ").replace("\n", " ") + "\n" for reason in reasons)


# A runner in the background ignores these, and so would every process that a test starts and then interrupts.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)
