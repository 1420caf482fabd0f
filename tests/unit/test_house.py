"""Order of the tree that nobody has to remember: each rule is shown to refuse a planted example.

An exception is a line in a table below, with its reason. Lines that are no longer needed are refused, too, so that the
tables only shrink by themselves and grow by decision.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.config.settings import BROKER_KEYS
from penstock.config.topic import TOPIC_KEYS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"
Modules = Mapping[str, Any]

# -- tables of exceptions ---------------------------------------------------------------

MOST_FILES = 25
ROOMS = {
    "src/penstock/api/handlers": 61,  # a file an API, under its name
    "src/penstock/wire/messages": 90,  # generated: a file an API
}
"""Directories with more files than others, and how many they may have."""

ONE_SUBCLASS = {
    "penstock.api.context.RequestContext": "a forwarded request has another origin",
    "penstock.api.handlers.init_producer_id.InitProducerIdHandler": "fewer versions without two-phase commit",
    "penstock.cli.arguments.naming.Name": "the name of a topic is also not empty",
    "penstock.core.partition.following.Followed": "the core's table; the broker adds its session",
    "penstock.gateway.http.shapes.ProduceRecord": "a body of the REST API with more fields",
    "penstock.ports.disk.FileSlice": "a slice of a log also knows its offsets",
    "penstock.node.node.Node": "the simulated broker is a node with a world of its own",
    "penstock.sim.workload.writers.producers.PlainWriter": "its topic may lose records",
}
"""Bases with one subclass, and why they are bases."""

STATE_TABLES = {"Act", "IllegalMove", "Input", "Move", "Request", "Role", "State"}
"""The vocabulary of tables of states: each of them in `core` has its own."""
TWICE = {"Outcome"}
"""Names of classes that mean different things within one package, or in one that imports the other."""

HOOKS = {
    "penstock.api.fetch.parked_request": {"wake", "when_blocked"},  # while a request is parked
    "penstock.api.fetch.session_resolution": {"on_close", "when_evicted"},
    "penstock.sim.faults.passing": {"fail_call"},  # a fault begins
    "penstock.sim.faults.staged": {"misread"},
    "penstock.sim.judges.replica_ears": {"catch_up", "on_committed"},
    "penstock.sim.judges.watch": {"after_turn"},
    "penstock.sim.machine.channel": {"on_readable", "on_writable"},  # an endpoint gets its reader
    "penstock.sim.machine.transport": {"on_readable", "on_writable"},
    "penstock.sim.machine.world": {"on_crash"},
    "penstock.sim.probes": {"on_end", "on_wake"},
    "penstock.sim.workload.writers.early": {"between"},
    "penstock.sim.workload.writers.reborn": {"is_gone"},
    "penstock.storage.log": {"append_first", "is_void"},
}
"""Attributes of other objects that get a callback after construction, by module."""

MOST_PARAMETERS = 7
PARAMETERS = {
    "penstock.api.cluster_view.ClusterView.__init__": 9,
    "penstock.api.handlers.fetch.FetchHandler.__init__": 8,
    "penstock.api.handlers.produce.ProduceHandler._append": 8,
    "penstock.cluster.broker_registry.BrokerRegistry.__init__": 10,
    "penstock.cluster.controller.Controller.__init__": 10,
    "penstock.cluster.quorum.Quorum.__init__": 9,
    "penstock.cluster.raft_driver.RaftDriver.__init__": 9,
    "penstock.core.group.classic.ClassicMember.__init__": 8,
    "penstock.node.handlers.Parts.__init__": 9,
    "penstock.replica.fetchers.ReplicaFetchers.__init__": 8,
    "penstock.replica.hosting.HostedPartitions.__init__": 9,
    "penstock.replica.partition.Partition.__init__": 8,
    "penstock.sim.tuning.tuning": 8,
    "penstock.sim.workload.caller.Caller.ask": 8,
    "penstock.arrow.decode.kernels.headers": 9,  # compiled: arrays, not objects
    "penstock.arrow.decode.kernels.survey": 16,
    "penstock.arrow.values.kernels._row": 12,
    "penstock.arrow.values.kernels.parse": 13,
    "penstock.storage.log_files.LogFiles.__init__": 8,
    "penstock.storage.log_files.LogFiles.cut": 8,
    "penstock.wire_client.blocking.fetch_stream.FetchStream.__init__": 9,
}
"""Functions with more parameters than others. Options of commands do not count: click passes them by name."""

REGISTERED = {
    "ApiVersionsHandler": 2,  # it also answers before the node serves clients
    "InitProducerIdHandler": 0,  # a setting chooses one of the two for the same line
    "WithoutTwoPhaseCommitHandler": 0,
}
"""Handlers that are not made in exactly one place."""


# -- the rules --------------------------------------------------------------------------


def full_rooms(root: Path) -> dict[str, int]:
    """Directories of code with more than `MOST_FILES` files."""
    found = {}
    for top in ("src", "tests", "bench", "tools", "demo"):
        for directory in [root / top, *(path for path in (root / top).rglob("*") if path.is_dir())]:
            files = [path for path in directory.glob("*.py") if path.name != "__init__.py"]
            if len(files) > MOST_FILES:
                found[directory.relative_to(root).as_posix()] = len(files)
    return found


def classes_of(modules: Modules) -> dict[tuple[str, str], ast.ClassDef]:
    """Those that a module has at its top."""
    return {
        (module.name, node.name): node
        for module in modules.values()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    }


def lone_bases(tool: ModuleType, modules: Modules) -> dict[str, str]:
    """Bases with exactly one subclass, and that one. Protocols and errors are no way to split a file."""
    classes, found = classes_of(modules), {}
    for base, leaf in tool.lone_subclasses(modules):
        is_protocol = any(ast.unparse(one).partition("[")[0].endswith("Protocol") for one in classes[base].bases)
        if not is_protocol and not _is_error(modules, classes, base):
            found[".".join(base)] = ".".join(leaf)
    return found


def _is_error(modules: Modules, classes: Mapping[tuple[str, str], ast.ClassDef], name: tuple[str, str]) -> bool:
    """By its bases in the product, down to one of Python's that is called an error or exception."""
    if name not in classes:
        return name[1].endswith(("Error", "Exception"))
    names = [ast.unparse(base) for base in classes[name].bases]
    dotted = [modules[name[0]].names.get(one, f"{name[0]}.{one}") for one in names]
    return any(_is_error(modules, classes, (one.rpartition(".")[0], one.rpartition(".")[2])) for one in dotted)


def lives_off_privates(tool: ModuleType, modules: Modules) -> dict[str, set[str]]:
    """The private names of its base that the only subclass of a base uses or replaces."""
    classes, found = classes_of(modules), {}
    for base, leaf in tool.lone_subclasses(modules):
        shared = _private_names(classes[base]) & (_used_names(classes[leaf]) | _private_names(classes[leaf]))
        if shared:
            found[".".join(leaf)] = shared
    return found


def _private_names(node: ast.ClassDef) -> set[str]:
    names = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "self":
            names.add(one.attr)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def _used_names(node: ast.ClassDef) -> set[str]:
    return {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and ast.unparse(one.value) in ("self", "super()")
    }


def names_twice(tool: ModuleType, modules: Modules) -> dict[str, list[str]]:
    """Public classes with one name in one package, or in two packages of which one imports the other."""
    places: dict[str, list[Any]] = defaultdict(list)
    for module, name in classes_of({at: one for at, one in modules.items() if not one.is_generated}):
        if not name.startswith("_"):
            places[name].append(modules[module])
    edges = tool.edges_between(modules)
    found = {}
    for name, owners in places.items():
        meet = [
            owner.name
            for owner in owners
            for other in owners
            if owner is not other
            and (
                owner.package == other.package
                or (owner.package, other.package) in edges
                or (other.package, owner.package) in edges
            )
            and not (name in STATE_TABLES and "penstock.core" in (owner.package, other.package))
        ]
        if meet:
            found[name] = sorted(set(meet))
    return found


def late_hooks(modules: Modules) -> dict[str, set[str]]:
    """`other.name = self._method`, or a lambda, a partial or a function inside of it: by module, the names."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                for name in _late_hooks(node):
                    found[module.name].add(name)
    return dict(found)


def _late_hooks(node: ast.ClassDef) -> Iterator[str]:
    functions = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = {f"self.{one.name}" for one in functions}
    for function in functions:
        inside = {one.name for one in ast.walk(function) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
        for one in ast.walk(function):
            if isinstance(one, ast.Assign) and _is_callback(one.value, methods, inside):
                for target in one.targets:
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self":
                        yield target.attr


def _is_callback(value: ast.expr, methods: set[str], inside: set[str]) -> bool:
    if isinstance(value, ast.Call):
        is_partial = ast.unparse(value.func).endswith("partial") and bool(value.args)
        return is_partial and _is_callback(value.args[0], methods, inside)
    return isinstance(value, ast.Lambda) or ast.unparse(value) in methods | inside


def long_signatures(modules: Modules) -> dict[str, int]:
    """Functions with more than `MOST_PARAMETERS` besides the object itself."""
    found = {}
    for module in modules.values():
        if not module.is_generated:
            for name, node in _functions(module.tree, module.name):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = sum(one.arg not in ("self", "cls") for one in given)
                if count > MOST_PARAMETERS and not any("command" in ast.unparse(one) for one in node.decorator_list):
                    found[name] = count
    return found


def _functions(node: ast.AST, around: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{around}.{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from _functions(child, name)
        else:
            yield from _functions(child, around)


def registrations(modules: Modules) -> dict[str, int]:
    """How often each handler is made, or is a line of a table."""
    handlers = {
        node.name: 0
        for module in modules.values()
        if ".api.handlers." in module.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Handler")
    }
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                for one in (node.func, *(node.args[:1] if ast.unparse(node.func) == "_line" else ())):
                    if isinstance(one, ast.Name) and one.id in handlers:
                        handlers[one.id] += 1
    return handlers


_NAMED = re.compile(r"`([a-z_]+(?:\.[a-z_]+)+)(?:\.[A-Z]\w*)?(?:\.\w+)?`")
_TEST_FILE = re.compile(r"\b(?:tests|src|tools|bench)/[\w/]+\.py\b")


def lost_modules(root: Path, source: Path, other_names: Iterable[str]) -> list[str]:
    """Modules in quotes, in docstrings and comments, that are not there: `package.module` or `package.module.Name`."""
    packages = {path.parent.name for path in source.glob("*/__init__.py")} - {"spark"}  # Spark's settings begin so
    known, found = set(other_names), []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name in _NAMED.findall(text):
            if name.split(".")[0] in packages and name not in known and not _is_there(source, name):
                found.append(f"{path.relative_to(root).as_posix()}: {name}")
        found += [
            f"{path.relative_to(root).as_posix()}: {name}"
            for name in _TEST_FILE.findall(text)
            if not (root / name).exists()
        ]
    return found


def _is_there(source: Path, dotted: str) -> bool:
    path = source.joinpath(*dotted.split("."))
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    owner, name = path.parent, path.name  # a function of a module, or a name that a package passes on
    for file in (owner.with_suffix(".py"), owner / "__init__.py"):
        if file.exists() and re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")):
            return True
    return False


# -- the house --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_structure", ROOT / "tools" / "measure_structure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure_structure"] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def house(tool: ModuleType) -> Modules:
    found: Modules = tool.load(ROOT)
    assert len(found) > 500
    return found


def test_rooms_have_few_files() -> None:
    found = full_rooms(ROOT)
    assert {name: count for name, count in found.items() if count > ROOMS.get(name, MOST_FILES)} == {}
    assert set(ROOMS) - set(found) == set()


def test_a_base_with_one_subclass_has_a_reason(tool: ModuleType, house: Modules) -> None:
    assert set(lone_bases(tool, house)) == set(ONE_SUBCLASS)


def test_no_leaf_lives_off_the_privates_of_its_base(tool: ModuleType, house: Modules) -> None:
    assert lives_off_privates(tool, house) == {}


def test_one_name_means_one_class(tool: ModuleType, house: Modules) -> None:
    found = names_twice(tool, house)
    assert {name: places for name, places in found.items() if name not in TWICE} == {}
    assert set(found) >= TWICE


def test_hooks_are_arguments_of_constructors(house: Modules) -> None:
    assert late_hooks(house) == HOOKS


def test_what_travels_together_is_a_value(house: Modules) -> None:
    found = long_signatures(house)
    assert {name: count for name, count in found.items() if count > PARAMETERS.get(name, MOST_PARAMETERS)} == {}
    assert set(PARAMETERS) - set(found) == set()


def test_a_handler_is_registered_once(house: Modules) -> None:
    found = registrations(house)
    assert len(found) > 50
    assert {name: count for name, count in found.items() if count != 1} == REGISTERED


def test_modules_in_docstrings_exist() -> None:
    assert lost_modules(ROOT, SOURCE, [*BROKER_KEYS, *TOPIC_KEYS]) == []


def test_test_files_have_different_names() -> None:
    """pytest imports them by their base name, and stops at the second one."""
    names: dict[str, list[str]] = defaultdict(list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        names[path.name].append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in names.items() if len(places) > 1} == {}


def test_contributing_says_what_each_kind_of_test_shows() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    there = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("*.py")) or any(path.glob("*/*.py"))}
    assert len(there) > 5
    assert {name for name in there if f"`tests/{name}/`" not in text} == set()


# -- planted ----------------------------------------------------------------------------


def plant(root: Path, files: Mapping[str, str]) -> Path:
    packages = {str(above / "__init__.py"): "" for name in files for above in Path(name).parents if above.name}
    for name, text in {**packages, **files}.items():
        path = root / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize("place", ["src/product/shed", "tests/unit/shed", "bench"])
def test_a_flat_room_is_found(tmp_path: Path, place: str) -> None:
    room = tmp_path / place
    room.mkdir(parents=True)
    for number in range(MOST_FILES):
        (room / f"thing_{number}.py").touch()
    (room / "__init__.py").touch()
    assert full_rooms(tmp_path) == {}
    (room / "one_more.py").touch()
    assert full_rooms(tmp_path) == {place: MOST_FILES + 1}


def test_a_file_split_by_inheritance_is_found(tool: ModuleType, tmp_path: Path) -> None:
    split = (
        "class Upper:\n    def __init__(self):\n        self._rows = []\n        self.count = 0\n"
        "    def _decide(self): ...\n"
    )
    leaf = "from product.upper import Upper\nclass Lower(Upper):\n    def act(self):\n        return self._rows\n"
    modules = tool.load(plant(tmp_path, {"product/upper.py": split, "product/lower.py": leaf}))
    assert lone_bases(tool, modules) == {"product.upper.Upper": "product.lower.Lower"}
    assert lives_off_privates(tool, modules) == {"product.lower.Lower": {"_rows"}}
    replaced = leaf.replace("def act", "def _decide").replace("self._rows", "self.count")
    modules = tool.load(plant(tmp_path, {"product/lower.py": replaced}))
    assert lives_off_privates(tool, modules) == {"product.lower.Lower": {"_decide"}}
    modules = tool.load(plant(tmp_path, {"product/lower.py": leaf.replace("self._rows", "self.count")}))
    assert lives_off_privates(tool, modules) == {}


def test_protocols_and_errors_may_have_one_subclass(tool: ModuleType, tmp_path: Path) -> None:
    text = (
        "from typing import Protocol\nclass Reader(Protocol): ...\nclass File(Reader): ...\n"
        "class ReadError(Exception): ...\nclass Torn(ReadError): ...\nclass TornTail(Torn): ...\n"
        "class Plain: ...\nclass Less(Plain): ...\n"
    )
    modules = tool.load(plant(tmp_path, {"product/words.py": text}))
    assert lone_bases(tool, modules) == {"product.words.Plain": "product.words.Less"}


def test_a_name_for_two_things_is_found(tool: ModuleType, tmp_path: Path) -> None:
    files = {
        "product/low/one.py": "class Enemy: ...\nclass View: ...\nclass _Own: ...\n",
        "product/low/two.py": "class Enemy: ...\nclass _Own: ...\n",
        "product/high/three.py": "import product.low.one\nclass View: ...\nclass Far: ...\n",
        "product/side/four.py": "class Far: ...\n",
    }
    modules = tool.load(plant(tmp_path, files))
    assert names_twice(tool, modules) == {
        "Enemy": ["product.low.one", "product.low.two"],
        "View": ["product.high.three", "product.low.one"],
    }


def test_the_vocabulary_of_tables_is_that_of_core_alone(tool: ModuleType, tmp_path: Path) -> None:
    files = {f"penstock/{package}/{name}.py": "class State: ...\n" for package in ("core", "net") for name in "ab"}
    assert names_twice(tool, tool.load(plant(tmp_path, files))) == {"State": ["penstock.net.a", "penstock.net.b"]}


@pytest.mark.parametrize(
    "hook",
    [
        "self.parts.on_lost = self._lost",
        "parts.on_lost = self._lost",
        "parts.on_lost = lambda: None",
        "parts.on_lost = partial(self._lost, 1)",
        "def lost(): ...\n        parts.on_lost = lost",
    ],
)
def test_a_hook_after_construction_is_found(tool: ModuleType, tmp_path: Path, hook: str) -> None:
    text = f"class Whole:\n    def __init__(self, parts):\n        {hook}\n    def _lost(self): ...\n"
    assert late_hooks(tool.load(plant(tmp_path, {"product/whole.py": text}))) == {"product.whole": {"on_lost"}}
    plain = "class Whole:\n    def __init__(self, parts):\n        self.on_lost = self._lost\n        parts.size = 1\n"
    assert late_hooks(tool.load(plant(tmp_path, {"product/whole.py": plain}))) == {}


def test_a_long_signature_is_found(tool: ModuleType, tmp_path: Path) -> None:
    names = [f"one_{number}" for number in range(MOST_PARAMETERS + 1)]
    methods = f"    def __init__(self, {', '.join(names)}): ...\n    def fit(self, {', '.join(names[1:])}): ...\n"
    command = f"@click.command()\ndef produce({', '.join(names)}): ...\n"
    modules = tool.load(
        plant(tmp_path, {"product/whole.py": f"class Whole:\n{methods}", "product/command.py": command})
    )
    assert long_signatures(modules) == {"product.whole.Whole.__init__": MOST_PARAMETERS + 1}


def test_a_handler_in_two_places_is_found(tool: ModuleType, tmp_path: Path) -> None:
    files = {
        "product/api/handlers/fetch.py": "class FetchHandler: ...\n",
        "product/api/handlers/raft.py": "class RaftHandler: ...\nclass Plan: ...\n",
        "product/node/handlers.py": "TABLE = (_line(FetchHandler, make),)\nmade = [FetchHandler(1)]\n",
    }
    assert registrations(tool.load(plant(tmp_path, files))) == {"FetchHandler": 2, "RaftHandler": 0}


def test_a_module_that_has_moved_is_found(tmp_path: Path) -> None:
    docstring = '"""Must not know `net.listener`, `net.gone` or `net.gone.Thing.part`; `node.id` is a setting."""\n'
    files = {
        "product/net/listener.py": "bound = 1\n",
        "product/net/channel.py": docstring + "# `net.bound`, tests/unit/gone.py\n",
        "product/node/own.py": '"""`net.listener.bound` and `net.listener.Listener` are there."""\n',
    }
    source = plant(tmp_path, files) / "src" / "product"
    place = "src/product/net/channel.py"
    assert lost_modules(tmp_path, source, ["node.id"]) == [
        f"{place}: net.gone",
        f"{place}: net.gone",
        f"{place}: net.bound",
        f"{place}: tests/unit/gone.py",
    ]
