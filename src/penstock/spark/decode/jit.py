"""numba, at arm's length: native functions with fixed signatures, kept in a cache that can be written to.

A fixed signature means that a function is compiled (or loaded from the cache) when its module is imported and never
again. Importing this module imports numba; without numba it raises ImportError and the caller does without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from penstock.spark.warmup import place_numba_cache

place_numba_cache()  # numba reads it when imported

import numba  # noqa: E402
from numba.core import cgutils, types  # noqa: E402
from numba.extending import intrinsic  # noqa: E402

F = TypeVar("F", bound=Callable[..., Any])

if numba.config.DISABLE_JIT:  # for debugging other people's code; ours would be slower than plain Python
    raise ImportError("numba's compiler is switched off by NUMBA_DISABLE_JIT")

INT = types.int64
BYTES = types.Array(types.uint8, 1, "C")
SOURCE = types.Array(types.uint8, 1, "C", readonly=True)  # bytes objects too
INT32S = types.Array(types.int32, 1, "C")
INT64S = types.Array(types.int64, 1, "C")
TABLE = types.Array(types.int64, 2, "C")

_OPTIONS = {"nogil": True, "error_model": "numpy"}


def kernel(result: Any, *arguments: Any) -> Callable[[F], F]:
    """Compile for exactly these types. Where no directory can be written to, every process compiles anew."""

    def decorate(function: F) -> F:
        signature = result(*arguments)
        try:
            compiled: F = numba.njit(signature, cache=True, **_OPTIONS)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            compiled = numba.njit(signature, **_OPTIONS)(function)
        return compiled

    return decorate


def part(function: F) -> F:
    """A piece of a kernel: compiled into whoever calls it."""
    compiled: F = numba.njit(**_OPTIONS)(function)
    return compiled


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(_: Any, target: Any, to: Any, source: Any, at: Any, size: Any) -> Any:
    """`target[to:to + size] = source[at:at + size]` as one memcpy: a tenth of what numba makes of the slices.

    Checks nothing. Indices are not wrapped: negative ones are the caller's crash.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        into = context.make_array(signature.args[0])(context, builder, args[0])
        out_of = context.make_array(signature.args[2])(context, builder, args[2])
        cgutils.raw_memcpy(builder, builder.gep(into.data, [args[1]]), builder.gep(out_of.data, [args[3]]), args[4], 1)
        return context.get_dummy_value()

    return types.void(target, to, source, at, size), generate
