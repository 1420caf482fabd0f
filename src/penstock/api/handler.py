"""The interface of every API's handler.

A handler declares its versions once; dispatch, ApiVersions and the reference page use them. `handle` answers in one of
three ways:
- returns the response;
- returns None and answers later through `ctx.respond` (produce and fetch: no task, no future, just a callback);
- is a coroutine function: the connection waits for it, as in Kafka.

More class attributes, if they differ from most handlers:
- `is_for_controller = True`: only the active controller can answer. The request is forwarded to it (`api.forwarding`);
  the handler returns a response or is a coroutine function, and lets ApiError(NOT_CONTROLLER) through.
- `accepts_forwarded = True`: part of a request is for the controller; the handler forwards that part by itself, and
  answers the part if another broker forwards it.
- `bounds`: the size limits of a request, if not USUAL (`api.bounds`). Wider requests are decoded in turns of their own;
  a handler that does much for each element uses `ctx.pace`.
- `is_repeatable = False`: a repetition could undo a change that another client made in between. If the controller's
  answer is lost, the client gets an error that says so, and the request is not forwarded again.
- `is_advertised = False`: for brokers of the cluster only, so ApiVersions does not list it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ClassVar, Protocol, TypeAlias

from penstock.api.context import RequestContext
from penstock.model.errors import ErrorCode
from penstock.net.connection import Connection
from penstock.wire.apis import Api
from penstock.wire.primitives import Message

Answer: TypeAlias = Message | Coroutine[Any, Any, Message | None] | None


class Handler(Protocol):
    api: ClassVar[Api]
    min_version: ClassVar[int]
    max_version: ClassVar[int]

    def handle(self, ctx: RequestContext, request: Any) -> Answer: ...

    def refuse(self, request: Any, code: ErrorCode, message: str | None) -> Message:
        """The response that refuses the whole request."""
        ...


class PrivateHandler(Protocol):
    """A handler for a private API key, used only between brokers."""

    key: ClassVar[int]

    def receive(self, connection: Connection, slot: int, correlation_id: int, payload: memoryview) -> None:
        """The payload is valid only during the call. The slot must be answered, even if with an empty reply."""
        ...


def is_for_controller(handler: Handler) -> bool:
    return bool(getattr(handler, "is_for_controller", False))


def accepts_forwarded(handler: Handler) -> bool:
    return is_for_controller(handler) or bool(getattr(handler, "accepts_forwarded", False))


def is_repeatable(handler: Handler) -> bool:
    return bool(getattr(handler, "is_repeatable", True))


def is_advertised(handler: Handler | type[Handler]) -> bool:
    return bool(getattr(handler, "is_advertised", True))
