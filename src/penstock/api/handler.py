"""What every API's handler looks like.

A handler declares once which versions it serves; that feeds dispatch, ApiVersions and the
reference page. `handle` answers in one of three ways:
- returns the response;
- returns None and answers later through `ctx.respond` (produce and fetch: no task, no
  future, just a callback);
- is a coroutine function: the connection waits for it, as Kafka's would.

More class attributes, where they are not what most handlers have:
- `is_for_controller = True`: only the active controller can answer. Such a request is sent on
  (`api.forwarding`) when it is elsewhere; the handler returns a response or is a coroutine
  function, and lets ApiError(NOT_CONTROLLER) through.
- `accepts_forwarded = True`: part of a request is for the controller; the handler sends that part
  on by itself, and answers the part when it comes from another broker.
- `bounds`: how large a request may be, where it is not USUAL (`api.bounds`). Wider requests are read in turns of
  their own; a handler that does much for each element uses `ctx.pace`.
- `is_repeatable = False`: asked twice it could undo what somebody else did in between. Where the answer of the
  controller is lost the client is told so, and the request is not sent on again.
- `is_advertised = False`: for brokers of the cluster alone, so ApiVersions does not name it.
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
        """The response that says no to the whole request."""
        ...


class PrivateHandler(Protocol):
    """Of a key that is in no table of APIs: brokers use it among themselves."""

    key: ClassVar[int]

    def receive(self, connection: Connection, slot: int, correlation_id: int, payload: memoryview) -> None:
        """The payload is valid only during the call. The slot must be answered, if only with nothing."""
        ...


def is_for_controller(handler: Handler) -> bool:
    return bool(getattr(handler, "is_for_controller", False))


def accepts_forwarded(handler: Handler) -> bool:
    return is_for_controller(handler) or bool(getattr(handler, "accepts_forwarded", False))


def is_repeatable(handler: Handler) -> bool:
    return bool(getattr(handler, "is_repeatable", True))


def is_advertised(handler: Handler | type[Handler]) -> bool:
    return bool(getattr(handler, "is_advertised", True))
