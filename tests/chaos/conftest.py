"""Shared by the tests of a real cluster: a way to print measurements. Timings are printed, never asserted."""

from __future__ import annotations

import pytest

from support.processes.promises import Tell


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Tell:
    """Print a line whatever pytest captures."""

    def say(line: str) -> None:
        with capsys.disabled():
            print(f"\n  [{request.node.name}] {line}", flush=True)

    return say
