"""Which metrics a node has. Imported for the first who asks: a start does not pay for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.observability.broker_metrics import RequestMetrics, ServerMetrics, TrafficMetrics
from penstock.observability.cluster_metrics import GroupMetrics, PartitionMetrics
from penstock.observability.metrics import Metrics
from penstock.runtime.process_metrics import ProcessMetrics

if TYPE_CHECKING:
    from penstock.node.node import Node


def metrics_of(node: Node) -> Metrics:
    apis = node.apis
    return Metrics(
        [
            TrafficMetrics(apis.traffic, node.partitions),
            RequestMetrics(apis.dispatcher, apis.times),
            PartitionMetrics(node.partitions, node.image),
            GroupMetrics(node.groups, node.partitions, node.clock),
            ServerMetrics(node.listeners, node.commit, apis.fetch, node.cleaning, len(node.controller.brokers)),
            ProcessMetrics(node.started_ms),
        ]
    )
