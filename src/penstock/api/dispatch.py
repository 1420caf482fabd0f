"""From a frame to its handler, and from domain errors to error codes: the only place that maps them.

An unknown API or version closes the connection without a word, as Kafka does; the
exception is ApiVersions, which answers in its oldest layout so that newer clients can
fall back. A defect in a handler closes that connection and is logged with its traceback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from penstock.api.context import RequestContext
from penstock.api.handler import Handler
from penstock.api.handlers.api_versions import unsupported_version
from penstock.api.request_times import RequestTimes
from penstock.model.errors import ApiError, ErrorCode, ProtocolError, StorageError
from penstock.net.connection import Connection
from penstock.wire.apis import Api
from penstock.wire.codec import decode_request, read_request_header
from penstock.wire.primitives import Message

# Produce and fetch are sequenced at once and answered later; everything else is a barrier.
PIPELINED = frozenset({int(Api.PRODUCE), int(Api.FETCH)})


class Dispatcher:
    def __init__(self, handlers: Iterable[Handler], times: RequestTimes) -> None:
        self._handlers = {int(handler.api): handler for handler in handlers}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._times = times
        self.requests: dict[int, int] = dict.fromkeys(self._handlers, 0)

    def __call__(self, connection: Connection, slot: int, frame: memoryview) -> None:
        shortcut = connection.shortcut
        if shortcut is not None and shortcut(connection, slot, frame):
            self.requests[0] += 1
            return
        api_key, version, correlation_id, client_id, offset = read_request_header(frame)
        handler = self._handlers.get(api_key)
        if handler is None or not handler.min_version <= version <= handler.max_version:
            if api_key == Api.API_VERSIONS:
                connection.reply(slot, unsupported_version(correlation_id))
                return
            raise ProtocolError(f"api key {api_key} version {version} is not supported")
        ctx = RequestContext(connection, slot, frame, api_key, version, correlation_id, client_id, self._times)
        request = decode_request(api_key, version, frame, offset)
        self.requests[api_key] += 1
        try:
            answer = handler.handle(ctx, request)
        except (ApiError, StorageError) as error:
            answer = _refusal(handler, request, error)
        if answer is None:
            return
        if isinstance(answer, Message):
            ctx.respond(answer)
        else:
            # The frame's memory is reused after this call: a handler that goes on as a
            # coroutine has copied the records it needs.
            task = asyncio.ensure_future(self._finish(ctx, handler, request, answer))
            self._tasks[task] = None
            task.add_done_callback(self._done)

    async def _finish(
        self, ctx: RequestContext, handler: Handler, request: Message, answer: Coroutine[Any, Any, Message | None]
    ) -> None:
        try:
            response: Message | None = await answer
        except (ApiError, StorageError) as error:
            response = _refusal(handler, request, error)
        except BaseException:
            ctx.connection.abort(ProtocolError("internal error"))
            raise
        if response is not None:
            ctx.respond(response)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "a handler failed", "exception": error, "task": task})


def _refusal(handler: Handler, request: Message, error: ApiError | StorageError) -> Message:
    return handler.refuse(request, ErrorCode(error.code), str(error))
