"""The brokers of a cluster, including those that are down, and the request that removes one."""

from __future__ import annotations

from typing import NamedTuple

from penstock.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from penstock.wire_client.requests.errors import check


class NodeInfo(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class ClusterNodes(NamedTuple):
    cluster_id: str
    controller_id: int | None
    brokers: tuple[NodeInfo, ...]
    """The brokers by id, including fenced ones."""


def cluster_request() -> DescribeClusterRequest:
    return DescribeClusterRequest(include_fenced_brokers=True)


def read_cluster(answer: DescribeClusterResponse) -> ClusterNodes:
    """Raises ApiError."""
    check(answer.error_code, answer.error_message)
    brokers = sorted(NodeInfo(one.broker_id, one.host, one.port, one.rack, one.is_fenced) for one in answer.brokers)
    controller = answer.controller_id if answer.controller_id >= 0 else None
    return ClusterNodes(answer.cluster_id, controller, tuple(brokers))


def unregister_request(broker_id: int) -> UnregisterBrokerRequest:
    return UnregisterBrokerRequest(broker_id=broker_id)


def check_unregistered(answer: UnregisterBrokerResponse) -> None:
    """Raises ApiError."""
    check(answer.error_code, answer.error_message)
