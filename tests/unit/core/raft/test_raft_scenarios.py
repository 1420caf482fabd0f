"""Scenarios with golden transcripts. PENSTOCK_REWRITE_SCENARIOS=1 writes down what happens now: read the diff."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from raft_script import Script

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
REWRITE = bool(os.environ.get("PENSTOCK_REWRITE_SCENARIOS"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    played = Script().play(written)
    if REWRITE:
        path.write_text(played, encoding="utf-8")
    else:
        assert played == written, f"{path.name} went another way; PENSTOCK_REWRITE_SCENARIOS=1 writes it down"


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 10
