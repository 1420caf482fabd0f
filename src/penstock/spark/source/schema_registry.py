"""Schemas by number from a registry with Confluent's REST interface. They never change, so each is asked for once.

A number that is not there is asked for again after TIMEOUT_S.

Must not know: what is in a schema.
"""

from __future__ import annotations

import base64
import json
import time
from functools import lru_cache
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from penstock.arrow.values.prefix import NotThere
from penstock.model.errors import PenstockError

TIMEOUT_S = 10.0
TRIES = 3
PAUSE_S = 0.5
MAX_BYTES = 16 << 20
_UNKNOWN = (400, 404, 422)
_END = 1 << 31
"""Of the numbers that a schema may have."""
_BUSY = (429, 500, 502, 503, 504)


class RegistryUnavailable(PenstockError):
    """The registry does not answer, or not with a schema."""


class SchemaRegistry:
    """`url` may have a user and a password: `https://user:password@host`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._url = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        self._credentials: str | None = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._credentials = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._schemas: dict[int, str] = {}
        self._missing: dict[int, float] = {}

    def schema(self, number: int) -> str:
        """Raises NotThere, RegistryUnavailable."""
        if number not in self._schemas:
            asked = self._missing.get(number, float("-inf"))
            if number >= _END or time.monotonic() - asked < TIMEOUT_S:
                raise NotThere(f"it is not in the registry {self._url}")
            self._schemas[number] = self._fetch(number)
        return self._schemas[number]

    def _fetch(self, number: int) -> str:
        reason = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S)
            try:
                with urlopen(self._request(number), None, TIMEOUT_S) as it:
                    return self._schema_in(it.read(MAX_BYTES), number)
            except HTTPError as error:
                error.close()
                if error.code in _UNKNOWN:
                    self._miss(number)
                    raise NotThere(f"it is not in the registry {self._url}") from None
                reason = f"HTTP {error.code} {error.reason}"
                if error.code not in _BUSY:
                    break
            except (OSError, HTTPException, UnicodeError) as error:
                reason = f"{getattr(error, 'reason', error)}"
        raise RegistryUnavailable(f"the schema registry {self._url} does not give schema {number}: {reason}")

    def _request(self, number: int) -> Request:
        request = Request(f"{self._url}/schemas/ids/{number}", headers=self._headers)
        if self._credentials is not None:  # another host, to which a redirect leads, must not see them
            request.add_unredirected_header("Authorization", self._credentials)
        return request

    def _miss(self, number: int) -> None:
        now = time.monotonic()
        self._missing = {one: asked for one, asked in self._missing.items() if now - asked < TIMEOUT_S}
        self._missing[number] = now

    def _schema_in(self, body: bytes, number: int) -> str:
        try:
            found: Any = json.loads(body)
            schema, kind = found["schema"], found.get("schemaType", "AVRO")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RegistryUnavailable(f"{self._url} answers with something else than schema {number}") from None
        if kind != "AVRO" or not isinstance(schema, str):
            raise NotThere(f"it is of type {kind} in the registry {self._url}, not Avro")
        return schema


@lru_cache(maxsize=8)
def registry_at(url: str) -> SchemaRegistry:
    """Kept for the next task."""
    return SchemaRegistry(url)
