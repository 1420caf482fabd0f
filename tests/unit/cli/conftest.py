from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.cli.cluster import command as cluster_module
from penstock.cli.cluster import progress as cluster_progress
from penstock.testing import Broker
from support.processes.command_line import CommandLine
from support.scripted.cluster import ScriptedCluster


@pytest.fixture
def cli(penstock_broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Against the session's broker, which it finds by the environment."""
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", penstock_broker.bootstrap_servers)
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCluster]:
    scripted = ScriptedCluster()
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", scripted.servers)
    monkeypatch.setattr(cluster_module, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(cluster_progress, "LOOK_EVERY_S", 0.01)
    with ExitStack() as stack:
        for broker in scripted.brokers.values():
            stack.enter_context(broker)
        yield scripted


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    """A name of this test's own; the session's broker is shared."""
    return f"cli-{next(_numbers)}"
