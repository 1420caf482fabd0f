"""FindCoordinator (key 10), versions 0-6: this broker, for every group.

- The offsets topic is created by the first request, which waits for it: Kafka answers
  COORDINATOR_NOT_AVAILABLE meanwhile and lets the client come back.
- There are no coordinators of transactions and share groups yet: COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.coordination.groups import GroupCoordinator
from penstock.model.errors import ApiError, ErrorCode, StorageError
from penstock.wire.apis import Api
from penstock.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

FIRST_WITH_MANY_KEYS = 4


class KeyType(IntEnum):
    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class FindCoordinatorHandler:
    api: ClassVar = Api.FIND_COORDINATOR
    min_version: ClassVar = 0
    max_version: ClassVar = 6

    def __init__(self, cluster: ClusterView, groups: GroupCoordinator) -> None:
        self._cluster = cluster
        self._groups = groups

    async def handle(self, ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        if request.key_type not in set(KeyType):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown coordinator key type {request.key_type}")
        if request.key_type != KeyType.GROUP:
            kind = KeyType(request.key_type).name.lower()
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"This broker has no {kind} coordinator yet.")
        try:
            await self._groups.ensure_topic()
        except (ApiError, StorageError) as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        node_id = self._cluster.node_id
        host, port = self._cluster.endpoint(ctx)
        if ctx.version < FIRST_WITH_MANY_KEYS:
            return FindCoordinatorResponse(error_message=None, node_id=node_id, host=host, port=port)
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, node_id=node_id, host=host, port=port, error_message=None)
                for key in request.coordinator_keys
            ]
        )

    def refuse(self, request: FindCoordinatorRequest, code: ErrorCode, message: str | None) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            error_code=code,
            error_message=message,
            node_id=-1,
            port=-1,
            coordinators=[
                Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=message)
                for key in request.coordinator_keys
            ],
        )
