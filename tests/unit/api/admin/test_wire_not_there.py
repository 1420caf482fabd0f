"""ACLs and quotas are missing. Clients are told at once, in words they understand."""

from __future__ import annotations

import pytest
from wire_client import WireClient

from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from penstock.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from penstock.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from penstock.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

NO_AUTHORIZER = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls(wire: WireClient, version: int) -> None:
    described: DescribeAclsResponse = wire.call(Api.DESCRIBE_ACLS, version, DescribeAclsRequest())
    assert (described.error_code, described.error_message, described.resources) == (*NO_AUTHORIZER, [])
    creations = [AclCreation(resource_type=2, resource_name=name, principal="User:a") for name in ("t", "u")]
    created: CreateAclsResponse = wire.call(Api.CREATE_ACLS, version, CreateAclsRequest(creations=creations))
    assert [(each.error_code, each.error_message) for each in created.results] == [NO_AUTHORIZER] * 2
    filters = [DeleteAclsFilter(resource_type_filter=1) for _ in range(3)]
    deleted: DeleteAclsResponse = wire.call(Api.DELETE_ACLS, version, DeleteAclsRequest(filters=filters))
    assert [(each.error_code, each.error_message) for each in deleted.filter_results] == [NO_AUTHORIZER] * 3


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ([], 0),
        (["user", "client-id"], 0),
        (["ip"], 0),
        (["user", "user"], ErrorCode.INVALID_REQUEST),
        ([""], ErrorCode.INVALID_REQUEST),
        (["planet"], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_quotas(wire: WireClient, version: int, kinds: list[str], code: int) -> None:
    components = [ComponentData(entity_type=kind, match_type=2, match=None) for kind in kinds]
    request = DescribeClientQuotasRequest(components=components)
    response: DescribeClientQuotasResponse = wire.call(Api.DESCRIBE_CLIENT_QUOTAS, version, request)
    assert (response.error_code, response.entries) == (code, None if code else [])
    assert bool(response.error_message) == bool(code)
