"""The metrics of a node. Imported on the first request, so that the start does not pay for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.core.metadata.image import NO_LEADER
from penstock.observability.broker_metrics import RequestMetrics, ServerMetrics, TrafficMetrics
from penstock.observability.cluster_metrics import GroupMetrics, PartitionMetrics
from penstock.observability.metrics import Metrics
from penstock.observability.quorum_metrics import ControllerMetrics, PartitionCensus, QuorumMetrics
from penstock.observability.replication_metrics import ReplicationMetrics
from penstock.observability.transaction_metrics import TransactionMetrics
from penstock.runtime.process_metrics import ProcessMetrics
from penstock.runtime.turn_metrics import TurnMetrics

if TYPE_CHECKING:
    from penstock.node.node import Node


def metrics_of(node: Node) -> Metrics:
    apis, membership, controller = node.apis, node.membership, node.controller
    census = PartitionCensus(node.image)

    def leaderless() -> Iterator[tuple[str, int]]:
        if controller.is_active and census.current.leaderless:
            for topic, state in node.image.all_partitions():
                if state.leader == NO_LEADER:
                    yield topic.name, state.index

    return Metrics(
        [
            TrafficMetrics(apis.traffic, node.partitions),
            RequestMetrics(apis.dispatcher, apis.times),
            PartitionMetrics(node.partitions, leaderless),
            ReplicationMetrics(node.partitions, node.fetchers, apis.fetch, node.revivals),
            GroupMetrics(node.groups, node.partitions, node.clock, node.workers),
            TransactionMetrics(node.coordinators.transactions, node.partitions, membership.running, node.clock),
            ServerMetrics(
                node.listeners,
                node.commit,
                apis.fetch,
                node.cleaning,
                node.disk_watch,
                lambda: len(controller.brokers),
                node.request_memory,
            ),
            ControllerMetrics(controller, membership.watch, census),
            QuorumMetrics(membership.quorum, membership.links, membership.lifecycle, membership.forwarding),
            ProcessMetrics(node.started_ms),
            TurnMetrics(node.loop),
        ]
    )
