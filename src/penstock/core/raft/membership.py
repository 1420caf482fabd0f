"""Membership changes, one server at a time (dissertation, 4.1 to 4.3).

Non-member, observer, voter: each change moves one server one step, so any majority before and any majority
after the change share a server. Two more conditions make this safe: the previous change is committed, and so is
an entry of the leader's own term. An observer becomes a voter only after it has caught up, so that a new voter
does not delay commits.
"""

from __future__ import annotations

from penstock.core.raft import replication
from penstock.core.raft.configuration import Configuration, NodeId
from penstock.core.raft.exchange import Accepted, Change, ChangeMembership, Refusal
from penstock.core.raft.messages import EntryKind
from penstock.core.raft.node import RaftNode
from penstock.core.raft.progress import SendingPace


def change_membership(node: RaftNode, fact: ChangeMembership) -> None:
    refusal = _why_not_now(node) or _why_not(node, fact.change, fact.node)
    if refusal is not None:
        node.refuse(fact.token, refusal)
        return
    configuration = changed(node.configuration, fact.change, fact.node)
    entry = replication.append_own(node, EntryKind.CONFIGURATION, configuration.encode())
    replication.follow_configuration(node)
    node.outcome.accepted.append(Accepted(fact.token, entry.index, entry.term))


def changed(configuration: Configuration, change: Change, node: NodeId) -> Configuration:
    voters = tuple(voter for voter in configuration.voters if voter != node)
    observers = tuple(observer for observer in configuration.observers if observer != node)
    if change is Change.ADD_VOTER:
        voters += (node,)
    elif change is not Change.REMOVE_OBSERVER:
        observers += (node,)
    return Configuration(voters, observers)


def _why_not_now(node: RaftNode) -> Refusal | None:
    if node.transfer_to is not None:
        return Refusal.TRANSFERRING
    if node.configurations.latest_index > node.log.commit_index:
        return Refusal.CHANGE_IN_PROGRESS
    if node.log.term_at(node.log.commit_index) != node.term:
        return Refusal.TERM_NOT_COMMITTED
    return None


def _why_not(node: RaftNode, change: Change, target: NodeId) -> Refusal | None:
    configuration = node.configuration
    if change is Change.ADD_OBSERVER:
        return Refusal.ALREADY_A_MEMBER if target in configuration.members else None
    if change is Change.REMOVE_VOTER:
        if target not in configuration.voters:
            return Refusal.NOT_A_VOTER
        return Refusal.LAST_VOTER if len(configuration.voters) == 1 else None
    if target not in configuration.observers:
        return Refusal.NOT_AN_OBSERVER
    if change is Change.ADD_VOTER and not _has_caught_up(node, target):
        return Refusal.NOT_CAUGHT_UP
    return None


def _has_caught_up(node: RaftNode, observer: NodeId) -> bool:
    progress = node.followers.get(observer)
    if progress is None or progress.pace is not SendingPace.REPLICATE:
        return False
    return node.log.last_index - progress.match_index <= node.settings.catch_up_entries
