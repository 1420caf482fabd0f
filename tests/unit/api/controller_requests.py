"""A controller that notes what it is asked and answers what a test told it to, and a way to ask handlers.

Requests and responses travel through the codec of the version asked for, so a test sees what a client of
that version would.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from penstock.api.context import RequestContext
from penstock.api.handler import Handler
from penstock.api.turns import drained
from penstock.core.metadata.image import MetadataImage
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.net.connection import Connection
from penstock.wire.codec import RequestHeader, decode, decode_response, encode, read_response_header, response_steps
from penstock.wire.primitives import Message

LOCAL = ("127.0.0.1", 9092)


class FakeController:
    """`answers` by method name: a value, an ApiError to raise, or a coroutine function. `calls` is what was asked."""

    def __init__(self, image: MetadataImage | None = None, **answers: Any) -> None:
        self.image = MetadataImage() if image is None else image
        self.is_active = True
        self.answers = answers
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)

        def take(*asked: Any) -> Any:
            self.calls.append((method, *asked))
            answer = self.answers.get(method)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def take_later(*asked: Any, **options: Any) -> Any:
            answer = take(*asked, *options.values())
            return await answer(*asked, **options) if callable(answer) else answer

        return take if method == "list_reassignments" else take_later

    @property
    def asked(self) -> tuple[Any, ...]:
        """The one call there was."""
        (call,) = self.calls
        return call


def context(handler: Handler, version: int, listener_name: str = "PLAINTEXT") -> RequestContext:
    connection = SimpleNamespace(listener_name=listener_name, channel=SimpleNamespace(local=LOCAL))
    return RequestContext(
        cast(Connection, connection),
        slot=0,
        frame=memoryview(b""),
        header=RequestHeader(int(handler.api), version, 1, "test", 0),
    )


def ask(handler: Any, request: Message, version: int | None = None, listener_name: str = "PLAINTEXT") -> Any:
    """The response of the newest version, or of the one given."""
    version = handler.max_version if version is None else version
    assert handler.min_version <= version <= handler.max_version
    received = decode(type(request), version, encode(request, version))

    async def answer() -> Message:
        try:
            outcome = handler.handle(context(handler, version, listener_name), received)
            response = outcome if isinstance(outcome, Message) else await outcome
        except (ApiError, StorageError) as error:
            # As the dispatcher does.
            response = handler.refuse(received, ErrorCode(error.code), str(error))
        return cast(Message, response)

    return as_sent(int(handler.api), version, asyncio.run(answer()))


def as_sent(api_key: int, version: int, response: Message) -> Any:
    """The response as a client reads it."""
    parts, _ = drained(response_steps(api_key, version, 1, response))
    frame = b"".join(cast("list[bytes]", parts))[4:]
    _, at = read_response_header(api_key, version, frame)
    return decode_response(api_key, version, frame, at)
