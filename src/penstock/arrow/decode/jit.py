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
