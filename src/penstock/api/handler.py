"""What every API's handler looks like.

A handler declares once which versions it serves; that feeds dispatch, ApiVersions and the
reference page. `handle` answers in one of three ways:
- returns the response;
- returns None and answers later through `ctx.respond` (produce and fetch: no task, no
  future, just a callback);
- is a coroutine function: the connection waits for it, as Kafka's would.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ClassVar, Protocol, TypeAlias

from penstock.api.context import RequestContext
from penstock.model.errors import ErrorCode
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
