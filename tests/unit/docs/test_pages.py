"""The targets of the written pages exist: links, tests that show promises, files and symbols of the architecture."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src" / "penstock"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
ARCHITECTURE = [ROOT / "ARCHITECTURE.md", *sorted(ROOT.glob("docs/internals/*.md"))]

_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_FILE = re.compile(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py|/))`")
_SYMBOL = re.compile(r"`((?:[a-z_]+\.)+)([A-Z]\w+)(?:\.(\w+))?`")
_MEMBER = re.compile(r"`([A-Z]\w+)\.(\w+)`")


@pytest.fixture(scope="module")
def file_map() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_file_map", ROOT / "tools" / "generate_file_map.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith(("http:", "https:")):
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(path), f"{page.name}: {target}#{anchor}"


def test_the_tests_that_show_promises_exist() -> None:
    cited = _TEST.findall((ROOT / "docs" / "promises.md").read_text(encoding="utf-8"))
    assert len(cited) > 20
    for path, name in cited:
        assert re.search(rf"^ *(?:async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), name


def test_every_code_of_a_test_is_explained() -> None:
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    promises, _, tests = text.partition("\n## The tests\n")
    explained = set(re.findall(r"^\| \*(\w+)\* \|", tests, re.MULTILINE))
    used = set(re.findall(r"(?<!\*)\*(\w+)\*(?!\*)", promises))
    assert used == explained


def test_the_architecture_names_what_there_is() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in ARCHITECTURE)
    files = _FILE.findall(text)
    assert len(files) > 40
    for name in files:
        assert (SOURCE / name).exists() or (ROOT / name).exists(), name
    written = "".join(page.read_text(encoding="utf-8") for page in ARCHITECTURE if page.name != "files.md")
    symbols = _SYMBOL.findall(written)  # the file map has the docstrings' own words
    assert len(symbols) > 20
    for module, name, member in symbols:
        source = (SOURCE / module.strip(".").replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        assert re.search(rf"^(?:class )?{name}\b", source, re.MULTILINE), f"{module}{name}"
        assert not member or re.search(rf"\b{member}\b", source), f"{module}{name}.{member}"
    sources = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    for name, member in set(_MEMBER.findall(written)):
        of_name = [source for source in sources if re.search(rf"^class {name}\b", source, re.MULTILINE)]
        assert any(re.search(rf"\b{member}\b", source) for source in of_name), f"{name}.{member}"


def test_every_package_is_among_the_layers() -> None:
    _, _, layers = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("\n## Layers\n")
    layers, _, _ = layers.partition("\n## ")
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert len(packages) > 10
    assert packages == {name for name in packages if f"`{name}`" in layers}


def test_the_file_map_has_every_module(file_map: ModuleType) -> None:
    assert file_map.main(["--check"]) == 0, "run tools/generate_file_map.py"
    assert file_map.main(["--unknown"]) == 2
    text = file_map.PAGE.read_text(encoding="utf-8")
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == {name for name in packages if f"\n## {name}\n" in text}


def test_the_site_has_every_page() -> None:
    """`make docs` refuses a page that the navigation lacks; this says so without MkDocs."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"- (?:[\w ]+: )?([\w/-]+\.md)$", navigation, re.MULTILINE)
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    pages |= {f"project/{page.name}" for page in ROOT.glob("*.md")}
    assert sorted(listed) == sorted(pages)
