"""DescribeCluster (key 60), versions 0-2.

- Only brokers are described: this is a broker's listener, so controllers (endpoint type 2)
  are MISMATCHED_ENDPOINT_TYPE, as on a Kafka broker.
- No broker of a single node is ever fenced.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.api.cluster_view import ClusterView
from penstock.api.context import RequestContext
from penstock.api.handlers.metadata import ALL_CLUSTER_OPERATIONS, NOT_ASKED
from penstock.model.errors import ApiError, ErrorCode
from penstock.wire.apis import Api
from penstock.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS, CONTROLLERS = 1, 2


class DescribeClusterHandler:
    api: ClassVar = Api.DESCRIBE_CLUSTER
    min_version: ClassVar = 0
    max_version: ClassVar = 2

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def handle(self, ctx: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        if request.endpoint_type == CONTROLLERS:
            raise ApiError(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
            )
        if request.endpoint_type != BROKERS:
            raise ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}")
        host, port = self._cluster.endpoint(ctx)
        return DescribeClusterResponse(
            endpoint_type=BROKERS,
            cluster_id=self._cluster.cluster_id,
            controller_id=self._cluster.controller_id,
            brokers=[
                DescribeClusterBroker(
                    broker_id=self._cluster.node_id, host=host, port=port, rack=self._cluster.rack, is_fenced=False
                )
            ],
            cluster_authorized_operations=(
                ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )

    def refuse(self, request: DescribeClusterRequest, code: ErrorCode, message: str | None) -> DescribeClusterResponse:
        return DescribeClusterResponse(error_code=code, error_message=message)
