"""The examples of docs/python-client.md and docs/transactions.md run as they are, against one broker for each page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing import Broker

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture
def run(penstock_broker_factory: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    broker = penstock_broker_factory({"group.initial.rebalance.delay.ms": "0"})
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP_SERVERS", broker.bootstrap_servers)

    def run_examples(page: str) -> None:
        text = (DOCS / page).read_text(encoding="utf-8")
        for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(compile(example, page, "exec"), {"__name__": "__main__"})

    return run_examples


def test_a_transaction_of_records_and_offsets(run: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    run("transactions.md")
    assert capsys.readouterr().out == "['10', '25', '4']\n"


def test_the_examples_run(run: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    run("python-client.md")
    assert capsys.readouterr().out.splitlines() == [
        "0 0",
        "b'en' hello",
        "hello",
        "1000 1000",
        "aborted: alice has no 99",
        "['-10', '+10']",
        "1000 [990, 991, 992]",
        "mine: parcels-0 parcels-1 parcels-2 parcels-3",
    ]
