"""Access to numba: compiled functions with fixed signatures, kept in a writable cache.

A fixed signature means that a function is compiled (or loaded from the cache) once, when its module is imported.
Importing this module imports numba. Without numba it raises ImportError, and callers use plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from penstock.arrow.cache.warmup import place_numba_cache

place_numba_cache()  # numba reads the setting at import

import numba  # noqa: E402
from llvmlite import ir  # noqa: E402
from numba.core import cgutils, types  # noqa: E402
from numba.extending import intrinsic  # noqa: E402

F = TypeVar("F", bound=Callable[..., Any])

if numba.config.DISABLE_JIT:  # uncompiled, our kernels would be slower than plain Python
    raise ImportError("numba's compiler is switched off by NUMBA_DISABLE_JIT")

INT = types.int64
BYTES = types.Array(types.uint8, 1, "C")
SOURCE = types.Array(types.uint8, 1, "C", readonly=True)  # also bytes objects
INT32S = types.Array(types.int32, 1, "C")
INT64S = types.Array(types.int64, 1, "C")
TABLE = types.Array(types.int64, 2, "C")
ENDS = types.Array(types.int32, 2, "C")
MARKS = types.Array(types.uint8, 2, "C")
OFFSETS = types.Array(types.int32, 1, "C", readonly=True)

_OPTIONS = {"nogil": True, "error_model": "numpy"}


def kernel(result: Any, *arguments: Any) -> Callable[[F], F]:
    """Compiles for exactly these types. Without a writable cache directory every process compiles again."""

    def decorate(function: F) -> F:
        signature = result(*arguments)
        try:
            compiled = numba.njit(cache=True, **_OPTIONS)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            compiled = numba.njit(**_OPTIONS)(function)
        try:
            compiled.compile(signature)
        except (AttributeError, ImportError):
            # Earlier code left a cache that names a class which is gone. numba reads it before it compares the code.
            compiled.recompile()  # has compiled nothing yet: this only empties the cache
            compiled.compile(signature)
        compiled.disable_compile()
        kept: F = compiled
        return kept

    return decorate


def part(function: F) -> F:
    """A part of a kernel, compiled into its callers."""
    compiled: F = numba.njit(**_OPTIONS)(function)
    return compiled


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(_: Any, target: Any, to: Any, source: Any, at: Any, size: Any) -> Any:
    """`target[to:to + size] = source[at:at + size]` as one memcpy, which takes a tenth of the time of numba's slices.

    It checks nothing. Negative indices do not wrap but crash.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        into = context.make_array(signature.args[0])(context, builder, args[0])
        out_of = context.make_array(signature.args[2])(context, builder, args[2])
        cgutils.raw_memcpy(builder, builder.gep(into.data, [args[1]]), builder.gep(out_of.data, [args[3]]), args[4], 1)
        return context.get_dummy_value()

    return types.void(target, to, source, at, size), generate


# Access to memory by address. A part that is given arrays counts references to them, atomically: that takes longer than
# the work of a small part. Nothing is checked.


@intrinsic  # type: ignore[untyped-decorator]
def load_byte(_: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(place, typ=ir.IntType(8)), ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_byte(_: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        builder.store(builder.trunc(args[1], ir.IntType(8)), place)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_int(_: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), typ=ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_int(_: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_double(_: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], ir.DoubleType().as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.float64), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_memory(_: Any, to: Any, at: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(builder, builder.inttoptr(args[0], kind), builder.inttoptr(args[1], kind), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def special_bytes(_: Any, at: Any) -> Any:
    """The bytes that end a plain run within a JSON string, of the 32 from `at` on: a bit for each, the first is lowest.

    They are quotes, backslashes, control characters, and all that is not ASCII.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(8), 32)
        block = builder.load(builder.inttoptr(args[0], vector.as_pointer()), typ=vector)
        block.align = 1

        def all_of(byte: int) -> Any:
            return ir.Constant(vector, [byte] * 32)

        found = builder.icmp_unsigned("==", block, all_of(0x22))
        found = builder.or_(found, builder.icmp_unsigned("==", block, all_of(0x5C)))
        found = builder.or_(found, builder.icmp_signed("<", block, all_of(0x20)))  # what is not ASCII is negative
        return builder.zext(builder.bitcast(found, ir.IntType(32)), ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(_: Any, bits: Any) -> Any:
    """The position of the lowest bit that is set; there must be one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate
