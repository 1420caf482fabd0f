"""The hint that a session reaches Python through TCP: once, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.session.session import config_for
from penstock.spark.source.transport import BY_SOCKET_FILE, BY_TCP, SCRATCH, SETTING, hint_at_sockets


@pytest.fixture(autouse=True)
def plain_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment of a process that Spark has started with its own settings."""
    monkeypatch.setenv(BY_TCP, "40001")
    monkeypatch.delenv(BY_SOCKET_FILE, raising=False)
    monkeypatch.setenv(SCRATCH, f"{tmp_path},/elsewhere")


def test_once_in_a_session(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for _ in range(3):
        hint_at_sockets()
    assert len(caplog.messages) == 1
    assert f"set {SETTING}=true" in caplog.text
    assert "penstock.spark.session()" in caplog.text
    (tmp_path / "another").mkdir()
    monkeypatch.setenv(SCRATCH, str(tmp_path / "another"))
    hint_at_sockets()
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("scratch", ["", "/does/not/exist"])
def test_in_each_query_where_it_cannot_be_noted(
    scratch: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCRATCH, scratch)
    hint_at_sockets()
    hint_at_sockets()
    assert len(caplog.messages) == 2


def test_not_with_socket_files(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_for()[SETTING] == "true"
    monkeypatch.delenv(BY_TCP)
    monkeypatch.setenv(BY_SOCKET_FILE, "/tmp/socket")
    hint_at_sockets()
    # Nor where Spark reaches Python in a way that is not known.
    monkeypatch.delenv(BY_SOCKET_FILE)
    hint_at_sockets()
    assert caplog.messages == []
