"""DescribeClientQuotas (key 48), versions 0-1: there are no quotas, so nothing matches.

A filter is refused as in Kafka if an entity type is repeated, missing, or unknown to Kafka.
"""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.api.context import RequestContext
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse

ENTITY_TYPES: Final = ("user", "client-id", "ip")


class DescribeClientQuotasHandler:
    api: ClassVar = Api.DESCRIBE_CLIENT_QUOTAS
    min_version: ClassVar = 0
    max_version: ClassVar = 1

    def handle(self, ctx: RequestContext, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
        seen: dict[str, None] = {}
        for component in request.components:
            kind = component.entity_type
            if not kind:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type.")
            if kind in seen:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
                )
            if kind not in ENTITY_TYPES:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}.")
            seen[kind] = None
        return DescribeClientQuotasResponse(error_message=None, entries=[])

    def refuse(
        self, request: DescribeClientQuotasRequest, code: ErrorCode, message: str | None
    ) -> DescribeClientQuotasResponse:
        return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)
