"""Being here puts `tests/` on the import path: what several directories share lies beside this file."""

from __future__ import annotations

import signal

import pytest

MARKER = "kafka_jars"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}: needs Java and Apache Kafka's jars (make test-kafka-jars)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs Kafka's jars runs only when it is asked for: `-m kafka_jars`."""
    if not config.option.markexpr:
        wanted = [item for item in items if item.get_closest_marker(MARKER) is None]
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(MARKER)])
        items[:] = wanted


# A runner in the background ignores these, and so would every process that a test starts and then interrupts.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)
