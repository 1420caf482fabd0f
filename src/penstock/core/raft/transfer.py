"""Leadership transfer: refuse proposals, let a voter catch up, tell it to campaign (dissertation, 3.10).

A transfer ends when another server leads, or after an election timeout; then proposals are accepted again.
"""

from __future__ import annotations

from penstock.core.raft.configuration import NodeId
from penstock.core.raft.exchange import Accepted, Refusal, TransferLeadership
from penstock.core.raft.messages import TimeoutNow
from penstock.core.raft.node import RaftNode


def transfer_leadership(node: RaftNode, order: TransferLeadership) -> None:
    target = order.to if order.to is not None else _best_successor(node)
    if node.transfer_to is not None:
        node.refuse(order.token, Refusal.TRANSFERRING)
    elif target is None or target not in node.configuration.voters:
        node.refuse(order.token, Refusal.NOT_A_VOTER)
    else:
        node.outcome.accepted.append(Accepted(order.token, 0, node.term))
        if target != node.node_id:
            node.transfer_to = target
            node.transfer_deadline_ms = node.now_ms + node.settings.election_timeout_ms
            hand_over_if_ready(node)


def hand_over_if_ready(node: RaftNode) -> None:
    """Called after every acknowledgement: a lost TimeoutNow is sent again with the next heartbeat."""
    target = node.transfer_to
    if target is not None and node.followers[target].match_index == node.log.last_index:
        node.outcome.send_now.append(TimeoutNow(node.node_id, target, node.term))


def hand_over_at_once(node: RaftNode) -> None:
    """A removed leader names its successor, so that the others need not wait for a timeout."""
    if (target := _best_successor(node)) is not None:
        node.outcome.send_now.append(TimeoutNow(node.node_id, target, node.term))


def give_up_late(node: RaftNode) -> None:
    if node.transfer_to is not None and node.now_ms >= node.transfer_deadline_ms:
        node.transfer_to = None


def _best_successor(node: RaftNode) -> NodeId | None:
    voters = [progress for peer, progress in node.followers.items() if peer in node.configuration.voters]
    return max(voters, key=lambda progress: progress.match_index).peer if voters else None
