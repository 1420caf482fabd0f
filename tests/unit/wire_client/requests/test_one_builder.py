"""Every request of a client is built in `wire_client.requests`, and each kind in one place."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import penstock
from penstock.wire.apis import Api, api

SOURCE = Path(penstock.__file__).parent
CLIENTS = ("cli", "gateway", "sdk", "spark", "testing", "wire_client")
MESSAGES = "penstock.wire.messages"
REQUESTS = frozenset(api(key).request.__name__ for key in Api)


def built(path: Path) -> Iterator[str]:
    """The requests that a module builds, by class."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    classes, modules = set(), set()
    for node in imports:
        for alias in node.names:
            if (node.module or "").startswith(f"{MESSAGES}."):
                classes.add(alias.asname or alias.name)
            elif node.module == MESSAGES:
                modules.add(alias.asname or alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            owner, _, name = ast.unparse(node.func).rpartition(".")
            is_message = owner in modules if owner else name in classes
            if is_message and name in REQUESTS:
                yield name


def places() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for package in CLIENTS:
        for path in sorted((SOURCE / package).rglob("*.py")):
            for name in built(path):
                found[name].append(path.relative_to(SOURCE).as_posix())
    return found


def test_requests_are_built_in_their_own_package() -> None:
    outside = {
        name: where for name, where in places().items() if any("wire_client/requests/" not in one for one in where)
    }
    assert not outside


def test_each_kind_of_request_is_built_in_one_module() -> None:
    assert len(places()) > 30
    assert {name: where for name, where in places().items() if len(set(where)) > 1} == {
        # to learn versions at the begin of a connection, and features later
        "ApiVersionsRequest": ["wire_client/requests/features.py", "wire_client/requests/versions.py"]
    }
