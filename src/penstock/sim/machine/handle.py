"""A pending callback: asyncio's handle, created without a Python frame, because a history has tens of thousands.

Must not know: loops, processes. Invariant: a cancelled handle has no callback.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable
from contextvars import Context
from typing import Any


class SimHandle(TimerHandle):
    __slots__ = ()
    __init__ = object.__init__
    _source_traceback = _repr = None

    _callback: Callable[..., object] | None
    _args: tuple[Any, ...]
    _context: Context
    _when: float

    def cancel(self) -> None:
        self._callback, self._args = None, ()

    def cancelled(self) -> bool:
        return self._callback is None

    _cancelled = property(cancelled)
