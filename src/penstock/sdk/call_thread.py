"""A thread that makes blocking calls for an event loop, one at a time.

A call may call back into the loop and wait (a rebalance callback that is a coroutine). Meanwhile the thread serves
other calls, so that the coroutine may commit or seek. Calls with `defer` wait for the outer call.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from penstock.sdk.errors import ClientClosed

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Call:
    run: Callable[[], Any]
    future: Future[Any]
    defer: bool


class CallThread:
    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._serve, name=f"penstock-{whose}", daemon=True)
        self._thread.start()

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._submit(partial(function, *args, **kwargs), defer=False)

    async def call_deferred(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Makes a call that never runs inside another one."""
        return await self._submit(partial(function, *args, **kwargs), defer=True)

    async def _submit(self, run: Callable[[], R], *, defer: bool) -> R:
        if self._is_stopped:
            raise ClientClosed(self._whose)
        future: Future[R] = Future()
        self._calls.put(_Call(run, future, defer))
        return await asyncio.wrap_future(future)

    def serve_until(self, waited_for: Future[Any]) -> None:
        """Serves calls until the future is done. Runs in this thread, inside a call."""
        waited_for.add_done_callback(lambda _: self._calls.put(None))
        deferred: list[_Call] = []
        while not waited_for.done():
            call = self._calls.get()
            if call is not None and call.defer:
                deferred.append(call)
            elif call is not None:
                _make(call)
        for call in deferred:
            self._calls.put(call)

    def stop(self) -> None:
        """Stops the thread after the calls made so far. Does not wait for it."""
        self._is_stopped = True
        self._calls.put(None)

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            if call is not None:
                _make(call)
            elif self._is_stopped:
                return


def _make(call: _Call) -> None:
    if not call.future.set_running_or_notify_cancel():
        return
    try:
        result = call.run()
    except BaseException as error:
        call.future.set_exception(error)  # raised where it is awaited
    else:
        call.future.set_result(result)
