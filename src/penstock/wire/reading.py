"""Generates the source of a reader: one function for one message class and version.

The code is straight-line: nested structs and lists are read in place, neighbouring fixed-width values (and the length
that follows them) with one precompiled Struct, and attributes are stored without `__init__`. Every length is checked
against the end of the buffer before it is used, so that input costs memory at most in proportion to its size. All other
bad input raises IndexError, struct.error or UnicodeDecodeError, which become ProtocolError at the end of the function.

A reader has a bound on the elements of all arrays and tagged fields of the message together, and counts before it
reads. With a `yield` after every STEP_ITEMS items, the same source is a reader in steps, so that a message with many
elements does not hold the event loop.

Names in the source: b buffer, p position, z size of the buffer, m elements still allowed, s items read. The other names
are numbered.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias

from penstock.model.errors import ProtocolError
from penstock.ports.disk import Buffer
from penstock.wire.primitives import (
    MAX_TAGGED_FIELDS,
    Field,
    Message,
    read_long_uvarint,
    read_uvarint,
    skip_tagged_fields,
)

FORMATS = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "float64": "d",
    "bool": "?",
    "uuid": "16s",
}

STEP_ITEMS: Final = 128
"""Items of arrays read or written between two steps; a power of two."""
NO_BOUND: Final = 1 << 31

_HEAD = """\
def read(b, p, m=NO_BOUND):
    z = len(b)
    s = 0
    try:
"""
_TAIL = """\
    except (IndexError, StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{NAME} v{VERSION}: {error}") from error
    return o0, p
"""


def has(field: Field, version: int) -> bool:
    return field[2][0] <= version <= field[2][1]


def is_nullable(field: Field, version: int) -> bool:
    return field[3] is not None and field[3][0] <= version <= field[3][1]


def nested_class(owner: type[Message], name: str) -> type[Message]:
    schema = next(base for base in owner.__mro__ if "FIELDS" in vars(base))
    found: type[Message] = getattr(sys.modules[schema.__module__], name)
    return found


Read: TypeAlias = tuple[Message, int]
"""A message and the offset after it."""
StepReader: TypeAlias = Callable[[Buffer, int, int], Generator[None, None, Read]]


def compile_reader(cls: type[Message], version: int) -> Callable[[Buffer, int], Read]:
    read: Callable[[Buffer, int], Read] = _compile(cls, version, in_steps=False)
    return read


def compile_step_reader(cls: type[Message], version: int) -> StepReader:
    read: StepReader = _compile(cls, version, in_steps=True)
    return read


def _compile(cls: type[Message], version: int, *, in_steps: bool) -> Any:
    generator = _ReaderSource(version, flexible=version >= cls.FLEXIBLE_FROM, in_steps=in_steps)
    source = generator.function(cls)
    names = generator.names | {"NAME": cls.__name__, "VERSION": version}
    exec(compile(source, f"<read {cls.__name__} v{version}>", "exec"), names)
    return names["read"]


class _ReaderSource:
    def __init__(self, version: int, *, flexible: bool, in_steps: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps
        self.lines: list[str] = []
        self.depth = 2
        self.counter = 0
        self.run: list[tuple[str, str]] = []  # format, assignment target
        self.names: dict[str, Any] = {
            "new": object.__new__,
            "unpack_from": struct.unpack_from,
            "StructError": struct.error,
            "ProtocolError": ProtocolError,
            "long_uvarint": read_long_uvarint,
            "uvarint": read_uvarint,
            "skip": skip_tagged_fields,
            "NO_BOUND": NO_BOUND,
        }

    def function(self, cls: type[Message]) -> str:
        self.struct("o0", cls)
        self.flush()
        if self.in_steps:
            self.emit("if False: yield")  # a generator even without a loop
        return _HEAD + "\n".join(self.lines) + "\n" + _TAIL

    # Emitting

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def bind(self, value: object, hint: str) -> str:
        name = f"{hint}_"
        while self.names.setdefault(name, value) is not value:
            name += "_"
        return name

    def flush(self) -> None:
        """Emits the pending fixed-width values as one unpack."""
        if not self.run:
            return
        formats = "".join(fmt for fmt, _ in self.run)
        targets = ", ".join(target for _, target in self.run)
        self.run.clear()
        if formats == "B":
            self.emit(f"{targets} = b[p]; p += 1")
            return
        name = "U_" + formats.replace("?", "z")
        if name not in self.names:
            self.names[name] = struct.Struct(">" + formats).unpack_from
        comma = "" if "," in targets else ","
        self.emit(f"{targets}{comma} = {name}(b, p); p += {struct.calcsize('>' + formats)}")

    def fail(self, condition: str, reason: str) -> None:
        self.emit(f'if {condition}: raise ProtocolError("{reason}")')

    def spend(self, count: str) -> None:
        self.emit(f"m -= {count}")
        self.fail("m < 0", "the message has more elements than its API allows")

    # Structs

    def struct(self, target: str, cls: type[Message]) -> None:
        self.emit(f"{target} = new({self.bind(cls, cls.__name__)})")
        tagged = []
        for field in cls.FIELDS:
            attribute = f"{target}.{field[0]}"
            present = has(field, self.version)
            if present and field[4] is None:
                self.field(attribute, field, cls)
            else:
                self.emit(f"{attribute} = {self.default(field, cls)}")
            if present and field[4] is not None:
                tagged.append(field)
        if self.flexible:
            self.tagged_section(target, tagged, cls)

    def default(self, field: Field, cls: type[Message]) -> str:
        if field[5] != ():
            return repr(field[5])
        if field[1].startswith("[]"):
            return "[]"
        return self.bind(nested_class(cls, field[1]), field[1]) + "()"

    def tagged_section(self, target: str, tagged: list[Field], cls: type[Message]) -> None:
        count = self.fresh("t")
        self.run.append(("B", count))
        self.flush()
        self.emit(f"if {count}:")
        self.depth += 1
        self.emit(f"if {count} > 127: {count}, p = long_uvarint(b, p, {count})")
        self.fail(f"{count} > {MAX_TAGGED_FIELDS}", f"more than {MAX_TAGGED_FIELDS} tagged fields")
        self.spend(count)
        if not tagged:
            self.emit(f"p = skip(b, p, {count}, z)")
            self.depth -= 1
            return
        self.emit(f"for _ in range({count}):")
        self.depth += 1
        tag, end = self.fresh("t"), self.fresh("e")
        self.emit(f"{tag}, p = uvarint(b, p)")
        self.emit(f"{end}, p = uvarint(b, p); {end} += p")
        self.fail(f"{end} > z", "tagged field runs past the end of the message")
        for field in tagged:
            self.emit(f"if {tag} == {field[4]}:")
            self.depth += 1
            self.field(f"{target}.{field[0]}", field, cls)
            self.flush()
            self.fail(f"p != {end}", f"tagged field {field[0]} has the wrong size")
            self.emit("continue")
            self.depth -= 1
        self.emit(f"p = {end}")
        self.depth -= 2

    # Fields

    def field(self, target: str, field: Field, cls: type[Message]) -> None:
        kind, nullable = field[1], is_nullable(field, self.version)
        if kind.startswith("[]"):
            self.list(target, kind[2:], nullable, cls)
        elif kind in FORMATS:
            self.run.append((FORMATS[kind], target))
        elif kind in ("string", "bytes", "records"):
            self.blob(target, kind, nullable)
        elif nullable:
            self.nullable_struct(target, nested_class(cls, kind))
        else:
            inner = self.fresh("o")
            self.struct(inner, nested_class(cls, kind))
            self.emit(f"{target} = {inner}")

    def nullable_struct(self, target: str, cls: type[Message]) -> None:
        marker, inner = self.fresh("n"), self.fresh("o")
        self.run.append(("b", marker))
        self.flush()
        self.emit(f"if {marker} < 0: {inner} = None")
        self.emit("else:")
        self.depth += 1
        self.struct(inner, cls)
        self.flush()
        self.depth -= 1
        self.emit(f"{target} = {inner}")

    def length(self, legacy_format: str) -> str:
        """Reads a length into a new variable. Negative means null in both encodings."""
        name = self.fresh("n")
        if not self.flexible:
            self.run.append((legacy_format, name))
            self.flush()
            return name
        self.run.append(("B", name))
        self.flush()
        self.emit(f"if {name} > 127: {name}, p = long_uvarint(b, p, {name})")
        self.emit(f"{name} -= 1")
        return name

    def blob(self, target: str, kind: str, nullable: bool) -> None:
        length = self.length("h" if kind == "string" else "i")
        end = self.fresh("e")
        if nullable:
            self.emit(f"if {length} < 0: {target} = None")
            self.emit("else:")
            self.depth += 1
        else:
            self.fail(f"{length} < 0", f"{kind} must not be null")
        self.emit(f"{end} = p + {length}")
        self.fail(f"{end} > z", f"{kind} runs past the end of the message")
        value = {
            "string": f'str(b[p:{end}], "utf-8")',
            "bytes": f"bytes(b[p:{end}])",
            "records": f"(b if b.__class__ is memoryview else memoryview(b))[p:{end}]",
        }[kind]
        self.emit(f"{target} = {value}; p = {end}")
        if nullable:
            self.depth -= 1

    def list(self, target: str, kind: str, nullable: bool, cls: type[Message]) -> None:
        count = self.length("i")
        if nullable:
            self.emit(f"if {count} < 0: {target} = None")
            self.emit("else:")
            self.depth += 1
        else:
            self.fail(f"{count} < 0", "array must not be null")
        self.spend(count)
        if kind in FORMATS:
            self.fixed_items(target, kind, count)
        else:
            self.items(target, kind, count, cls)
        if nullable:
            self.depth -= 1

    def fixed_items(self, target: str, kind: str, count: str) -> None:
        end = self.fresh("e")
        self.emit(f"{end} = p + {count} * {struct.calcsize('>' + FORMATS[kind])}")
        self.fail(f"{end} > z", "array runs past the end of the message")
        if kind == "uuid":
            self.emit(f"{target} = [bytes(b[i:i + 16]) for i in range(p, {end}, 16)]; p = {end}")
        else:
            self.emit(f'{target} = list(unpack_from(f">{{{count}}}{FORMATS[kind]}", b, p)); p = {end}')

    def items(self, target: str, kind: str, count: str, cls: type[Message]) -> None:
        items, item = self.fresh("l"), self.fresh("o")
        self.fail(f"{count} > z - p", "array is longer than the rest of the message")
        self.emit(f"{target} = {items} = []")
        self.emit(f"for _ in range({count}):")
        self.depth += 1
        if kind in ("string", "bytes"):
            self.blob(item, kind, nullable=False)
        else:
            self.struct(item, nested_class(cls, kind))
        self.flush()
        self.emit(f"{items}.append({item})")
        if self.in_steps:
            self.emit("s += 1")
            self.emit(f"if not s & {STEP_ITEMS - 1}: yield")
        self.depth -= 1
