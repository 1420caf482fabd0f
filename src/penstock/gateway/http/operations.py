"""What an operation is: one row feeds both the routes and the OpenAPI description."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.client.cluster import Cluster
from penstock.client.producer import Producer
from penstock.gateway.http.errors import Refused
from penstock.ports.clock import Clock

T = TypeVar("T")

MAX_BODY_BYTES = 16 << 20
BODY_TIMEOUT_S = 30.0
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Door:
    """What every endpoint works with."""

    cluster: Cluster
    producer: Producer
    clock: Clock


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter of the query string."""

    name: str
    doc: str
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()

    @property
    def schema(self) -> dict[str, Any]:
        if self.choices:
            return {"type": "string", "enum": list(self.choices)}
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}

    def read(self, request: Request) -> int | None:
        """Raises Refused(400)."""
        text = request.query_params.get(self.name)
        if text is None:
            return None
        minimum, maximum = self.minimum or 0, self.maximum or 0
        if not text.isascii() or not text.isdigit() or len(text) > 19 or not minimum <= int(text) <= maximum:
            raise Refused(400, f"{self.name} is a whole number from {minimum} to {maximum}")
        return int(text)

    def choose(self, request: Request) -> str | None:
        text = request.query_params.get(self.name)
        if text is not None and text not in self.choices:
            raise Refused(400, f"{self.name} is one of {', '.join(self.choices)}")
        return text


Endpoint = Callable[[Door, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    name: str
    """The operation's id."""
    summary: str
    tag: str
    endpoint: Endpoint
    answers: Mapping[int, type | None]
    """By status; None: no body. Errors are added where they belong to every operation."""
    body: type | None = None
    body_types: tuple[str, ...] = (JSON,)
    body_required: bool = True
    query: tuple[Query, ...] = ()
    answer_types: tuple[str, ...] = (JSON,)
    refusals: tuple[int, ...] = field(default=())


# -- bodies ---------------------------------------------------------------------------------


async def read_body(request: Request) -> bytes:
    """Bounded in size and time: Refused(413), Refused(408)."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise Refused(413, f"a body has at most {MAX_BODY_BYTES} bytes")
    except TimeoutError as error:
        raise Refused(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from error
    return bytes(body)


def decode(body: bytes, kind: type[T]) -> T:
    """Raises Refused: 400 for what is not JSON, 422 for what does not fit the schema."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Refused(422, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"not JSON: {error}") from error


def answer(body: object, status: int = 200, media_type: str = JSON) -> Response:
    return Response(msgspec.json.encode(body), status, media_type=media_type)


def no_content() -> Response:
    return Response(status_code=204)
