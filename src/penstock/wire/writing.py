"""Generates the source of a writer: one function for one message class and version.

It is the counterpart of `wire.reading`, built the same way. A writer appends parts to a list. Records are appended
unchanged, so that a `FileSlice` reaches the socket unread.

Fields that a version lacks are not written, whatever their value. A value that the version cannot carry (None where
null is illegal, an integer out of range) is a bug of the caller and raises TypeError, AttributeError or struct.error.

With a `yield` after every STEP_ITEMS items, the same source is a writer in steps. In its arrays, an item of another
class than the schema's was encoded before: its `encoded` bytes are used, with a `yield` after every ENCODED_STEP_ITEMS.

Names in the source: o the message, w the append method of the list of parts, s items written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from penstock.ports.channel import Part
from penstock.ports.disk import FileSlice
from penstock.wire.primitives import ONE_BYTE, Field, Message, tagged_section, uvarint
from penstock.wire.reading import FORMATS, STEP_ITEMS, has, is_nullable, nested_class

ENCODED_STEP_ITEMS: Final = 16 * STEP_ITEMS

StepWriter: TypeAlias = Callable[[Message, list[Part]], Iterator[None]]


def compile_writer(cls: type[Message], version: int) -> Callable[[Message, list[Part]], None]:
    write: Callable[[Message, list[Part]], None] = _compile(cls, version, in_steps=False)
    return write


def compile_step_writer(cls: type[Message], version: int) -> StepWriter:
    write: StepWriter = _compile(cls, version, in_steps=True)
    return write


def _compile(cls: type[Message], version: int, *, in_steps: bool) -> Any:
    generator = _WriterSource(version, flexible=version >= cls.FLEXIBLE_FROM, in_steps=in_steps)
    source = generator.function(cls)
    names = generator.names
    exec(compile(source, f"<write {cls.__name__} v{version}>", "exec"), names)
    return names["write"]


def carries_records(cls: type[Message]) -> bool:
    """Whether a writer of this class may append anything but bytes."""
    kinds = [field[1].removeprefix("[]") for field in cls.FIELDS]
    return "records" in kinds or any(carries_records(nested_class(cls, kind)) for kind in kinds if kind[0].isupper())


class _WriterSource:
    def __init__(self, version: int, *, flexible: bool, in_steps: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps
        self.lines: list[str] = []
        self.depth = 1
        self.counter = 0
        self.sink = "w"
        self.run: list[tuple[str, str]] = []  # format, expression
        self.names: dict[str, Any] = {
            "pack": struct.pack,
            "uvarint": uvarint,
            "tagged_section": tagged_section,
            "ONE_BYTE": ONE_BYTE,
            "FileSlice": FileSlice,
        }

    def function(self, cls: type[Message]) -> str:
        self.struct("o", cls)
        self.flush()
        if self.in_steps:
            self.emit("if False: yield")
        return "def write(o, out):\n    w = out.append\n    s = 0\n" + "\n".join(self.lines) + "\n"

    # Emitting

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def bind(self, value: object, hint: str) -> str:
        name = f"{hint}_{len(self.names)}"
        self.names[name] = value
        return name

    def packed(self, run: list[tuple[str, str]]) -> str:
        """An expression for the bytes of these fixed-width values; "x" is a zero byte."""
        formats = "".join(fmt for fmt, _ in run)
        if formats.strip("x") == "":
            return repr(bytes(len(formats)))
        if formats == "B":
            return f"ONE_BYTE[{run[0][1]}]"
        name = "P_" + formats.replace("?", "z")
        if name not in self.names:
            self.names[name] = struct.Struct(">" + formats).pack
        return f"{name}({', '.join(value for _, value in run if value)})"

    def flush(self) -> None:
        if self.run:
            self.emit(f"{self.sink}({self.packed(self.run)})")
            self.run.clear()

    # Structs

    def struct(self, source: str, cls: type[Message]) -> None:
        tagged = []
        for field in cls.FIELDS:
            if not has(field, self.version):
                continue
            if field[4] is None:
                self.field(f"{source}.{field[0]}", field, cls)
            else:
                tagged.append(field)
        if not self.flexible:
            return
        if tagged:
            self.tagged_section(source, sorted(tagged, key=lambda field: field[4] or 0), cls)
        else:
            self.run.append(("x", ""))

    def tagged_section(self, source: str, tagged: list[Field], cls: type[Message]) -> None:
        values = [self.fresh("v") for _ in tagged]
        for value, field in zip(values, tagged, strict=True):
            self.emit(f"{value} = {source}.{field[0]}")
        absent = [self.is_default(value, field) for value, field in zip(values, tagged, strict=True)]
        self.emit(f"if {' and '.join(absent)}: {self.sink}({self.packed([*self.run, ('x', '')])})")
        self.emit("else:")
        self.depth += 1
        self.flush()
        section = self.fresh("s")
        self.emit(f"{section} = []")
        for value, field, condition in zip(values, tagged, absent, strict=True):
            if field[1][0].isupper():
                # A struct with only default values is left out like an absent one.
                default = self.bind(nested_class(cls, field[1])(), "D")
                condition = f"{condition} or {value} == {default}"
            self.emit(f"if not ({condition}):")
            self.depth += 1
            self.tagged_field(section, value, field, cls)
            self.depth -= 1
        self.emit(f"{self.sink}(tagged_section({section}))")
        self.depth -= 1

    def is_default(self, value: str, field: Field) -> str:
        default = field[5]
        if default is None:
            return f"{value} is None"
        return f"{value} == []" if default == () else f"{value} == {default!r}"

    def tagged_field(self, section: str, value: str, field: Field, cls: type[Message]) -> None:
        outer, body = self.sink, self.fresh("b")
        self.sink = self.fresh("w")
        self.emit(f"{body} = []; {self.sink} = {body}.append")
        self.field(value, field, cls)
        self.flush()
        self.emit(f'{section}.append(({field[4]}, b"".join({body})))')
        self.sink = outer

    # Fields

    def field(self, source: str, field: Field, cls: type[Message]) -> None:
        kind, nullable = field[1], is_nullable(field, self.version)
        if kind.startswith("[]"):
            self.list(source, kind[2:], nullable, cls)
        elif kind in FORMATS:
            self.run.append((FORMATS[kind], source))
        elif kind in ("string", "bytes", "records"):
            self.blob(source, kind, nullable)
        else:
            inner = self.fresh("o")
            self.emit(f"{inner} = {source}")
            if nullable:
                self.nullable_struct(inner, nested_class(cls, kind))
            else:
                self.struct(inner, nested_class(cls, kind))

    def nullable_struct(self, source: str, cls: type[Message]) -> None:
        marker = f"-1 if {source} is None else 1"
        self.run.append(("b", marker))
        self.flush()
        self.emit(f"if {source} is not None:")
        self.depth += 1
        self.struct(source, cls)
        self.flush()
        self.depth -= 1

    def length(self, length: str, legacy_format: str) -> None:
        """Writes the length in variable `length`, -1 for null, after the pending values."""
        if not self.flexible:
            self.run.append((legacy_format, length))
            self.flush()
            return
        self.emit(f"if {length} < 127: {self.sink}({self.packed([*self.run, ('B', f'{length} + 1')])})")
        before = f"{self.packed(self.run)} + " if self.run else ""
        self.emit(f"else: {self.sink}({before}uvarint({length} + 1))")
        self.run.clear()

    def blob(self, source: str, kind: str, nullable: bool) -> None:
        value, length = self.fresh("v"), self.fresh("n")
        encoded = f"{value} = {source}.encode()" if kind == "string" else f"{value} = {source}"
        size = f"{value}.size if isinstance({value}, FileSlice) else len({value})"
        measured = f"{length} = {size if kind == 'records' else f'len({value})'}"
        if nullable:
            self.emit(f"if {source} is None: {length} = -1")
            self.emit(f"else: {encoded}; {measured}")
        else:
            self.emit(f"{encoded}; {measured}")
        self.length(length, "h" if kind == "string" else "i")
        self.emit(f"if {length} > 0: {self.sink}({value})")

    def list(self, source: str, kind: str, nullable: bool, cls: type[Message]) -> None:
        items, length = self.fresh("l"), self.fresh("n")
        self.emit(f"{items} = {source}")
        empty = f"-1 if {items} is None else " if nullable else ""
        self.emit(f"{length} = {empty}len({items})")
        self.length(length, "i")
        if kind in FORMATS:
            formats = FORMATS[kind]
            joined = f'b"".join({items})' if kind == "uuid" else f'pack(f">{{{length}}}{formats}", *{items})'
            self.emit(f"if {length} > 0: {self.sink}({joined})")
            return
        item = self.fresh("o")
        self.emit(f"for {item} in {f'{items} or ()' if nullable else items}:")
        self.depth += 1
        if kind in ("string", "bytes"):
            self.blob(item, kind, nullable=False)
        else:
            if self.in_steps:
                schema = self.bind(nested_class(cls, kind), kind)
                self.emit(f"if {item}.__class__ is not {schema}:")
                self.emit(f"    {self.sink}({item}.encoded); s += 1")
                self.emit(f"    if not s & {ENCODED_STEP_ITEMS - 1}: yield")
                self.emit("    continue")
            self.struct(item, nested_class(cls, kind))
        self.flush()
        if self.in_steps:
            self.emit("s += 1")
            self.emit(f"if not s & {STEP_ITEMS - 1}: yield")
        self.depth -= 1
