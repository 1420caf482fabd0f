"""Writes docs/protocol.md from the handlers: keys, versions, and what their module docstrings say; `--check` compares.

python tools/generate_protocol_page.py [--check]

A handler's docstring opens with "Name (key N), versions A-B"; that must be what its class declares.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.api import handlers
from penstock.wire.apis import api
from penstock.wire.messages.index import INDEX

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
_OPENING = re.compile(
    r"(?P<name>\w+) \(key (?P<key>\d+)\), versions? (?P<min>\d+)(?:-(?P<max>\d+))?\s*(?P<rest>.*)", re.S
)

INTRO = """# The protocol

<!-- Written by tools/generate_protocol_page.py from the handlers and their docstrings. -->

Kafka's binary protocol over TCP, without TLS and SASL. *Served* are the versions that Penstock serves; *Kafka's* are
those of Apache Kafka's message definitions, including one that Kafka itself marks as unstable (InitProducerId 6). What
is served *to brokers* of the same cluster is not advertised to clients. A request of another API or version closes the
connection, as on a Kafka broker; ApiVersions is the exception.

Responses on a connection come in the order of the requests. Produce and fetch requests are processed while earlier ones
still wait for a flush or for data. Any other request waits for the responses before it, and later requests wait for it.

Requests are bounded. A frame that is too large for its API, or one with more elements in its arrays than its API
allows, closes the connection. Requests that name partitions or topics may have 500,000 elements. Kafka's decoder allows
a million in each array.

| Requests | Bytes of a frame | Elements |
|---|---|---|
| Produce | `socket.request.max.bytes` | 20,000 |
| those that name partitions, topics or settings one by one | 16 MiB | 500,000 |
| JoinGroup | 4 MiB | 20,000 |
| SyncGroup | 16 MiB | 20,000 |
| all others | 1 MiB | 20,000 |
"""


@dataclass(frozen=True, slots=True)
class Entry:
    key: int
    name: str
    min_version: int
    max_version: int
    remark: str
    """The rest of the first sentence: often empty."""
    notes: str
    is_advertised: bool = True

    @property
    def versions(self) -> str:
        return _range(self.min_version, self.max_version)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _is_private(module: ModuleType) -> bool:
    """The rows of keys that only nodes of a cluster use."""
    own = [found for _, found in inspect.getmembers(module, inspect.isclass) if found.__module__ == module.__name__]
    return any("key" in vars(found) for found in own) and not any("api" in vars(found) for found in own)


def read_entry(module: ModuleType) -> Entry:
    """The docstring of a handler module, checked against its class."""
    classes: list[Any] = [found for _, found in inspect.getmembers(module, inspect.isclass)]
    [handler] = [
        found
        for found in classes
        if found.__module__ == module.__name__ and {"api", "min_version", "max_version"} <= vars(found).keys()
    ]
    docstring = inspect.getdoc(module) or ""
    opening, _, notes = docstring.partition("\n\n")
    match = _OPENING.fullmatch(opening)
    if match is None:
        raise ValueError(f"{module.__name__}: the docstring does not open with 'Name (key N), versions A-B'")
    said = (match["name"], int(match["key"]), int(match["min"]), int(match["max"] or match["min"]))
    spec = api(handler.api)
    declared = (spec.name, int(spec.key), handler.min_version, handler.max_version)
    if said != declared:
        raise ValueError(f"{module.__name__}: the docstring says {said}, the class {declared}")
    remark = match["rest"].strip(" :.\n").replace("\n", " ")
    is_advertised = getattr(handler, "is_advertised", True)
    return Entry(spec.key, spec.name, handler.min_version, handler.max_version, remark, notes.strip(), is_advertised)


def entries() -> list[Entry]:
    names = [module.name for module in pkgutil.iter_modules(handlers.__path__)]
    modules = [import_module(f"{handlers.__name__}.{name}") for name in names]
    found = [read_entry(module) for module in modules if not _is_private(module)]
    return sorted(found, key=lambda entry: entry.key)


def page() -> str:
    served = entries()
    lines = [INTRO, "| Key | API | Served | Kafka's |", "|---|---|---|---|"]
    for entry in served:
        known = api(entry.key)
        link = f"[{entry.name}](#{entry.name.lower()})" if entry.notes or entry.remark else entry.name
        to_whom = "" if entry.is_advertised else ", to brokers"
        known_versions = _range(known.min_version, known.max_version)
        lines.append(f"| {entry.key} | {link} | {entry.versions}{to_whom} | {known_versions} |")
    lines += ["", "## What to know about each", ""]
    for entry in served:
        if entry.notes or entry.remark:
            lines += [f"### {entry.name}", ""]
            if entry.remark:
                lines += [_sentence(entry), ""]
            if entry.notes:
                lines += [entry.notes, ""]
    keys = {entry.key for entry in served}
    missing = [f"{INDEX[key][1]} ({key})" for key in sorted(INDEX) if key not in keys]
    lines += ["## Not served", "", "Kafka's other APIs, transactions and security among them:", "", *_wrapped(missing)]
    return "\n".join(lines) + "\n"


def _sentence(entry: Entry) -> str:
    if entry.remark.startswith("("):
        return f"Versions {entry.versions} {entry.remark}."
    return f"{entry.remark[0].upper()}{entry.remark[1:]}."


def _wrapped(names: list[str], width: int = 118) -> list[str]:
    lines, line = [], ""
    for number, name in enumerate(names):
        item = name + ("." if number + 1 == len(names) else ",")
        if line and len(line) + 1 + len(item) > width:
            lines.append(line)
            line = ""
        line = f"{line} {item}" if line else item
    return [*lines, line]


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    if not arguments:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print("docs/protocol.md is not current: run tools/generate_protocol_page.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
