"""KIP-951: whom to ask instead, told along with NOT_LEADER_OR_FOLLOWER, so that a client need not ask for metadata."""

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
        """(leader, leader epoch) as the metadata says; -1 where it does not."""
        return self._partitions.leader_of(topic_id, topic, index)

    def nodes(self, leaders: Iterable[int], ctx: RequestContext) -> list[LeaderNode]:
        """Each once, where the client that asks can reach it."""
        nodes: list[LeaderNode] = []
        for leader in dict.fromkeys(leaders):
            address = None if leader < 0 else self._endpoint_of(leader, ctx)
            if address is not None:
                nodes.append(LeaderNode(leader, *address, self._partitions.rack_of(leader)))
        return nodes
