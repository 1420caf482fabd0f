"""DescribeCluster (key 60), versions 0-2.

- A broker's listener describes brokers; a controller listener (controller.listener.names) the voters of the metadata
  quorum. The client's endpoint type says which it expects: MISMATCHED_ENDPOINT_TYPE if the listener is of the other
  type, as in Kafka.
- Fenced brokers are listed from v2 on, and only on request.
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
_KINDS = {BROKERS: "BROKER", CONTROLLERS: "CONTROLLER"}


class DescribeClusterHandler:
    api: ClassVar = Api.DESCRIBE_CLUSTER
    min_version: ClassVar = 0
    max_version: ClassVar = 2

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def handle(self, ctx: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        if request.endpoint_type not in _KINDS:
            raise ApiError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}")
        here = CONTROLLERS if self._cluster.is_controller_listener(ctx) else BROKERS
        if request.endpoint_type == CONTROLLERS != here:
            raise ApiError(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                f"The request was sent to an endpoint of type {_KINDS[here]}, "
                f"but we wanted an endpoint of type {_KINDS[request.endpoint_type]}",
            )
        response = DescribeClusterResponse(
            endpoint_type=request.endpoint_type,
            cluster_id=self._cluster.cluster_id,
            cluster_authorized_operations=(
                ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        )
        if request.endpoint_type == CONTROLLERS:
            response.controller_id = self._cluster.active_controller_id
            response.brokers = [
                DescribeClusterBroker(broker_id=voter, host=host, port=port, rack=None)
                for voter, (host, port) in self._cluster.controllers()
            ]
        else:
            response.controller_id = self._cluster.controller_id
            response.brokers = [
                DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=broker.host,
                    port=broker.port,
                    rack=broker.rack,
                    is_fenced=broker.is_fenced,
                )
                for broker in self._cluster.brokers(ctx, with_fenced=request.include_fenced_brokers)
            ]
        return response

    def refuse(self, request: DescribeClusterRequest, code: ErrorCode, message: str | None) -> DescribeClusterResponse:
        return DescribeClusterResponse(error_code=code, error_message=message)
