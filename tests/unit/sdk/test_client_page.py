"""The examples of docs/python-client.md run as they are, one after the other against one broker."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing import Broker

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python-client.md"


def test_the_examples_run(
    penstock_broker_factory: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = penstock_broker_factory({"group.initial.rebalance.delay.ms": "0"})
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", broker.bootstrap_servers)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == [
        "0 0",
        "b'en' hello",
        "hello",
        "1000 1000",
        "1000 [990, 991, 992]",
        "mine: parcels-0 parcels-1 parcels-2 parcels-3",
    ]
