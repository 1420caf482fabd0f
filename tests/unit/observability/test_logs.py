from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from penstock.observability.logs import CONSOLE, JSON, configure, current_format


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """As it was before, for the tests that follow."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers = []  # or `configure` would close those of pytest
    yield
    root.handlers = before
    root.setLevel(level)


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure("INFO", JSON)
    assert current_format() == JSON
    log = logging.getLogger("penstock.somewhere")
    log.debug("not worth a line")
    log.warning("two\nlines of %s", "ünicode", extra={"topic": "events", "size": 3})
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    time = first.pop("time")
    assert len(time) == len("2026-01-31T12:00:00.123Z")
    assert (time[10], time[19], time[-1]) == ("T", ".", "Z")
    assert first == {
        "level": "warning",
        "logger": "penstock.somewhere",
        "process": "broker",
        "message": "two\nlines of ünicode",
        "topic": "events",
        "size": 3,
    }
    assert second["level"] == "error"
    assert second["exception"].startswith("Traceback")
    assert second["exception"].endswith("ValueError: why")


def test_console_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure("INFO", CONSOLE, "gateway")
    assert current_format() == CONSOLE
    logging.getLogger("penstock").info("a port is %s", "taken")
    assert capsys.readouterr().err.endswith(" INFO    gateway: a port is taken\n")
