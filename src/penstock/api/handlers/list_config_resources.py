"""ListConfigResources (key 74), versions 0-1.

v0 lists client-metrics subscriptions. v1 lists the requested types, or everything: topics and brokers that exist,
groups and subscriptions that have settings.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.admin.config_resources import ResourceType
from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


class ListConfigResourcesHandler:
    api: ClassVar = Api.LIST_CONFIG_RESOURCES
    min_version: ClassVar = 0
    max_version: ClassVar = 1

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def handle(self, ctx: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
        if ctx.version == 0:
            types = {int(ResourceType.CLIENT_METRICS)}
        else:
            types = set(request.resource_types) or {int(known) for known in ResourceType}
        if not types <= {int(known) for known in ResourceType}:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        return ListConfigResourcesResponse(
            config_resources=[
                ConfigResource(resource_name=name, resource_type=known)
                for known in ResourceType
                if known in types
                for name in self._names(known)
            ]
        )

    def _names(self, resource_type: ResourceType) -> list[str]:
        match resource_type:
            case ResourceType.TOPIC:
                return list(self._cluster.image.topics)
            case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
                return [str(broker) for broker in self._cluster.live_ids()]
            case ResourceType.CLIENT_METRICS | ResourceType.GROUP:
                return [name for kind, name in self._cluster.image.configs if kind == resource_type]

    def refuse(
        self, request: ListConfigResourcesRequest, code: ErrorCode, message: str | None
    ) -> ListConfigResourcesResponse:
        return ListConfigResourcesResponse(error_code=code)
