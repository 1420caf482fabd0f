"""JSON objects as columns of Arrow by the compiled kernel, which may refuse rows: see `kernels`.

Must not know: reasons why a value does not fit. Lists, maps, decimals and binary fields, and structs that have any, are
found by the kernel and decoded by msgspec, each for itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.arrow.values.decoded import BUILD_ERRORS, built

Array = Any  # pyarrow comes without types
Field = Any
Reader = Callable[[memoryview], Any]

READ_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)
ESCAPED = re.compile(rb'["\\\x00-\x1f]')
_NEVER = 1 << 40
MAX_TEXT = 256 << 20
"""Of memory that is reserved: any of the string fields could have all the bytes."""
_WHOLE: dict[Any, Any] = {pa.int8(): np.int8, pa.int16(): np.int16, pa.int32(): np.int32, pa.int64(): np.int64}
_STORED = {pa.int8(): np.int8, pa.int16(): np.int16, pa.int32(): np.int32, pa.date32(): np.int32} | {
    pa.float32(): np.float32
}
"""Of types that are smaller than the kernel's cells."""
_LARGEST = {pa.float32(): float(np.finfo(np.float32).max), pa.float64(): float(np.finfo(np.float64).max)}


@dataclass(frozen=True, slots=True)
class _Node:
    """A field, and its place in the kernel's table."""

    at: int
    field: Field
    kind: int
    text: int
    children: list[_Node]


class QuickColumns(NamedTuple):
    columns: list[Array]
    """Null in the places of refused rows."""
    refused: Any
    """A flag for each row."""


class JsonColumns:
    """`read_span` makes the reader of a field that the kernel does not decode."""

    def __init__(
        self,
        kernels: ModuleType,
        fields: Sequence[Field],
        types: Sequence[Any],
        read_span: Callable[[Field], Reader],
        milliseconds: tuple[int, int],
    ) -> None:
        self._kernels = kernels
        self._types = list(types)
        self._milliseconds = milliseconds
        self._rows: list[list[int]] = [[0] * kernels.FIELD_COLUMNS]
        self._names = b""
        self._strings = 0
        self._depth = 1
        self._doubles: list[_Node] = []
        self._nodes = self._children(0, fields, depth=1)
        self._spans = [
            (node, kind, read_span(node.field))
            for node, kind in zip(self._nodes, self._types, strict=True)
            if node.kind == kernels.SPAN
        ]
        self._table = np.array(self._rows, np.int64)
        self._name_bytes = np.frombuffer(self._names or b" ", np.uint8)

    def _children(self, parent: int, fields: Sequence[Field], depth: int) -> list[_Node]:
        kernels = self._kernels
        self._depth = max(self._depth, depth)
        first = len(self._rows)
        self._rows[parent][kernels.FIRST] = first
        self._rows[parent][kernels.COUNT] = len(fields)
        self._rows[parent][kernels.REQUIRED] = sum(not field.nullable for field in fields)
        self._rows += [[0] * kernels.FIELD_COLUMNS for _ in fields]
        return [self._node(first + index, field, depth) for index, field in enumerate(fields)]

    def _node(self, at: int, field: Field, depth: int) -> _Node:
        kernels, row = self._kernels, self._rows[at]
        name = field.name.encode()
        kind = self._kind(field.type, depth)
        row[kernels.KIND], row[kernels.IS_NULLABLE] = kind, int(field.nullable)
        row[kernels.NAME_AT] = len(self._names)
        # A name that has to be escaped is never found as it is: a row that has it is refused.
        row[kernels.NAME_SIZE] = _NEVER if ESCAPED.search(name) else len(name)
        self._names += name
        children: list[_Node] = []
        text = -1
        if kind == kernels.STRING:
            text = row[kernels.TEXT] = self._strings
            self._strings += 1
        elif kind == kernels.INTEGER:
            limits = np.iinfo(_WHOLE[field.type])
            row[kernels.LOW], row[kernels.HIGH] = int(limits.min), int(limits.max)
        elif kind == kernels.TIMESTAMP:
            row[kernels.LOW], row[kernels.HIGH] = self._milliseconds
        elif kind == kernels.OBJECT:
            children = self._children(at, list(field.type), depth + 1)
        node = _Node(at, field, kind, text, children)
        if kind in (kernels.DOUBLE, kernels.FLOAT):
            self._doubles.append(node)
        return node

    def _kind(self, kind: Any, depth: int) -> int:
        kernels = self._kernels
        simple = {
            pa.float64(): kernels.DOUBLE,
            pa.float32(): kernels.FLOAT,
            pa.string(): kernels.STRING,
            pa.bool_(): kernels.BOOLEAN,
            pa.date32(): kernels.DATE,
        }
        if kind in _WHOLE:
            return int(kernels.INTEGER)
        if kind in simple:
            return int(simple[kind])
        if pa.types.is_timestamp(kind):
            return int(kernels.TIMESTAMP if depth == 1 else kernels.TIMESTAMP_TEXT)
        is_plain = pa.types.is_struct(kind) and depth < kernels.MAX_DEPTH
        if is_plain and all(self._kind(field.type, depth + 1) != kernels.SPAN for field in kind):
            return int(kernels.OBJECT)
        return int(kernels.SPAN)

    def decode(self, values: Array) -> QuickColumns:
        """`values`: an array of type binary. Rows without a value are refused."""
        kernels, rows = self._kernels, len(values)
        _, offset_bytes, data_bytes = values.buffers()
        offsets = np.frombuffer(offset_bytes, np.int32)[values.offset : values.offset + rows + 1]
        data: Any = np.frombuffer(data_bytes, np.uint8) if data_bytes is not None and data_bytes.size else _NO_BYTES
        capacity = int(offsets[rows]) - int(offsets[0])
        if capacity * self._strings > MAX_TEXT and rows > 1:
            halves = [self.decode(values[: rows // 2]), self.decode(values[rows // 2 :])]
            columns = [pa.concat_arrays(both) for both in zip(*(half.columns for half in halves), strict=True)]
            return QuickColumns(columns, np.concatenate([half.refused for half in halves]))
        count = len(self._rows)
        numbers = np.zeros((count, rows), np.int64)
        floats = numbers.view(np.float64)
        marks = np.zeros((count, rows), np.uint8)
        text = np.empty(max(1, self._strings * capacity), np.uint8)
        ends = np.empty((self._strings, rows + 1), np.int32)
        refused = np.zeros(rows, np.uint8)
        kernels.parse(
            data,
            offsets,
            rows,
            self._table,
            self._name_bytes,
            np.empty(count, np.int64),
            np.empty((self._depth, 3), np.int64),
            numbers,
            marks,
            text,
            capacity,
            ends,
            refused,
        )
        if values.null_count:
            refused[values.is_null().to_numpy(zero_copy_only=False)] = 1
        found = _Found(kernels, memoryview(data), numbers, floats, marks, text, capacity, ends, refused)
        for node in self._doubles:
            found.read_doubles(node)
        spans = {node.at: found.read_spans(node, kind, read) for node, kind, read in self._spans}
        marks[:, refused != 0] = kernels.ABSENT
        columns = [found.array(node, kind, spans) for node, kind in zip(self._nodes, self._types, strict=True)]
        return QuickColumns(columns, refused)


_NO_BYTES = np.zeros(1, np.uint8)


class _Found(NamedTuple):
    """What the kernel made of the values."""

    kernels: ModuleType
    data: memoryview
    numbers: Any
    floats: Any
    marks: Any
    text: Any
    capacity: int
    ends: Any
    refused: Any

    def _unread(self, node: _Node) -> Iterator[tuple[int, memoryview]]:
        rows = np.flatnonzero(self.marks[node.at] == self.kernels.UNREAD)
        for row, place in zip(rows.tolist(), self.numbers[node.at, rows].tolist(), strict=True):
            begin = place >> 32
            yield row, self.data[begin : begin + (place & 0xFFFFFFFF)]

    def read_doubles(self, node: _Node) -> None:
        for row, text in self._unread(node):
            number = float(bytes(text))
            if abs(number) > _LARGEST[node.field.type]:
                self.refused[row] = 1
            else:
                self.floats[node.at, row] = number

    def read_spans(self, node: _Node, kind: Any, read: Reader) -> Array:
        cells: list[Any] = [None] * len(self.refused)
        for row, text in self._unread(node):
            try:
                cells[row] = read(text)
            except READ_ERRORS:
                self.refused[row] = 1
        try:
            return built(cells, kind)
        except BUILD_ERRORS:
            for row, cell in enumerate(cells):
                try:
                    built([cell], kind)
                except BUILD_ERRORS:
                    cells[row] = None
                    self.refused[row] = 1
            return built(cells, kind)

    def array(self, node: _Node, kind: Any, spans: Mapping[int, Array]) -> Array:
        if node.at in spans:
            return spans[node.at]
        kernels, marks = self.kernels, self.marks[node.at]
        rows = len(marks)
        nulls = rows - int(np.count_nonzero(marks))
        bits = pa.py_buffer(np.packbits(marks, bitorder="little")) if nulls else None
        if node.kind == kernels.OBJECT:
            children = [self.array(child, kind.field(at).type, spans) for at, child in enumerate(node.children)]
            return pa.Array.from_buffers(kind, rows, [bits], nulls, children=children)
        if node.kind == kernels.STRING:
            begin, ends = node.text * self.capacity, self.ends[node.text]
            buffers = [pa.py_buffer(ends), pa.py_buffer(self.text[begin : begin + int(ends[rows])])]
        else:
            source = self.floats if node.kind in (kernels.DOUBLE, kernels.FLOAT) else self.numbers
            cells = source[node.at]
            if node.kind == kernels.BOOLEAN:
                cells = np.packbits(cells.astype(np.uint8), bitorder="little")
            elif kind in _STORED:
                cells = cells.astype(_STORED[kind])
            buffers = [pa.py_buffer(cells)]
        return pa.Array.from_buffers(kind, rows, [bits, *buffers], nulls)
