"""DeleteAcls (key 31), versions 1-3: there is no authorizer, so SECURITY_DISABLED for each filter."""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.handlers.describe_acls import NO_AUTHORIZER
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


class DeleteAclsHandler:
    api: ClassVar = Api.DELETE_ACLS
    min_version: ClassVar = 1
    max_version: ClassVar = 3

    def handle(self, ctx: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
        raise ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)

    def refuse(self, request: DeleteAclsRequest, code: ErrorCode, message: str | None) -> DeleteAclsResponse:
        return DeleteAclsResponse(
            filter_results=[DeleteAclsFilterResult(error_code=code, error_message=message) for _ in request.filters]
        )
