"""The measure of the structure reads a checkout as Python would import it, and imports nothing of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "measure_structure.py"

FILES = {
    "product/__init__.py": "",
    "product/low/__init__.py": "from product.low.words import Word\n",
    "product/low/words.py": "class Word: ...\nclass Lonely: ...\nclass Popular: ...\n",
    "product/middle/__init__.py": "",
    "product/middle/things.py": (
        "from product.low import Word, words\n"
        "class Thing(Word): ...\n"
        "class A(words.Popular): ...\n"
        "class B(words.Popular): ...\n"
    ),
    "product/top/__init__.py": "",
    "product/top/doors.py": (
        "import product.low.words as spelled\n"
        "class Door(spelled.Lonely, Exception):\n"
        "    async def open(self):\n"
        "        from ..middle import things\n"
        "        def inner():\n"
        "            pass\n"
        "        return things, inner\n"
        "def short():\n"
        "    pass\n"
    ),
    "product/wire/messages/big.py": "x = 1\n" * 500 + "def generated():\n" + "    y = 1\n" * 100,
    "product/wire/__init__.py": "",
    "product/top/endless.py": "raise SystemExit('imported')\n" + "x = 1\n" * 400,
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_structure", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure_structure"] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_imports_between_packages_are_counted_by_module(tool: ModuleType, checkout: Path) -> None:
    assert tool.edges_between(tool.load(checkout)) == {
        ("product.middle", "product.low"): 1,
        ("product.top", "product.low"): 1,
        ("product.top", "product.middle"): 1,
    }


def test_what_follows_from_other_edges_is_not_drawn_and_cycles_are(tool: ModuleType) -> None:
    straight = {("a", "b"): 1, ("b", "c"): 1, ("a", "c"): 1}
    assert tool.needed(straight) == [("a", "b"), ("b", "c")]
    assert tool.cycles(straight) == []
    round_about = {("a", "b"): 1, ("b", "a"): 1, ("b", "c"): 1}
    assert tool.needed(round_about) == list(round_about)
    assert tool.cycles(round_about) == [["a", "b"]]


def test_lone_subclasses_are_found_through_aliases_and_packages(tool: ModuleType, checkout: Path) -> None:
    assert tool.lone_subclasses(tool.load(checkout)) == [
        (("product.low.words", "Lonely"), ("product.top.doors", "Door")),
        (("product.low.words", "Word"), ("product.middle.things", "Thing")),
    ]


def test_the_longest_functions_come_first_with_what_is_around_them(tool: ModuleType, checkout: Path) -> None:
    written = [module for module in tool.load(checkout).values() if not module.is_generated]
    found = [(one.lines, one.name, one.place) for one in tool.functions(written)]
    assert found == [
        (5, "Door.open", "src/product/top/doors.py:3"),
        (2, "Door.open.inner", "src/product/top/doors.py:5"),
        (2, "short", "src/product/top/doors.py:8"),
    ]


def test_the_page_names_long_files_and_no_generated_ones(
    tool: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([str(checkout)]) == 0
    page = capsys.readouterr().out
    assert "## Files over 400 lines: 1\n\n| lines | file |\n| --- | --- |\n| 401 | src/product/top/endless.py |" in page
    assert "| product.wire (generated) | 1 | 601 |" in page
    assert "big.py" not in page
    assert "    middle --> low\n    top --> middle\n" in page
    assert "Cycles: none." in page


def test_a_place_without_source_is_refused(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([str(tmp_path)]) == 2
    assert "usage" in capsys.readouterr().err
