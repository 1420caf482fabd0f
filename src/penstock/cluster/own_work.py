"""Background tasks of the controller: kept until they end, and cancelled when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from penstock.model.errors import PenstockError

log = logging.getLogger(__name__)


class OwnWork:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: dict[asyncio.Task[None], None] = {}

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background; failures are logged."""
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, PenstockError):
            log.warning("a task of the controller failed: %s", error)  # it tries again later
        elif error is not None:
            self._loop.call_exception_handler(
                {"message": "a task of the controller failed", "exception": error, "task": task}
            )

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
