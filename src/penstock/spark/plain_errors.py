"""Errors of sources and sinks as one sentence, without the stack of Python.

Spark puts the traceback of its Python worker before an error: some forty lines, and the last one says what happened.
Our own errors say that by themselves, so for them alone the traceback is left out. PySpark decides by a variable of the
worker's process, which it reads when it formats an error (`pyspark.util.handle_worker_exception`). The process ends
right after that. Errors of other code keep their traceback, and so do ours if PENSTOCK_TRACEBACK is set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from penstock.model.errors import PenstockError

VARIABLE = "PENSTOCK_TRACEBACK"  # the same as for the command line
PYSPARKS_VARIABLE = "SPARK_HIDE_TRACEBACK"

C = TypeVar("C", bound=type)


def plain_errors(kind: C) -> C:
    """Decorates a class that Spark's workers call: all its public methods, and the iterators that they return."""
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(kind, name, _plain(method))
    return kind


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)  # Spark looks at the parameters
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            found = method(*arguments, **named)
        except PenstockError:
            _hide_traceback()
            raise
        return _iterated(found) if isinstance(found, Iterator) else found

    return called


def _iterated(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except PenstockError:
        _hide_traceback()
        raise


def _hide_traceback() -> None:
    if VARIABLE not in os.environ:
        os.environ[PYSPARKS_VARIABLE] = "1"
