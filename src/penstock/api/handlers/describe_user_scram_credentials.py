"""DescribeUserScramCredentials (key 50), version 0: the mechanisms and iterations of each user."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


class DescribeUserScramCredentialsHandler:
    api: ClassVar = Api.DESCRIBE_USER_SCRAM_CREDENTIALS
    min_version: ClassVar = 0
    max_version: ClassVar = 0

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def handle(
        self, ctx: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        # Null and empty both mean all users.
        asked = Counter(user.name for user in request.users or ()) or dict.fromkeys(self._cluster.image.scram, 1)
        return DescribeUserScramCredentialsResponse(
            error_message=None, results=[self._describe(user, mentions) for user, mentions in asked.items()]
        )

    def _describe(self, user: str, mentions: int) -> DescribeUserScramCredentialsResult:
        if mentions > 1:
            return DescribeUserScramCredentialsResult(
                user=user,
                error_code=ErrorCode.DUPLICATE_RESOURCE,
                error_message=f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
            )
        credentials = self._cluster.image.scram.get(user)
        if credentials is None:
            return DescribeUserScramCredentialsResult(
                user=user,
                error_code=ErrorCode.RESOURCE_NOT_FOUND,
                error_message=f"Attempt to describe a user credential that does not exist: {user}",
            )
        return DescribeUserScramCredentialsResult(
            user=user,
            error_message=None,
            credential_infos=[
                CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
                for mechanism, credential in sorted(credentials.items())
            ],
        )

    def refuse(
        self, request: DescribeUserScramCredentialsRequest, code: ErrorCode, message: str | None
    ) -> DescribeUserScramCredentialsResponse:
        return DescribeUserScramCredentialsResponse(error_code=code, error_message=message)
