"""ApiVersions as a question about the cluster: its features and their levels."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire_client.requests.errors import check

TRANSACTION_VERSION: Final = "transaction.version"


class FeatureLevels(NamedTuple):
    name: str
    min_level: int | None
    max_level: int | None
    finalized: int | None


def features_request() -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="penstock", client_software_version="1")


def read_features(answer: ApiVersionsResponse) -> list[FeatureLevels]:
    """The features by name. Raises ApiError."""
    check(answer.error_code)
    lowest = {one.name: one.min_version for one in answer.supported_features}
    highest = {one.name: one.max_version for one in answer.supported_features}
    finalized = {one.name: one.max_version_level for one in answer.finalized_features}
    return [
        FeatureLevels(name, lowest.get(name), highest.get(name), finalized.get(name))
        for name in sorted({**highest, **finalized})
    ]


def read_transaction_version(answer: ApiVersionsResponse) -> int:
    """0 for brokers without features. Raises ApiError."""
    check(answer.error_code)
    return next((one.max_version_level for one in answer.finalized_features if one.name == TRANSACTION_VERSION), 0)
