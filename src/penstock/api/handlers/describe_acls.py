"""DescribeAcls (key 29), versions 1-3: there is no authorizer, so SECURITY_DISABLED."""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.api.context import RequestContext
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

NO_AUTHORIZER: Final = "No Authorizer is configured."
"""Kafka's own text: tools look for it."""


class DescribeAclsHandler:
    api: ClassVar = Api.DESCRIBE_ACLS
    min_version: ClassVar = 1
    max_version: ClassVar = 3

    def handle(self, ctx: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
        raise ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)

    def refuse(self, request: DescribeAclsRequest, code: ErrorCode, message: str | None) -> DescribeAclsResponse:
        return DescribeAclsResponse(error_code=code, error_message=message)
