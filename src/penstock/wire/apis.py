"""The API table: key -> message classes, known versions, flexibility.

The message modules are imported on first use, since a broker needs few of them in its first second. The handlers decide
which versions are advertised.
"""

from __future__ import annotations

from importlib import import_module

from penstock.model.errors import ProtocolError
from penstock.wire.messages.index import INDEX, Api
from penstock.wire.primitives import Message

__all__ = ["Api", "ApiSpec", "api", "find_api"]


class ApiSpec:
    """The wire format's facts about one API."""

    __slots__ = ("_request", "_response", "_stem", "flexible_from", "key", "max_version", "min_version", "module")

    def __init__(self, key: int) -> None:
        self.module, self._stem, (self.min_version, self.max_version), self.flexible_from = INDEX[key]
        self.key = Api(key)
        self._request: type[Message] | None = None
        self._response: type[Message] | None = None

    @property
    def name(self) -> str:
        """Kafka's name, as in "ListOffsets"."""
        return self._stem

    @property
    def request(self) -> type[Message]:
        if self._request is None:
            self._request = self._load("Request")
        return self._request

    @property
    def response(self) -> type[Message]:
        if self._response is None:
            self._response = self._load("Response")
        return self._response

    def knows(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from

    def response_header_is_flexible(self, version: int) -> bool:
        """Never for ApiVersions: its reader does not know the broker's versions yet."""
        return version >= self.flexible_from and self.key is not Api.API_VERSIONS

    def _load(self, suffix: str) -> type[Message]:
        module = import_module(f"penstock.wire.messages.{self.module}")
        found: type[Message] = getattr(module, self._stem + suffix)
        return found

    def __repr__(self) -> str:
        return f"ApiSpec({self._stem}, {self.min_version}-{self.max_version})"


_specs: dict[int, ApiSpec] = {}


def find_api(key: int) -> ApiSpec | None:
    spec = _specs.get(key)
    if spec is None and key in INDEX:
        spec = _specs[key] = ApiSpec(key)
    return spec


def api(key: int) -> ApiSpec:
    spec = find_api(key)
    if spec is None:
        raise ProtocolError(f"no API has key {key}")
    return spec
