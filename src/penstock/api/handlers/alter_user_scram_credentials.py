"""AlterUserScramCredentials (key 51), version 0.

Credentials are kept in the metadata log as the keys that SCRAM derives, never as passwords. No SASL listener uses them
yet.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.context import RequestContext
from penstock.api.controller_protocols import TopicController
from penstock.core.metadata.scram import Deletion, Upsertion
from penstock.model.errors import ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)


class AlterUserScramCredentialsHandler:
    api: ClassVar = Api.ALTER_USER_SCRAM_CREDENTIALS
    min_version: ClassVar = 0
    max_version: ClassVar = 0
    is_for_controller: ClassVar = True

    def __init__(self, controller: TopicController) -> None:
        self._controller = controller

    async def handle(
        self, ctx: RequestContext, request: AlterUserScramCredentialsRequest
    ) -> AlterUserScramCredentialsResponse:
        outcomes = await self._controller.alter_scram_credentials(
            [
                *(Deletion(asked.name, asked.mechanism) for asked in request.deletions),
                *(
                    Upsertion(asked.name, asked.mechanism, asked.iterations, asked.salt, asked.salted_password)
                    for asked in request.upsertions
                ),
            ]
        )
        return AlterUserScramCredentialsResponse(
            results=[
                AlterUserScramCredentialsResult(user=user, error_message=None)
                if error is None
                else AlterUserScramCredentialsResult(user=user, error_code=error.code, error_message=error.message)
                for user, error in outcomes.items()
            ]
        )

    def refuse(
        self, request: AlterUserScramCredentialsRequest, code: ErrorCode, message: str | None
    ) -> AlterUserScramCredentialsResponse:
        users = dict.fromkeys(
            [*(asked.name for asked in request.deletions), *(asked.name for asked in request.upsertions)]
        )
        return AlterUserScramCredentialsResponse(
            results=[
                AlterUserScramCredentialsResult(user=user, error_code=code, error_message=message) for user in users
            ]
        )
