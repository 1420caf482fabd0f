"""FindCoordinator (key 10), versions 0-6: the leader of a group's or transactional id's partition.

- The address is that of the listener that got the request. While the partition has no leader, or its leader is not up,
  the error is COORDINATOR_NOT_AVAILABLE, key by key.
- The first request creates the internal topic and waits for it: Kafka returns COORDINATOR_NOT_AVAILABLE meanwhile, and
  the client retries.
- There is no coordinator of share groups yet: COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.coordination.groups import GroupCoordinator
from penstock.coordination.transactions import TransactionCoordinator
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

    def __init__(self, cluster: ClusterView, groups: GroupCoordinator, transactions: TransactionCoordinator) -> None:
        self._cluster = cluster
        self._groups = groups
        self._transactions = transactions

    async def handle(self, ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        if request.key_type not in set(KeyType):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown coordinator key type {request.key_type}")
        if request.key_type == KeyType.SHARE:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "This broker has no share coordinator yet.")
        coordinator = self._transactions if request.key_type == KeyType.TRANSACTION else self._groups
        try:
            await coordinator.ensure_topic()
        except (ApiError, StorageError) as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        if ctx.version < FIRST_WITH_MANY_KEYS:
            found = self._find(ctx, coordinator, request.key)
            return FindCoordinatorResponse(
                error_code=found.error_code,
                error_message=found.error_message,
                node_id=found.node_id,
                host=found.host,
                port=found.port,
            )
        found_all = [self._find(ctx, coordinator, key) async for key in ctx.pace.each(request.coordinator_keys)]
        return FindCoordinatorResponse(coordinators=found_all)

    def _find(
        self, ctx: RequestContext, coordinator: GroupCoordinator | TransactionCoordinator, key: str
    ) -> Coordinator:
        leader = coordinator.leader_of(key)
        endpoint = None if leader is None else self._cluster.endpoint_of(leader, ctx)
        if leader is None or endpoint is None:
            noun = "group" if coordinator is self._groups else "transactional id"
            why = "has no leader" if leader is None else f"is led by broker {leader}, which is not up"
            return Coordinator(
                key=key,
                node_id=-1,
                port=-1,
                error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
                error_message=f"The partition of this {noun} {why}.",
            )
        host, port = endpoint
        return Coordinator(key=key, node_id=leader, host=host, port=port, error_message=None)

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
