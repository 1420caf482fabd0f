"""Operations: one row defines both the route and the OpenAPI description."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from penstock.gateway.http.errors import BodyTooLate, Refused
from penstock.gateway.http.formats import V2, Format
from penstock.ports.clock import Clock
from penstock.wire_client.aio.cluster import AsyncCluster
from penstock.wire_client.aio.publisher import Publisher

T = TypeVar("T")

MAX_BODY_BYTES = 16 << 20
TOO_LARGE = f"a body must have at most {MAX_BODY_BYTES} bytes"
JSON = "application/json"
# Clients of Confluent's REST proxy always send its own media types.
JSON_TYPES = (JSON, V2, Format.JSON.value, Format.BINARY.value)
_NO = re.compile(r"q=0(\.0{0,3})?")


@dataclass(frozen=True, slots=True)
class Proxy:
    """The REST proxy as its endpoints see it: the cluster, the settings, the stop signal."""

    cluster: AsyncCluster
    producer: Publisher
    clock: Clock
    stopping: asyncio.Event
    """Set when the broker stops: requests that wait for records end."""
    request_timeout_s: float
    """How long the headers of a request may take to arrive, and then its body."""


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
            raise Refused(400, f"{self.name} must be a whole number from {minimum} to {maximum}")
        return int(text)

    def choose(self, request: Request) -> str | None:
        """Raises Refused(400)."""
        text = request.query_params.get(self.name)
        if text is not None and text not in self.choices:
            raise Refused(400, f"{self.name} must be one of {', '.join(self.choices)}")
        return text


Endpoint = Callable[[Proxy, Request], Awaitable[Response]]


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
    """Types of the answers by status; None means no body. Errors of every operation are added elsewhere."""
    body: type | None = None
    body_types: tuple[str, ...] = (JSON,)
    body_required: bool = True
    query: tuple[Query, ...] = ()
    answer_types: tuple[str, ...] = (JSON,)
    refusals: tuple[int, ...] = field(default=())
    accepts: tuple[str, ...] = JSON_TYPES
    """Media types that an Accept header may ask for; empty means any."""

    def check_accept(self, request: Request) -> None:
        """Raises Refused(406) if the caller accepts none of the types."""
        header = ",".join(request.headers.getlist("accept"))
        if self.accepts and header.strip() and not any(is_accepted(kind, header) for kind in self.accepts):
            raise Refused(406, f"Accept '{header[:100]}' has none of the types served here: {', '.join(self.accepts)}")

    def check_query(self, request: Request) -> None:
        """Raises Refused(400) for unknown or repeated parameters: otherwise they would be ignored silently."""
        known = [query.name for query in self.query]
        for name in request.query_params:
            if name not in known:
                there_is = f"the parameters are {', '.join(known)}" if known else "this operation has none"
                raise Refused(400, f"unknown query parameter '{name[:100]}': {there_is}")
            if len(request.query_params.getlist(name)) > 1:
                raise Refused(400, f"query parameter {name} is given more than once")


def is_accepted(kind: str, header: str) -> bool:
    """Whether an Accept header allows this media type (RFC 9110, with ranges and q=0)."""
    for wanted in (kind, kind.partition("/")[0] + "/*", "*/*"):  # the most specific one counts
        for item in header.lower().split(","):
            name, *parameters = (part.strip() for part in item.split(";"))
            if name == wanted:
                return not any(_NO.fullmatch(parameter) for parameter in parameters)
    return False


def refuse_contradiction(given: Mapping[str, object]) -> None:
    """Raises Refused(400) if more than one of these query parameters is given."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise Refused(400, f"{' and '.join(named)} exclude each other: give only one")


# -- waiting ----------------------------------------------------------------------------------


class Stopping(Refused):
    """The gateway stops while a request waits."""

    def __init__(self) -> None:
        super().__init__(503, "the broker is stopping")


async def unless_stopping(proxy: Proxy, work: Coroutine[Any, Any, T]) -> T:
    """Raises Stopping and cancels `work` as soon as the gateway stops."""
    return await _unless(work, {proxy.stopping.wait(): Stopping()})


async def attended(proxy: Proxy, request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Like `unless_stopping`, and raises ClientDisconnect when the caller hangs up. The body must not be read later."""
    return await _unless(work, {proxy.stopping.wait(): Stopping(), _hung_up(request): ClientDisconnect()})


async def _unless(work: Coroutine[Any, Any, T], ends: Mapping[Coroutine[Any, Any, object], Exception]) -> T:
    task = asyncio.create_task(work)
    reasons = {asyncio.create_task(end): error for end, error in ends.items()}
    tasks: tuple[asyncio.Task[Any], ...] = (task, *reasons)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise next(error for end, error in reasons.items() if end.done())
    finally:
        for entry in tasks:
            entry.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# -- bodies ---------------------------------------------------------------------------------


async def read_body(proxy: Proxy, request: Request) -> bytes:
    """Reads a body. Raises Refused(413) if it is too large, at once if Content-Length says so, and BodyTooLate."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        raise Refused(413, TOO_LARGE)
    body = bytearray()
    try:
        async with asyncio.timeout(proxy.request_timeout_s):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise Refused(413, TOO_LARGE)
    except TimeoutError as error:
        raise BodyTooLate(f"the body did not arrive within {proxy.request_timeout_s:g} s") from error
    return bytes(body)


def decode(body: bytes, kind: type[T]) -> T:
    """Raises Refused: 400 for a body that is not JSON, 422 for a body that does not fit the schema."""
    try:
        body.decode("utf-8")  # the decoder does not check raw values
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Refused(422, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"not JSON: {error}") from error


def answer(body: object, status: int = 200, media_type: str = JSON) -> Response:
    return Response(msgspec.json.encode(body), status, media_type=media_type)


def no_content() -> Response:
    return Response(status_code=204)
