from __future__ import annotations

import itertools

import pytest

from command_line import CommandLine
from penstock.testing import Broker


@pytest.fixture
def cli(penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Against the session's broker, which it finds by the environment."""
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", penstock_broker.bootstrap_servers)
    return CommandLine(monkeypatch, capsys)


_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A name of this test's own; the session's broker is shared."""
    return f"cli-{next(_numbers)}"
