"""Prints the structure of a checkout: packages, imports between them, what is long, which classes have one subclass.

`python tools/measure_structure.py [CHECKOUT]` reads `src/` there, so that two states of the code can be compared. It
parses and imports nothing of the product. Imports inside functions and those for type checkers count like any other.
Generated messages count as lines of their package and are left out of the lists of what is long.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
GENERATED = "wire/messages"
LONGEST = 15
MOST_LINES = 400

Edges = dict[tuple[str, str], int]


class Function(NamedTuple):
    lines: int
    place: str
    """path:line"""
    name: str
    """With the classes and functions around it."""


class ClassName(NamedTuple):
    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    path: str
    """In the checkout."""
    is_package: bool
    is_generated: bool
    lines: int
    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)
    """What imports bind, by dotted name: modules, and what is taken out of them."""

    @property
    def package(self) -> str:
        """The second level: `penstock.wire` of `penstock.wire.codec`, and the first of modules right below it."""
        parts = self.name.split(".")
        return ".".join(parts[:2]) if len(parts) > 2 or self.is_package else parts[0]


def load(checkout: Path) -> dict[str, Module]:
    """The modules below `src/`, by name."""
    source = checkout / "src"
    found: dict[str, Module] = {}
    for root in sorted(path.parent for path in source.glob("*/__init__.py")):
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            text = path.read_text(encoding="utf-8")
            is_generated = path.relative_to(root).as_posix().startswith(f"{GENERATED}/")
            place = path.relative_to(checkout).as_posix()
            found[name] = Module(name, place, is_package, is_generated, text.count("\n"), ast.parse(text, place))
    for module in found.values():
        module.names.update({bound: dotted for _, bound, dotted in _imports(module, found)})
    return found


# -- imports ----------------------------------------------------------------------------


def _imports(module: Module, modules: Mapping[str, Module]) -> Iterator[tuple[str, str, str]]:
    """The module that is imported, the name that is bound to it or to a part of it, and that part's dotted name."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield alias.name, alias.asname or root, alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(module, node)
            for alias in node.names:
                dotted = f"{origin}.{alias.name}"
                yield dotted if dotted in modules else origin, alias.asname or alias.name, dotted


def _origin(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    above = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*above, node.module] if node.module else above)


def edges_between(modules: Mapping[str, Module]) -> Edges:
    """How many modules of one package import another package."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module in modules.values():
        for target, _, _ in _imports(module, modules):
            if target in modules and modules[target].package != module.package:
                found[module.package, modules[target].package].add(module.name)
    return {edge: len(importers) for edge, importers in sorted(found.items())}


def reachable(edges: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    direct: dict[str, set[str]] = defaultdict(set)
    for one, other in edges:
        direct[one].add(other)
    found: dict[str, set[str]] = {}
    for start in list(direct):
        seen: set[str] = set()
        waiting = list(direct[start])
        while waiting:
            at = waiting.pop()
            if at not in seen:
                seen.add(at)
                waiting.extend(direct.get(at, ()))
        found[start] = seen
    return found


def needed(edges: Edges) -> list[tuple[str, str]]:
    """Without those that follow from others; edges of a cycle are all needed."""
    reach = reachable(edges)

    def follows(one: str, other: str) -> bool:
        if one in reach.get(other, ()):
            return False
        between = (by for start, by in edges if start == one and by != other and one not in reach.get(by, ()))
        return any(other in reach.get(by, ()) for by in between)

    return [edge for edge in edges if not follows(*edge)]


def cycles(edges: Edges) -> list[list[str]]:
    """Packages that reach each other."""
    reach = reachable(edges)
    found = {
        tuple(sorted({one, *(other for other in reach[one] if one in reach.get(other, ()))}))
        for one in reach
        if one in reach[one]
    }
    return [list(cycle) for cycle in sorted(found)]


# -- functions and classes --------------------------------------------------------------


def functions(modules: Iterable[Module]) -> list[Function]:
    """The longest first."""
    found: list[Function] = []

    def walk(module: Module, node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = around
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{around}.{child.name}" if around else child.name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (child.end_lineno or child.lineno) - child.lineno + 1
                found.append(Function(lines, f"{module.path}:{child.lineno}", name))
            walk(module, child, name)

    for module in modules:
        walk(module, module.tree, "")
    return sorted(found, key=lambda one: (-one.lines, one.place))


def lone_subclasses(modules: Mapping[str, Module]) -> list[tuple[ClassName, ClassName]]:
    """Classes of the product with exactly one direct subclass in it, each with that one."""
    classes = {
        (module.name, node.name): node
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }

    def resolve(module: str, dotted: str, depth: int = 8) -> ClassName | None:
        """Through imports and what packages pass on."""
        if module not in modules or not depth:
            return None
        if (module, dotted) in classes:
            return ClassName(module, dotted)
        head, _, rest = dotted.partition(".")
        bound = modules[module].names.get(head)
        if bound is None:
            return None
        full = f"{bound}.{rest}" if rest else bound
        owner, _, name = full.rpartition(".")
        while owner and owner not in modules:
            owner, _, more = owner.rpartition(".")
            name = f"{more}.{name}"
        return resolve(owner, name, depth - 1)

    below: dict[ClassName, list[ClassName]] = defaultdict(list)
    for (module, name), node in classes.items():
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            found = resolve(module, ast.unparse(plain))
            if found is not None:
                below[found].append(ClassName(module, name))
    return sorted((base, found[0]) for base, found in below.items() if len(found) == 1)


# -- the page ---------------------------------------------------------------------------


def report(modules: Mapping[str, Module]) -> str:
    written = [module for module in modules.values() if not module.is_generated]
    edges = edges_between(modules)
    sections = [
        _packages(list(modules.values())),
        _edges(edges),
        _table(f"The {LONGEST} longest functions", ("lines", "function", "place"), _longest(written)),
        _lone(lone_subclasses(modules)),
        _long_files(written),
    ]
    return "\n\n".join(sections) + "\n"


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join([f"## {title}", "", *lines])


def _packages(modules: Sequence[Module]) -> str:
    files: dict[str, int] = defaultdict(int)
    lines: dict[str, int] = defaultdict(int)
    for module in modules:
        package = f"{module.package} (generated)" if module.is_generated else module.package
        files[package] += 1
        lines[package] += module.lines
    rows = [(name, files[name], lines[name]) for name in sorted(files)]
    rows.append(("all", sum(files.values()), sum(lines.values())))
    return _table("Packages", ("package", "files", "lines"), rows)


def _edges(edges: Edges) -> str:
    targets: dict[str, list[str]] = defaultdict(list)
    for (one, other), count in edges.items():
        targets[one].append(f"{_short(other)} {count}")
    table = _table(
        f"Imports between packages: {len(edges)} edges",
        ("package", "imports, and in how many modules"),
        ((_short(one), ", ".join(others)) for one, others in sorted(targets.items())),
    )
    drawn = [f"    {_short(one)} --> {_short(other)}" for one, other in needed(edges)]
    drawing = "\n".join(["Without edges that follow from others:", "", "```mermaid", "flowchart TB", *drawn, "```"])
    found = [" ".join(map(_short, cycle)) for cycle in cycles(edges)]
    return "\n\n".join([table, drawing, f"Cycles: {'; '.join(found) or 'none'}."])


def _short(package: str) -> str:
    return package.partition(".")[2] or package


def _longest(modules: Iterable[Module]) -> list[tuple[int, str, str]]:
    return [(one.lines, one.name, one.place) for one in functions(modules)[:LONGEST]]


def _lone(found: Sequence[tuple[ClassName, ClassName]]) -> str:
    rows = [(f"{base.module}.{base.name}", f"{one.module}.{one.name}") for base, one in found]
    return _table(f"Classes with exactly one subclass: {len(rows)}", ("class", "subclass"), rows)


def _long_files(modules: Iterable[Module]) -> str:
    found = sorted((-one.lines, one.path) for one in modules if one.lines > MOST_LINES)
    title = f"Files over {MOST_LINES} lines: {len(found)}"
    return _table(title, ("lines", "file"), ((-lines, path) for lines, path in found))


def main(arguments: list[str]) -> int:
    checkout = Path(arguments[0]).resolve() if arguments else ROOT
    if len(arguments) > 1 or not (checkout / "src").is_dir():
        print("usage: measure_structure.py [CHECKOUT]; there must be a src/ in it", file=sys.stderr)
        return 2
    print(report(load(checkout)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
