"""KIP-951: the current leader, sent along with NOT_LEADER_OR_FOLLOWER, so that a client needs no metadata request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from penstock.api.context import RequestContext
from penstock.replica.hosting import HostedPartitions

EndpointOf: TypeAlias = Callable[[int, RequestContext], tuple[str, int] | None]
"""`ClusterView.endpoint_of`."""


def nowhere(broker_id: int, ctx: RequestContext) -> tuple[str, int] | None:
    return None


class LeaderNode(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class LeaderHints:
    def __init__(self, partitions: HostedPartitions, endpoint_of: EndpointOf) -> None:
        self._partitions = partitions
        self._endpoint_of = endpoint_of

    def leader_of(self, topic_id: bytes, topic: str, index: int) -> tuple[int, int]:
        """(leader, leader epoch) in the metadata; -1 if unknown."""
        return self._partitions.leader_of(topic_id, topic, index)

    def nodes(self, leaders: Iterable[int], ctx: RequestContext) -> list[LeaderNode]:
        """Each node once, with an address for the requesting client."""
        nodes: list[LeaderNode] = []
        for leader in dict.fromkeys(leaders):
            address = None if leader < 0 else self._endpoint_of(leader, ctx)
            if address is not None:
                nodes.append(LeaderNode(leader, *address, self._partitions.rack_of(leader)))
        return nodes
