"""The version of a request: the newest that both sides know and that the caller can fill in.

A connection begins with ApiVersions, which says what the broker knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.wire.apis import Api, api
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

# The last versions with topic names. Later ones need topic ids, which most callers do not have.
NEWEST = {
    Api.PRODUCE: 12,
    Api.FETCH: 12,
    Api.METADATA: 12,
    Api.OFFSET_COMMIT: 9,
    Api.OFFSET_FETCH: 9,
    Api.DELETE_TOPICS: 5,
}

Served = Mapping[int, tuple[int, int]]
"""The first and last version of each API that the broker serves, from ApiVersions."""


def versions_request() -> ApiVersionsRequest:
    """In version 0, which every broker answers."""
    return ApiVersionsRequest()


def read_versions(answer: ApiVersionsResponse) -> Served:
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}


def choose_version(key: Api, served: Served, cap: int | None = None) -> int | None:
    """The version, not above `cap`, or `NEWEST` if `cap` is None. None if there is no version that both sides know."""
    spec = api(key)
    first, last = served.get(key, (0, -1))
    version = min(last, spec.max_version, NEWEST.get(key, spec.max_version) if cap is None else cap)
    return version if version >= max(first, spec.min_version) else None
