"""Write src/penstock/wire/messages from the schemas in the `kio` package.

kio has one class per version of each message. Here all versions of a message become
one class with the union of their fields and a table saying which version has which,
so that nothing above the wire sees versions and nobody imports kio at run time.

    python tools/generate_messages.py [DIRECTORY]

A test compares the committed modules with what this writes.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin

from kio.index import load_entity_schema
from kio.schema.index import PayloadEntityType, api_key_map, schema_name_map
from kio.serial._introspect import EntityField, EntityTupleField, classify_field, get_field_tag, is_optional
from kio.static.constants import EntityType

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "src" / "penstock" / "wire" / "messages"
NEVER = 32767
API_VERSIONS_KEY = 18

WIRE_TYPES = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
PYTHON_TYPES = {"bool": "bool", "float64": "float", "uuid": "bytes", "string": "str", "bytes": "bytes"}
ZEROS = {"bool": False, "float64": 0.0, "uuid": b"\0" * 16, "string": "", "bytes": b"", "records": b""}

# kio drops the explicit null default of an array of structs.
NULL_DEFAULTS = {
    "ConsumerGroupHeartbeatRequest": {"topic_partitions"},
    "ListPartitionReassignmentsRequest": {"topics"},
    "Topology": {"subtopologies"},
    "StreamsGroupHeartbeatRequest": {
        "active_tasks",
        "standby_tasks",
        "warmup_tasks",
        "client_tags",
        "task_offsets",
        "task_end_offsets",
    },
    "StreamsGroupHeartbeatResponse": {
        "active_tasks",
        "standby_tasks",
        "warmup_tasks",
        "partitions_by_user_endpoint",
    },
}


@dataclasses.dataclass
class Field:
    name: str
    type: str
    default: object
    tag: int | None
    versions: list[int] = dataclasses.field(default_factory=list)
    nullable: list[int] = dataclasses.field(default_factory=list)

    @property
    def base(self) -> str:
        return self.type.removeprefix("[]")

    @property
    def is_list(self) -> bool:
        return self.type.startswith("[]")

    @property
    def is_struct(self) -> bool:
        return self.base[0].isupper()

    def annotation(self) -> str:
        if self.base == "records":
            return "Records"
        base = self.base if self.is_struct else PYTHON_TYPES.get(self.base, "int")
        whole = f"list[{base}]" if self.is_list else base
        return f"{whole} | None" if self.nullable or self.default is None else whole

    def row(self) -> str:
        nullable = span(self.nullable) if self.nullable else None
        default = "NULL_UUID" if self.type == "uuid" else repr(self.default)
        return f"({self.name!r}, {self.type!r}, {span(self.versions)}, {nullable}, {self.tag}, {default}),"


@dataclasses.dataclass
class Struct:
    name: str
    fields: list[Field]
    versions: list[int]
    flexible_from: int

    def rename(self, old: str, new: str) -> None:
        if self.name == old:
            self.name = new
        for field in self.fields:
            if field.base == old:
                field.type = f"[]{new}" if field.is_list else new


def span(versions: list[int]) -> tuple[int, int]:
    assert versions == list(range(versions[0], versions[-1] + 1)), versions
    return versions[0], versions[-1]


def wire_type(field: dataclasses.Field[object]) -> str:
    kind = classify_field(field)
    if isinstance(kind, EntityField | EntityTupleField):
        base = kind.type_.__name__
    else:
        base = str(field.metadata["kafka_type"])
        base = WIRE_TYPES.get(base, base)
    return f"[]{base}" if kind.is_array else base


def is_nullable(field: dataclasses.Field[object], wire: str) -> bool:
    """A uuid or a time is never null on the wire: kio maps None to zeros and to -1."""
    if wire in ("uuid", "int64"):
        return False
    if wire.startswith("[]"):
        return get_origin(field.type) is UnionType and type(None) in get_args(field.type)
    return is_optional(field)


def default_of(owner: str, field: dataclasses.Field[object], wire: str) -> object:
    value = field.default
    if value is dataclasses.MISSING:
        if wire.startswith("[]"):
            return None if is_nullable(field, wire) and field.name in NULL_DEFAULTS.get(owner, ()) else ()
        if wire[0].isupper():
            return None if get_field_tag(field) is not None else ()
        return ZEROS.get(wire, 0)
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if wire == "int64" and value is None:
        return -1
    if wire == "uuid":
        assert value is None
        return ZEROS["uuid"]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # An absent tagged struct is None here; its class must default to the same values.
        assert get_field_tag(field) is not None
        assert value == type(value)(**{f.name: f.default for f in dataclasses.fields(value)})
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    assert value is None or isinstance(value, bool | str | bytes) or value == (), value
    return value


def field_of(owner: str, field: dataclasses.Field[object]) -> Field:
    wire = wire_type(field)
    kafka_type = str(field.metadata.get("kafka_type", ""))
    suffix = "_ms" if kafka_type.startswith(("timedelta", "datetime")) else ""
    tag = get_field_tag(field)
    return Field(field.name + suffix, wire, default_of(owner, field, wire), None if tag is None else int(tag))


def merge(struct: Struct, schema: type, version: int) -> None:
    """Adds one version's fields, each new one after its predecessor."""
    position = 0
    for schema_field in dataclasses.fields(schema):
        new = field_of(struct.name, schema_field)
        known = next((f for f in struct.fields if f.name == new.name), None)
        if known is None:
            struct.fields.insert(position, new)
            known = new
        assert (known.type, known.default, known.tag) == (new.type, new.default, new.tag), (struct.name, new.name)
        assert struct.fields.index(known) >= position, f"{struct.name}.{known.name} changes its place"
        position = struct.fields.index(known) + 1
        known.versions.append(version)
        if is_nullable(schema_field, known.type):
            known.nullable.append(version)
    struct.versions.append(version)


def collect(schema: type, version: int, structs: dict[str, Struct], seen: set[str]) -> None:
    """Merges everything nested in `schema`, and then `schema`."""
    name = schema.__name__
    if name in seen:
        return
    seen.add(name)
    for field in dataclasses.fields(schema):
        kind = classify_field(field)
        if isinstance(kind, EntityField | EntityTupleField):
            collect(kind.type_, version, structs, seen)
    struct = structs.setdefault(name, Struct(name, [], [], NEVER))
    if schema.__flexible__:  # type: ignore[attr-defined]
        struct.flexible_from = min(struct.flexible_from, version)
    else:
        assert struct.flexible_from == NEVER
    merge(struct, schema, version)


def structs_of(key: int, api_name: str, kind: PayloadEntityType) -> list[Struct]:
    structs: dict[str, Struct] = {}
    for version in sorted(schema_name_map[api_name]):
        schema = load_entity_schema(api_name, version, kind)
        header = schema.__header_schema__.__version__  # type: ignore[attr-defined]
        if kind is EntityType.request:
            assert header == (2 if schema.__flexible__ else 1)
        else:
            assert header == (1 if schema.__flexible__ and key != API_VERSIONS_KEY else 0)
        collect(schema, version, structs, set())
    return in_order(structs)


def in_order(structs: dict[str, Struct]) -> list[Struct]:
    """Sorts nested classes before their parents, the top level last."""
    ordered: list[Struct] = []

    def visit(struct: Struct) -> None:
        for field in struct.fields:
            if field.is_struct:
                visit(structs[field.base])
        if struct not in ordered:
            ordered.append(struct)

    for struct in structs.values():
        visit(struct)
    return ordered


def disambiguate(request: list[Struct], response: list[Struct]) -> list[Struct]:
    """Shares a struct with the same definition in both directions, and gives others distinct names."""
    while True:
        theirs = {struct.name: struct for struct in response}
        clash = next((s.name for s in request if s.name in theirs and s != theirs[s.name]), None)
        if clash is None:
            return request + [s for s in response if s not in request]
        for prefix, structs in (("Request", request), ("Response", response)):
            for struct in structs:
                struct.rename(clash, prefix + clash)


def class_source(struct: Struct) -> str:
    lines = [f"class {struct.name}(Message):"]
    names = ", ".join(f'"{field.name}"' for field in struct.fields)
    lines.append(f"    __slots__ = ({names}{',' if len(struct.fields) == 1 else ''})")
    lines.append(f"    VERSIONS = {span(struct.versions)}")
    lines.append(f"    FLEXIBLE_FROM = {'NEVER' if struct.flexible_from == NEVER else struct.flexible_from}")
    if not struct.fields:
        return "\n".join(lines)
    lines.append("    FIELDS = (")
    lines += [f"        {field.row()}" for field in struct.fields]
    lines.append("    )")
    lines.append("    def __init__(self, *, " + ", ".join(map(parameter, struct.fields)) + ",) -> None:")
    lines += [f"        {assignment(field)}" for field in struct.fields]
    return "\n".join(lines)


def parameter(field: Field) -> str:
    if field.default == ():
        default = "FRESH"
    elif field.type == "uuid":
        default = "NULL_UUID"
    else:
        default = repr(field.default)
    return f"{field.name}: {field.annotation()} = {default}"


def assignment(field: Field) -> str:
    if field.default != ():
        return f"self.{field.name} = {field.name}"
    empty = "[]" if field.is_list else f"{field.base}()"
    return f"self.{field.name} = {empty} if {field.name} is FRESH else {field.name}"


def module_source(key: int, api_name: str) -> tuple[str, Struct]:
    request = structs_of(key, api_name, EntityType.request)
    response = structs_of(key, api_name, EntityType.response)
    top = request[-1]
    assert top.name == camel(api_name) + "Request"
    assert response[-1].name == camel(api_name) + "Response"
    assert (top.versions, top.flexible_from) == (response[-1].versions, response[-1].flexible_from)
    classes = [class_source(struct) for struct in disambiguate(request, response)]
    body = "\n\n\n".join(classes)
    names = [name for name in ("FRESH", "NEVER", "NULL_UUID", "Message", "Records") if re.search(rf"\b{name}\b", body)]
    first, last = span(top.versions)
    flexible = "no flexible version" if top.flexible_from == NEVER else f"flexible from {top.flexible_from}"
    head = f"""\
        \"\"\"{camel(api_name)} (key {key}), versions {first} to {last}, {flexible}.

        Generated by tools/generate_messages.py: change that, not this.
        \"\"\"

        from __future__ import annotations

        from penstock.wire.primitives import {", ".join(names)}


        """
    return textwrap.dedent(head) + body + "\n", top


def index_source(tops: dict[int, Struct]) -> str:
    head = '''\
        """The APIs that have messages here: keys, modules, version ranges.

        Generated by tools/generate_messages.py: change that, not this.
        """

        from __future__ import annotations

        from enum import IntEnum


        class Api(IntEnum):
        '''
    members = "\n".join(f"    {api_key_map[key].upper()} = {key}" for key in tops)
    rows = "\n".join(
        f'    {key}: ("{api_key_map[key]}", "{camel(api_key_map[key])}", {span(top.versions)}, {top.flexible_from}),'
        for key, top in tops.items()
    )
    table = f"INDEX: dict[int, tuple[str, str, tuple[int, int], int]] = {{\n{rows}\n}}"
    doc = '"""key -> (module, class name stem, versions, flexible from)"""'
    return f"{textwrap.dedent(head)}{members}\n\n\n{table}\n{doc}\n"


def camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def generate(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    tops = {}
    for key, api_name in sorted(api_key_map.items()):
        source, tops[key] = module_source(key, api_name)
        (target / f"{api_name}.py").write_text(source)
    (target / "index.py").write_text(index_source(tops))
    doc = "One module per API, all versions in one shape. Generated by tools/generate_messages.py."
    (target / "__init__.py").write_text(f'"""{doc}"""\n')
    ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--config", str(ROOT / "pyproject.toml"), str(target)]
    subprocess.run(ruff, check=True)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
