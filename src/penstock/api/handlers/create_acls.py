"""CreateAcls (key 30), versions 1-3: there is no authorizer, so SECURITY_DISABLED for each."""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.handlers.describe_acls import NO_AUTHORIZER
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


class CreateAclsHandler:
    api: ClassVar = Api.CREATE_ACLS
    min_version: ClassVar = 1
    max_version: ClassVar = 3

    def handle(self, ctx: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
        raise ApiError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)

    def refuse(self, request: CreateAclsRequest, code: ErrorCode, message: str | None) -> CreateAclsResponse:
        return CreateAclsResponse(
            results=[AclCreationResult(error_code=code, error_message=message) for _ in request.creations]
        )
