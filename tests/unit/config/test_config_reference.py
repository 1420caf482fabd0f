from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

GENERATOR = Path(__file__).resolve().parents[3] / "tools" / "generate_reference.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["topic-settings.md", "broker-settings.md"])
def test_the_committed_pages_are_current(generator: ModuleType, name: str) -> None:
    committed = (generator.REFERENCE / name).read_text(encoding="utf-8")
    assert committed == generator.PAGES[name](), "run tools/generate_reference.py"


def test_check_mode_agrees(generator: ModuleType) -> None:
    assert generator.main(["--check"]) == 0
    assert generator.main(["--unknown"]) == 2
