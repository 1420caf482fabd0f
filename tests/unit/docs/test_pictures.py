"""The README's pictures are what the results and the drawing say, and follow the reader's colour scheme."""

from __future__ import annotations

import importlib.util
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def drawing() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("draw_pictures", ROOT / "tools" / "draw_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_committed_pictures_are_current(drawing: ModuleType) -> None:
    assert drawing.main(["--check"]) == 0, "run make pictures"
    assert drawing.main(["--unknown"]) == 2


def test_pictures_are_readable_in_light_and_dark(drawing: ModuleType) -> None:
    pictures = sorted(drawing.PICTURES.glob("*.svg"))
    assert [path.name for path in pictures] == ["architecture.svg", "benchmarks.svg"]
    for path in pictures:
        ElementTree.parse(path)
        assert "prefers-color-scheme: dark" in path.read_text(encoding="utf-8")


def test_the_figures_of_the_readme_are_on_the_pages(drawing: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    one, three = (
        (ROOT / "docs" / f"benchmarks{name}.md").read_text(encoding="utf-8").splitlines() for name in ("", "-cluster")
    )
    for said, lines, metric, figure in (
        ("**491 MB/s**", one, "throughput, MB/s", "| 491 ("),
        ("142 MB/s", one, "throughput, MB/s", "| 142 ("),
        ("**0.37 s**", three, "median, s", "| 0.371 ("),
        ("11.4 s", three, "median, s", "| 11.4 ("),
        ("**31 MB**", one, "memory, idle", "| 31.3 ("),
        ("376 MB", one, "memory, idle", "| 376 ("),
    ):
        assert said in readme
        assert any(metric in line and figure in line for line in lines), said
