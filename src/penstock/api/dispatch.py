"""From a frame to its handler, and from domain errors to error codes: the only place that maps them.

An unknown API or version closes the connection without an answer, as in Kafka. The exception is ApiVersions, which
answers in its oldest layout so that newer clients can fall back. A defect in a handler closes that connection and is
logged with its traceback.

Requests for nodes only (private keys, APIs that are not advertised) are accepted on connections that have presented the
cluster's secret (`Connection.is_peer`). Any other connection that sends one is closed, and nothing is decoded.

With `forwarding`, requests for the controller are forwarded to it, and requests that other brokers forward to this one
are accepted (`api.forwarding`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from struct import Struct
from typing import Any, ClassVar, cast

from penstock.api.bounds import BROKERS, bounds_of
from penstock.api.context import ForwardedContext, RequestContext
from penstock.api.forwarding import (
    FORWARD_KEY,
    ForwardedAnswer,
    ForwardedRequest,
    Forwarding,
    outcome_unknown,
    timeout_of,
)
from penstock.api.handler import (
    Answer,
    Handler,
    PrivateHandler,
    accepts_forwarded,
    is_advertised,
    is_for_controller,
    is_repeatable,
)
from penstock.api.handlers.api_versions import unsupported_version
from penstock.api.request_times import RequestTimes
from penstock.api.turns import Turns
from penstock.model.errors import ApiError, ErrorCode, ProtocolError, StorageError, Stranger
from penstock.net.connection import Connection
from penstock.wire.acknowledgement import ACKNOWLEDGE_KEY
from penstock.wire.apis import Api
from penstock.wire.codec import decode_request, read_request_header, request_steps, response_steps
from penstock.wire.introduction import INTRODUCE_KEY
from penstock.wire.peers import PEER_API_KEY
from penstock.wire.primitives import Message

# Produce and fetch are sequenced at once and answered later; everything else is a barrier. Requests forwarded by
# another broker come from many clients, each of which waits only for its own.
PIPELINED = frozenset({int(Api.PRODUCE), int(Api.FETCH), FORWARD_KEY, PEER_API_KEY, ACKNOWLEDGE_KEY})

NARROW_FRAME_BYTES = 512  # smaller frames are decoded at once

_NOTHING = memoryview(b"")
_SIZE_AND_ID = Struct(">ii")


class Dispatcher:
    def __init__(
        self,
        handlers: Iterable[Handler],
        times: RequestTimes,
        forwarding: Forwarding | None = None,
        private: Iterable[PrivateHandler] = (),
        *,
        is_complete: bool = True,
    ) -> None:
        """`is_complete`: False for a node that is still starting and will serve more soon."""
        self._handlers = {int(handler.api): handler for handler in handlers}
        self._private = {handler.key: handler for handler in private}
        self._for_nodes = frozenset(key for key, known in self._handlers.items() if not is_advertised(known))
        self._for_controller: frozenset[int] = frozenset()
        self._turns = Turns()
        if forwarding is not None:
            self._forwarding = forwarding
            self._for_controller = frozenset(key for key, known in self._handlers.items() if is_for_controller(known))
            ingress = ForwardIngress(self._handlers, forwarding, self._begin, self._turns, is_complete=is_complete)
            self._private[ingress.key] = ingress
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._times = times
        self._elements = {key: bounds_of(handler).elements for key, handler in self._handlers.items()}
        self.wide_requests = 0
        self.requests: dict[int, int] = dict.fromkeys(self._handlers, 0)

    def __call__(self, connection: Connection, slot: int, frame: memoryview) -> None:
        shortcut = connection.shortcut
        if shortcut is not None and shortcut(connection, slot, frame):
            self.requests[0] += 1
            return
        header = read_request_header(frame)
        api_key, version, correlation_id, _, offset = header
        handler = self._handlers.get(api_key)
        if handler is None or not handler.min_version <= version <= handler.max_version:
            self._take_unknown(connection, slot, api_key, version, correlation_id, frame[offset:])
            return
        if api_key in self._for_nodes and not connection.is_peer:
            raise stranger(api_key)
        ctx = RequestContext(connection, slot, frame, header, self._times, self._turns)
        self.requests[api_key] += 1
        bound = BROKERS.elements if connection.is_peer else self._elements[api_key]
        if len(frame) <= NARROW_FRAME_BYTES:
            self._take(ctx, handler, decode_request(api_key, version, frame, offset, bound))
            return
        steps = request_steps(api_key, version, frame, offset, bound)
        try:
            next(steps)
        except StopIteration as done:
            self._take(ctx, handler, done.value[0])
        else:
            # A wide request: the frame is kept and decoded in turns of its own. No later request overtakes it.
            connection.hold()
            ctx.frame = connection.keep_frame(frame)
            ctx.is_wide = True
            self._begin(self._take_wide(ctx, handler, offset, bound))

    async def _take_wide(self, ctx: RequestContext, handler: Handler, offset: int, bound: int) -> None:
        self.wide_requests += 1
        with ctx.connection.memory.charged(len(ctx.frame)):
            await self._read_wide(ctx, handler, request_steps(ctx.api_key, ctx.version, ctx.frame, offset, bound))
            ctx.frame = _NOTHING  # the handler has copied what it needs

    async def _read_wide(
        self, ctx: RequestContext, handler: Handler, steps: Generator[None, None, tuple[Message, int]]
    ) -> None:
        try:
            while True:
                await self._turns.next()
                if ctx.connection.is_closed:
                    return
                try:
                    next(steps)
                except StopIteration as done:
                    self._take(ctx, handler, done.value[0])
                    return
        except ProtocolError as error:
            ctx.connection.abort(error)
        except BaseException:
            ctx.connection.abort(ProtocolError("internal error"))
            raise

    def _take(self, ctx: RequestContext, handler: Handler, request: Message) -> None:
        api_key, frame = ctx.api_key, ctx.frame
        if api_key in self._for_controller:
            answer: Answer = self._ask_controller(ctx, handler, request, bytes(frame))
        else:
            try:
                answer = handler.handle(ctx, request)
            except (ApiError, StorageError) as error:
                answer = _refusal(handler, request, error)
        if answer is None or isinstance(answer, Message):
            if answer is not None:
                ctx.respond(answer)
            if ctx.is_wide:
                self._turns.let_go(request)
        else:
            # The frame's memory is reused after this call: a handler that continues as a coroutine has copied the
            # records it needs.
            self._begin(self._finish(ctx, handler, request, answer))

    def knows(self, frame: memoryview) -> bool:
        """Whether a frame has a key that is served here."""
        api_key = int.from_bytes(frame[:2], "big", signed=True)
        return api_key in self._handlers or api_key in self._private

    def _take_unknown(
        self, connection: Connection, slot: int, api_key: int, version: int, correlation_id: int, payload: memoryview
    ) -> None:
        private = self._private.get(api_key)
        if private is not None:
            if not connection.is_peer and api_key != INTRODUCE_KEY:
                raise stranger(api_key)
            private.receive(connection, slot, correlation_id, payload)
        elif api_key == Api.API_VERSIONS:
            connection.reply(slot, unsupported_version(correlation_id))
        else:
            raise ProtocolError(f"api key {api_key} version {version} is not supported")

    async def _ask_controller(self, ctx: RequestContext, handler: Handler, request: Message, frame: bytes) -> None:
        # Brokers that send their own requests look for the controller themselves.
        timeout_s = timeout_of(request) if is_advertised(handler) else 0.0
        with ctx.connection.memory.charged(len(frame)):
            response = await self._forwarding.answer(
                lambda: _decide(handler, ctx, request),
                frame,
                ctx.listener_name,
                timeout_s,
                is_repeatable=is_repeatable(handler),
            )
        if isinstance(response, Message):
            ctx.respond(response)
        else:
            ctx.respond_encoded(response)

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
        if ctx.is_wide:
            self._turns.let_go(request)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "a handler failed", "exception": error, "task": task})


class ForwardIngress:
    """Accepts requests that other brokers forward. A `PrivateHandler`."""

    key: ClassVar[int] = FORWARD_KEY

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        forwarding: Forwarding,
        begin: Callable[[Coroutine[Any, Any, None]], None],
        turns: Turns,
        *,
        is_complete: bool = True,
    ) -> None:
        self._is_complete = is_complete
        self._turns = turns
        self._handlers = {key: handler for key, handler in handlers.items() if accepts_forwarded(handler)}
        self._forwarding = forwarding
        self._begin = begin

    def receive(self, connection: Connection, slot: int, correlation_id: int, payload: memoryview) -> None:
        asked = ForwardedRequest.decode(bytes(payload))
        api_key, version, *_ = read_request_header(asked.frame)
        handler = self._handlers.get(api_key)
        if handler is None and not self._is_complete:
            # It leads the quorum and is still opening its logs: the sender tries again.
            self._reply(connection, slot, correlation_id, ErrorCode.NOT_CONTROLLER)
        elif handler is None or not handler.min_version <= version <= handler.max_version:
            # A broker of another release.
            self._reply(connection, slot, correlation_id, ErrorCode.UNSUPPORTED_VERSION)
        elif not self._forwarding.is_active:
            self._reply(connection, slot, correlation_id, ErrorCode.NOT_CONTROLLER)
        else:
            self._begin(self._answer(connection, slot, correlation_id, handler, asked))

    async def _answer(
        self, connection: Connection, slot: int, correlation_id: int, handler: Handler, asked: ForwardedRequest
    ) -> None:
        try:
            header = read_request_header(asked.frame)
            api_key, version, clients_id, _, offset = header
            frame = memoryview(asked.frame)
            ctx = ForwardedContext(connection, slot, frame, header, asked.listener_name, self._turns)
            steps = request_steps(api_key, version, asked.frame, offset, BROKERS.elements)
            request, _ = await ctx.pace.finish(steps)
            try:
                response = await _decide(handler, ctx, request)
            except (ApiError, StorageError) as error:
                if error.code is ErrorCode.NOT_CONTROLLER:
                    self._reply(connection, slot, correlation_id, ErrorCode.NOT_CONTROLLER)
                    return
                response = _refusal(handler, request, error)
            parts, _ = await ctx.pace.finish(response_steps(api_key, version, clients_id, response))
        except ProtocolError as error:
            connection.abort(error)
        except BaseException:
            connection.abort(ProtocolError("internal error"))
            raise
        else:
            # Without the leading size and without file slices: the controller serves no records.
            self._reply(connection, slot, correlation_id, ErrorCode.NONE, b"".join(cast("list[bytes]", parts))[4:])

    def _reply(
        self, connection: Connection, slot: int, correlation_id: int, code: ErrorCode, response: bytes = b""
    ) -> None:
        answer = ForwardedAnswer(code, self._forwarding.applied_index, response).encode()
        connection.reply(slot, [_SIZE_AND_ID.pack(4 + len(answer), correlation_id) + answer])


async def _decide(handler: Handler, ctx: RequestContext, request: Message) -> Message:
    """The response of a handler for controller requests, on the controller."""
    try:
        answer = handler.handle(ctx, request)
        response = answer if isinstance(answer, Message) or answer is None else await answer
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER and not is_repeatable(handler):
            # It was the controller at the start. Another controller would repeat the change.
            raise outcome_unknown(str(error)) from error
        raise
    if response is None:
        raise TypeError(f"{type(handler).__name__} left a request for the controller without a response")
    return response


def stranger(api_key: int) -> Stranger:
    return Stranger(f"api key {api_key:#x} is for nodes that have shown the cluster's secret")


def _refusal(handler: Handler, request: Message, error: ApiError | StorageError) -> Message:
    return handler.refuse(request, ErrorCode(error.code), str(error))
