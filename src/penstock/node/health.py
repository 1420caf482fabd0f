"""Whether a broker can do its work in the cluster now, in one sentence: the content of `/health`.

no leader of the metadata quorum     no topic can be created, and no partition can get a new leader
no answer of the controller          it may have fenced this broker, and other brokers may lead its partitions
fenced                               the controller has fenced this broker, or has not unfenced it yet
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from penstock.node.node import Node


class NodeHealth(NamedTuple):
    problem: str
    """Empty: none."""
    cluster_id: str
    brokers: int
    """The live ones, as far as this broker knows."""
    controller: int
    """-1: unknown."""


def health_of(node: Node) -> NodeHealth:
    leader = node.membership.quorum.leader_id
    brokers = sum(1 for _ in node.image.live_brokers())
    return NodeHealth(_problem(node), node.image.cluster_id, brokers, -1 if leader is None else leader)


def health_page(node: Node) -> bytes:
    return msgspec.json.encode(health_of(node)._asdict())


def _problem(node: Node) -> str:
    membership = node.membership
    quorum, lifecycle = membership.quorum, membership.lifecycle
    if node.is_stopping:
        return "this broker is stopping"
    if quorum.failure is not None:
        return f"this broker no longer takes part in the metadata quorum: {quorum.failure}"
    if quorum.leader_id is None:
        return _no_leader(node)
    if not node.config.is_clustered:
        return ""
    own = node.image.brokers.get(node.config.node_id)
    if lifecycle.is_fenced or own is None or own.is_fenced:
        return "this broker is fenced: the controller considers it down, or has not unfenced it yet; its log says why"
    if not lifecycle.may_lead():
        return (
            f"the controller, node {quorum.leader_id}, has not answered a heartbeat of this broker for "
            f"{lifecycle.unanswered_s:.0f} s"
        )
    return ""


def _no_leader(node: Node) -> str:
    """The sentence for a quorum without a leader. Also shown during an election, which takes a second or two."""
    quorum, links = node.membership.quorum, node.membership.links
    voters = quorum.voters
    away = [str(voter) for voter in voters if voter != quorum.node_id and not links.is_up(voter)]
    sentence = f"the metadata quorum has no leader: {len(voters) // 2 + 1} of its {len(voters)} voters must be up"
    return f"{sentence}; this broker cannot reach {', '.join(away)}" if away else sentence
